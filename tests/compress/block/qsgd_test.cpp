// qsgd: rounding by chance is unbiased, goes to a neighbouring level, and is drawn by seed and position
// alone.
#include "compress/block/qsgd.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "compress/stochastic/dither.h"
#include "tests/compress/codec_cases.h"

namespace gradwire::compress {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Dither, IsUniformAndItsOwnForEveryElement) {
  const Dither dither{1, {2, 3, 4, 0}};
  const int elements = 100000;
  std::vector<int> bins(20);
  double product = 0;  // of neighbours, around the mean
  for (int i = 0; i < elements; ++i) {
    const float uniform = dither.uniform(static_cast<std::size_t>(i));
    ASSERT_TRUE(uniform >= 0 && uniform < 1);
    ++bins[static_cast<std::size_t>(uniform * 20)];
    product += (uniform - 0.5) * (dither.uniform(static_cast<std::size_t>(i) + 1) - 0.5);
  }
  for (int count : bins) EXPECT_NEAR(count, elements / 20, 5 * std::sqrt(elements / 20.0));
  EXPECT_NEAR(product / elements, 0, 5 / 12.0 / std::sqrt(elements));
}

TEST(Qsgd, SendsOneOfTheTwoNearestLevels) {
  for (const auto& [spec, most] : {std::pair("qsgd", 7.0f), {"qsgd:bits=8", 127.0f}}) {
    const auto codec = make(parse_spec(spec));
    for (std::size_t elements = 1; elements <= 257; ++elements) {
      const auto grad = gaussian(elements, static_cast<unsigned>(elements));
      std::vector<float> out(elements);
      codec->decode(encoded(*codec, grad, {}, {}), out);
      float largest = 0;
      for (float x : grad) largest = std::max(largest, std::fabs(x));
      for (std::size_t i = 0; i < elements; ++i) {
        ASSERT_LT(std::fabs(out[i] - grad[i]), largest / most * 1.00001f) << spec << " " << i;
        ASSERT_LE(std::fabs(out[i]), largest * 1.00001f);
      }
    }
  }
}

TEST(Qsgd, WithoutAResidualTheMeanIsTheGradient) {
  const std::size_t elements = 512;
  const auto grad = gaussian(elements, 1);
  float largest = 0;
  for (float x : grad) largest = std::max(largest, std::fabs(x));
  for (const auto& [spec, most] : {std::pair("qsgd", 7.0), {"qsgd:bits=8", 127.0}}) {
    const auto codec = make(parse_spec(spec));
    const int rounds = 4000;
    std::vector<double> total(elements);
    std::vector<float> out(elements);
    for (std::uint64_t step = 0; step < rounds; ++step) {
      codec->decode(encoded(*codec, grad, {}, {}, nullptr, {0, 0, step, 0}), out);
      for (std::size_t i = 0; i < elements; ++i) total[i] += out[i];
    }
    // A code is Bernoulli between two levels, a step apart: its deviation is step * sqrt(p (1 - p)).
    const double step_size = largest / most;
    double chi = 0;
    for (std::size_t i = 0; i < elements; ++i) {
      const double scaled = std::fabs(grad[i]) / step_size;
      const double p = scaled - std::floor(scaled);
      const double deviation = step_size * std::sqrt(std::max(p * (1 - p), 1e-4) / rounds);
      const double error = total[i] / rounds - double{grad[i]};
      ASSERT_LE(std::fabs(error), 5 * deviation) << spec << " " << i;
      chi += error * error / deviation / deviation / elements;
    }
    EXPECT_NEAR(chi, 1, 6 * std::sqrt(2.0 / elements)) << spec;
  }
}

TEST(Qsgd, ParametersOutOfRangeAreRefused) {
  EXPECT_THAT(
      [] { make(parse_spec("qsgd:bits=5")); },
      ThrowsMessage<std::invalid_argument>(HasSubstr("qsgd: bits=5 is not a power of two from 4 to 8")));
  EXPECT_THAT([] { make(parse_spec("qsgd:bucket=32")); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("a power of two from 64 to 4096")));
  EXPECT_THROW(from_wire(WireId::kQsgd, {2, 512, 0, 0}), DecodeError);
  EXPECT_THROW(from_wire(WireId::kQsgd, {4, 32, 0, 0}), DecodeError);
}

}  // namespace
}  // namespace gradwire::compress
