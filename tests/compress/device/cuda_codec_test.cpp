// What a build or a machine without CUDA says of it.
#include "compress/cuda/cuda_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "compress/codecs.h"
#include "compress/cuda/cuda_devices.h"

namespace gradwire::compress {
namespace {

TEST(CudaCodec, DevicesAreCountedOrMissedForAReason) {
  const CudaDevices devices = cuda_devices();
  EXPECT_EQ(devices.count == 0, !devices.missing.empty()) << devices.missing;
}

TEST(CudaCodec, BadSpecsAreRefusedAsTheHostRefusesThem) {
  EXPECT_THROW(make_cuda_codec({"2bits", {}}), std::invalid_argument);
  EXPECT_THROW(make_cuda_codec({"2bit", {{"threshold", -1.0}}}), std::invalid_argument);
}

TEST(CudaCodec, WithoutADeviceCallsSayWhy) {
  if (cuda_devices().count > 0) GTEST_SKIP() << "this machine has a CUDA device";
  EXPECT_THAT([] { use_cuda_device(0); },
              testing::ThrowsMessage<std::runtime_error>(testing::HasSubstr("cannot use device 0: ")));
  std::vector<float> grad(16);
  std::vector<std::byte> out(64);
  DeviceReport report;
  const auto encode = [&] {
    const auto twin = make_cuda_codec({"fp16", {}});
    twin->encode(grad, {}, {}, out, {{}, &report, {}});
  };
  EXPECT_THAT(encode, testing::ThrowsMessage<std::runtime_error>(testing::HasSubstr("cuda: cannot ")));
}

}  // namespace
}  // namespace gradwire::compress
