// natural: an element becomes a neighbouring power of two, by chance without bias, and the second moment
// grows by an eighth at most; drawn by seed and position alone; bytes that no encoder writes are refused.
#include "compress/stochastic/natural.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "compress/stochastic/natural_scalar.h"
#include "tests/compress/codec_cases.h"

namespace gradwire::compress {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::vector<float> decoded(const Codec& codec, Payload payload, std::size_t elements) {
  std::vector<float> out(elements);
  codec.decode(payload, out);
  return out;
}

/// The power of two at or below |x|; 0 below the least normal number.
double power_below(double x) {
  const double magnitude = std::fabs(x);
  return magnitude < std::numeric_limits<float>::min() ? 0 : std::exp2(std::floor(std::log2(magnitude)));
}

double power_above(double x) {
  return std::fabs(x) < std::numeric_limits<float>::min() ? double{std::numeric_limits<float>::min()}
                                                          : 2 * power_below(x);
}

TEST(Natural, SendsOneOfTheTwoNeighbouringPowersOfTwo) {
  const auto codec = make(parse_spec("natural"));
  for (const float deviation : {1e-44f, 1e-38f, 1e-3f, 1e30f}) {
    const auto grad = gaussian(1000, 1, deviation);
    const auto sent = decoded(*codec, encoded(*codec, grad, {}, {}), grad.size());
    for (std::size_t i = 0; i < grad.size(); ++i) {
      const double size = std::fabs(double{sent[i]});
      ASSERT_TRUE(size == power_below(grad[i]) || size == power_above(grad[i])) << grad[i] << " " << sent[i];
      ASSERT_TRUE(size == 0 || std::signbit(sent[i]) == std::signbit(grad[i])) << grad[i];
    }
  }
}

TEST(Natural, PowersOfTwoAndZeroTravelAsTheyAre) {
  const auto codec = make(parse_spec("natural"));
  const float most = 0x1p127f;
  const std::vector<float> grad{1, -2, 0, 0x1p-126f, -0.0f, most, -most, 1024};
  std::vector<float> residual(grad.size());
  EXPECT_EQ(decoded(*codec, encoded(*codec, grad, residual, {}), grad.size()), grad);
  EXPECT_THAT(residual, Each(0.0f));
  // What would become 2^128 becomes 2^127, and the rest is kept.
  const std::vector<float> beyond(8, std::numeric_limits<float>::max());
  std::vector<float> kept(8);
  EXPECT_THAT(decoded(*codec, encoded(*codec, beyond, kept, {}), 8), Each(most));
  EXPECT_THAT(kept, Each(std::numeric_limits<float>::max() - most));
}

TEST(Natural, WithoutAResidualTheMeanIsTheGradientAndTheSecondMomentGrowsByAnEighthAtMost) {
  const std::size_t elements = 512;
  const int rounds = 4000;
  const auto codec = make(parse_spec("natural"));
  const auto grad = gaussian(elements, 1);
  std::vector<double> total(elements);
  double moment = 0;
  for (std::uint64_t step = 0; step < rounds; ++step) {
    const auto sent = decoded(*codec, encoded(*codec, grad, {}, {}, nullptr, {0, 0, step, 0}), elements);
    for (std::size_t i = 0; i < elements; ++i) {
      total[i] += sent[i];
      moment += double{sent[i]} * sent[i] / rounds;
    }
  }
  // Bernoulli between two powers, p of the way apart: the deviation is the lower power * sqrt(p (1 - p)).
  double chi = 0;
  double second_moment = 0;
  for (std::size_t i = 0; i < elements; ++i) {
    const double below = power_below(grad[i]);
    const double p = std::fabs(grad[i]) / below - 1;
    const double deviation = below * std::sqrt(std::max(p * (1 - p), 1e-4) / rounds);
    const double error = total[i] / rounds - double{grad[i]};
    ASSERT_LE(std::fabs(error), 5 * deviation) << i;
    chi += error * error / deviation / deviation / static_cast<double>(elements);
    second_moment += double{grad[i]} * grad[i];
  }
  EXPECT_NEAR(chi, 1, 6 * std::sqrt(2.0 / static_cast<double>(elements)));
  EXPECT_LE(moment, 9.0 / 8 * second_moment);
  EXPECT_GT(moment, second_moment);
}

TEST(Natural, RepliesInItselfRoundToNearestWhateverTheSeed) {
  const std::vector<float> grad{1, 2, 4, 8};
  const auto codec = make(parse_spec("natural:seed=5"));
  const auto one = encoded(*codec, grad, {}, {});
  const auto two = encoded(*codec, std::vector<float>{0.25f, 1, 3, 0}, {}, {});  // 3 becomes 2 or 4
  const Payload payloads[] = {one, two};
  std::vector<float> residual(4);
  const auto reply = replied(*codec, payloads, 4, ReplyKind::kSame, residual);
  std::vector<float> sum(4);
  codec->decode_reply(reply, 2, ReplyKind::kSame, sum, {});
  EXPECT_EQ(sum[0], 1);  // 1.25
  EXPECT_EQ(sum[1], 4);  // 3, a tie
  EXPECT_EQ(sum[2], 8);  // 6 or 8
  EXPECT_EQ(sum[3], 8);
  EXPECT_EQ(residual[0], 0.25f);
  EXPECT_EQ(residual[1], -1);
}

TEST(Natural, BytesThatNoEncoderWritesAreRefused) {
  const auto codec = make(parse_spec("natural"));
  auto payload = encoded(*codec, gaussian(13, 1), {}, {});
  ASSERT_EQ(payload.size(), 15u);
  std::vector<float> out(13);
  payload[7] = std::byte{255};
  EXPECT_THAT(
      [&] { codec->decode(payload, out); },
      ThrowsMessage<DecodeError>(HasSubstr("the exponent of element 7 is 255, expected at most 254")));
  payload[7] = std::byte{254};
  codec->decode(payload, out);
  payload[14] |= std::byte{0x20};
  EXPECT_THAT([&] { codec->decode(payload, out); },
              ThrowsMessage<DecodeError>(HasSubstr("signs beyond the last element")));
  EXPECT_THAT([] { make(parse_spec("natural:seed=-1")); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("natural: seed=-1")));
  EXPECT_THROW(from_wire(WireId::kNatural, {1, 2, 0, 0}), DecodeError);
}

}  // namespace
}  // namespace gradwire::compress
