#include "tests/compress/device/device_halves.h"
#include "tests/compress/device/streams_device.h"

namespace gradwire::compress {
namespace {

TEST(DeviceHalves, AreConvertedAsOnTheHost) { expect_halves_as_on_the_host(StreamsDevice()); }

}  // namespace
}  // namespace gradwire::compress
