// What a lossy codec has not sent of gradients that lie on a device (leftover.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "kvstore/engine/engine.h"
#include "tests/compress/device/streams_device.h"
#include "tests/kvstore/job.h"
#include "tests/kvstore/sums.h"

namespace gradwire::kvstore {
namespace {

using testing::ElementsAre;
using Floats = std::vector<float>;

TEST(LeftoverOnDevices, GradientsOnADeviceAreSentWithIt) {
  run_job({2, 1}, [&](Engine& engine) {
    const auto device = std::make_shared<compress::StreamsDevice>();
    engine.compression().set(spec("2bit:threshold=0.5"), "exact");
    const KeyId key = engine.declare(std::vector{KeySpec{"w", {4}}}).front();
    const auto memory = device->allocate(4 * sizeof(float));
    const std::span<float> values(reinterpret_cast<float*>(memory.get()), 4);
    const auto exchange = [&](const Floats& given) {
      std::ranges::copy(given, values.begin());
      engine.push_pull(key, values, values, 0, 1, {device, nullptr}).wait();
      return Floats(values.begin(), values.end());
    };
    EXPECT_THAT(exchange({3, 0.25F, -0.75F, 0}), ElementsAre(1, 0, -1, 0));
    engine.compression().set(spec("none"), "none");
    EXPECT_THAT(exchange({0, 1, 0, 0}), ElementsAre(5, 2.5F, -0.5F, 0));
    EXPECT_EQ(engine.residuals().norm(), 0);
    EXPECT_THAT(exchange({0, 1, 0, 0}), ElementsAre(0, 2, 0, 0));
  });
}

}  // namespace
}  // namespace gradwire::kvstore
