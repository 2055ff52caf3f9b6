// Skipped, with the reason, on a machine without a CUDA device.
#include "compress/cuda/cuda_device.h"
#include "compress/cuda/cuda_devices.h"
#include "tests/compress/device/device_halves.h"

namespace gradwire::compress {
namespace {

TEST(CudaHalves, AreConvertedAsOnTheHost) {
  if (const CudaDevices devices = cuda_devices(); devices.count == 0) GTEST_SKIP() << devices.missing;
  expect_halves_as_on_the_host(*open_cuda_device(0));
}

}  // namespace
}  // namespace gradwire::compress
