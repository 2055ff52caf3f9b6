// What codecs that draw (compress/stochastic/dither.h) have in common: who draws what.
#include <gtest/gtest.h>

#include <string>

#include "compress/codecs.h"
#include "tests/compress/codec_cases.h"

namespace gradwire::compress {
namespace {

class Dithered : public testing::TestWithParam<const char*> {};

TEST_P(Dithered, RoundsRanksKeysUnitsAndSeedsDrawTheirOwn) {
  const std::string name = GetParam();
  const auto codec = make(parse_spec(name));
  const auto grad = gaussian(1000, 1);
  const auto payload_at = [&](const Position& position) {
    return encoded(*codec, grad, {}, {}, nullptr, position);
  };
  const auto payload = payload_at({1, 2, 3, 0});
  EXPECT_EQ(payload_at({1, 2, 3, 0}), payload);
  EXPECT_NE(payload_at({0, 2, 3, 0}), payload);
  EXPECT_NE(payload_at({1, 0, 3, 0}), payload);
  EXPECT_NE(payload_at({1, 2, 4, 0}), payload);
  EXPECT_NE(payload_at({1, 2, 3, kUnitElements}), payload);
  EXPECT_NE(encoded(*make(parse_spec(name + ":seed=1")), grad, {}, {}, nullptr, {1, 2, 3, 0}), payload);
}

INSTANTIATE_TEST_SUITE_P(Codecs, Dithered, testing::Values("qsgd", "terngrad", "natural"),
                         [](const auto& codec) { return std::string(codec.param); });

}  // namespace
}  // namespace gradwire::compress
