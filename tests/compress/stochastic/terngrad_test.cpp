// terngrad: ternary codes without bias, a scale per codec unit, clipping, residuals that stay small, and
// draws by seed and position alone.
#include "compress/stochastic/terngrad.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "compress/payload/little_endian.h"
#include "tests/compress/codec_cases.h"

namespace gradwire::compress {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::ThrowsMessage;

double norm(std::span<const float> values) {
  double squares = 0;
  for (float x : values) squares += double{x} * x;
  return std::sqrt(squares);
}

float largest(std::span<const float> values) {
  float most = 0;
  for (float x : values) most = std::max(most, std::fabs(x));
  return most;
}

TEST(TernGrad, SendsTheScaleItsOppositeOrNothing) {
  const auto codec = make(parse_spec("terngrad:clip=off"));
  for (std::size_t elements = 1; elements <= 257; ++elements) {
    const auto grad = gaussian(elements, static_cast<unsigned>(elements));
    const auto payload = encoded(*codec, grad, {}, {});
    const auto scale = load<float>(payload.data());
    EXPECT_EQ(scale, largest(grad));
    std::vector<float> sent(elements);
    codec->decode(payload, sent);
    for (std::size_t i = 0; i < elements; ++i) {
      ASSERT_TRUE(sent[i] == 0 || sent[i] == std::copysign(scale, grad[i])) << i;
      ASSERT_TRUE(std::fabs(grad[i]) < scale || sent[i] == grad[i]) << "the largest is always sent";
    }
  }
}

TEST(TernGrad, WithoutClippingAndResidualTheMeanIsTheGradient) {
  const std::size_t elements = 512;
  const int rounds = 4000;
  const auto grad = gaussian(elements, 1);
  const double scale = largest(grad);
  const auto codec = make(parse_spec("terngrad:clip=off"));
  std::vector<double> total(elements);
  std::vector<float> sent(elements);
  for (std::uint64_t step = 0; step < rounds; ++step) {
    codec->decode(encoded(*codec, grad, {}, {}, nullptr, {0, 0, step, 0}), sent);
    for (std::size_t i = 0; i < elements; ++i) total[i] += sent[i];
  }
  double chi = 0;
  for (std::size_t i = 0; i < elements; ++i) {
    const double p = std::fabs(grad[i]) / scale;
    const double deviation = scale * std::sqrt(std::max(p * (1 - p), 1e-4) / rounds);
    const double error = total[i] / rounds - double{grad[i]};
    ASSERT_LE(std::fabs(error), 5 * deviation) << i;
    chi += error * error / deviation / deviation / static_cast<double>(elements);
  }
  EXPECT_NEAR(chi, 1, 6 * std::sqrt(2.0 / static_cast<double>(elements)));
}

TEST(TernGrad, ClipsAtSoManyDeviationsOfTheUnit) {
  const auto codec = make(parse_spec("terngrad:clip=2.5"));
  auto grad = gaussian(2 * kUnitElements + 100, 1);
  for (std::size_t i = kUnitElements; i < grad.size(); ++i) {
    grad[i] = i < 2 * kUnitElements ? 1000 * grad[i] : 0.5f;
  }
  const auto payload = encoded(*codec, grad, {}, {});
  std::vector<float> sent(grad.size());
  codec->decode(payload, sent);
  for (std::size_t unit = 0; unit < 3; ++unit) {
    const auto of_unit = std::span(grad).subspan(unit * kUnitElements).first(unit < 2 ? kUnitElements : 100);
    const double deviation = norm(of_unit) / std::sqrt(static_cast<double>(of_unit.size()));
    const auto scale = load<float>(payload.data() + unit * sizeof(float));
    EXPECT_FLOAT_EQ(scale, static_cast<float>(std::min(2.5 * deviation, double{largest(of_unit)}))) << unit;
    for (std::size_t i = 0; i < of_unit.size(); ++i) {
      const float x = of_unit[i];
      if (std::fabs(x) >= scale) {
        ASSERT_EQ(sent[unit * kUnitElements + i], std::copysign(scale, x)) << "what is clipped is sent";
      }
    }
  }
}

TEST(TernGrad, TheResidualStaysWithinAFewGradients) {
  const std::size_t elements = 20'000;
  const auto grad = gaussian(elements, 3, 0.02f);
  const auto codec = make(parse_spec("terngrad"));
  std::vector<float> residual(elements);
  for (std::uint64_t step = 0; step < 1000; ++step) {
    encoded(*codec, grad, residual, {}, nullptr, {0, 0, step, 0});
    ASSERT_LT(norm(residual), 3 * norm(grad)) << step;
  }
}

TEST(TernGrad, WhatIsZeroOrTooSmallForAScaleSendsNothing) {
  const auto codec = make(parse_spec("terngrad"));
  for (const float value : {0.0f, 1e-40f}) {
    const std::vector<float> grad(100, value);
    std::vector<float> residual(100);
    std::vector<float> sent(100, 1);
    codec->decode(encoded(*codec, grad, residual, {}), sent);
    EXPECT_THAT(sent, Each(0.0f));
    EXPECT_THAT(residual, Each(value));
  }
}

TEST(TernGrad, RepliesInItselfRoundToNearest) {
  const auto codec = make(parse_spec("terngrad:clip=off"));
  const auto payload = encoded(*codec, std::vector<float>{4, -4, 0, 4}, {}, {});
  const Payload payloads[] = {payload};
  std::vector<float> residual{0, 1, 1.9f, -2.1f};
  const auto reply = replied(*codec, payloads, 4, ReplyKind::kSame, residual);  // of 4, -3, 1.9, 1.9
  std::vector<float> sum(4);
  codec->decode_reply(reply, 1, ReplyKind::kSame, sum, {});
  EXPECT_EQ(sum, (std::vector<float>{4, -4, 0, 0}));
  EXPECT_EQ(residual, (std::vector<float>{0, 1, 1.9f, 4 - 2.1f}));
}

TEST(TernGrad, WhatIsOutOfRangeIsRefused) {
  EXPECT_THAT([] { make(parse_spec("terngrad:clip=0")); },
              ThrowsMessage<std::invalid_argument>(
                  HasSubstr("terngrad: clip=0 is not a number above 0 that float32 can hold; give one or the "
                            "word off, e.g. clip=1.5")));
  EXPECT_THROW(make(parse_spec("terngrad:clip=none")), std::invalid_argument);
  EXPECT_THAT(
      [] { make(parse_spec("terngrad:clip=1e-45")); },
      ThrowsMessage<std::invalid_argument>(HasSubstr("would send next to nothing; give 0.001 or more")));
  EXPECT_THROW(from_wire(WireId::kTernGrad, {0x7fc00000, 0, 0, 0}), DecodeError);
  EXPECT_THROW(from_wire(WireId::kTernGrad, {0, 0, 1, 0}), DecodeError);
  const auto codec = make(parse_spec("terngrad"));
  auto payload = encoded(*codec, gaussian(20, 1), {}, {});
  store(-1.0f, payload.data());
  std::vector<float> out(20);
  EXPECT_THAT([&] { codec->decode(payload, out); },
              ThrowsMessage<DecodeError>(HasSubstr("the scale of unit 0 is -1")));
}

}  // namespace
}  // namespace gradwire::compress
