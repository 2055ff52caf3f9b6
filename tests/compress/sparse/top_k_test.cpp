// topk: what is sent is what is largest, and bytes that no encoder writes are named.
#include "compress/sparse/top_k.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "compress/payload/little_endian.h"
#include "tests/compress/codec_cases.h"

namespace gradwire::compress {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(TopK, SendsTheLargestOfEveryUnitAndKeepsTheRest) {
  const auto codec = make(parse_spec("topk:ratio=0.05"));
  for (std::size_t elements : {std::size_t{1}, std::size_t{257}, kUnitElements + 1000}) {
    const auto grad = gaussian(elements, 1);
    std::vector<float> residual(elements);
    std::vector<float> out(elements);
    codec->decode(encoded(*codec, grad, residual, {}), out);
    for (std::size_t first = 0; first < elements; first += kUnitElements) {
      const std::size_t last = std::min(elements, first + kUnitElements);
      float least_sent = 1e30f;
      float most_kept = 0;
      std::size_t sent = 0;
      for (std::size_t i = first; i < last; ++i) {
        ASSERT_TRUE(out[i] == 0 || out[i] == grad[i]);
        ASSERT_EQ(out[i] + residual[i], grad[i]);
        sent += out[i] != 0 ? 1 : 0;
        if (out[i] != 0) least_sent = std::min(least_sent, std::fabs(out[i]));
        most_kept = std::max(most_kept, std::fabs(residual[i]));
      }
      EXPECT_EQ(sent, static_cast<std::size_t>(std::ceil(0.05f * static_cast<float>(last - first))));
      EXPECT_GE(least_sent, most_kept);
    }
  }
}

TEST(TopK, ValuesOfHalfTheSizeLeaveTheirErrorInTheResidual) {
  for (const auto& [spec, bytes] : {std::pair("topk:ratio=0.1", 6 * 10),
                                    {"topk:ratio=0.1,values=fp16", 4 * 10},
                                    {"topk:ratio=0.1,values=bf16", 4 * 10}}) {
    const auto codec = make(parse_spec(spec));
    const auto grad = gaussian(100, 1);
    std::vector<float> residual(100);
    const auto payload = encoded(*codec, grad, residual, {});
    EXPECT_EQ(payload.size(), static_cast<std::size_t>(bytes)) << spec;
    std::vector<float> out(100);
    codec->decode(payload, out);
    for (std::size_t i = 0; i < 100; ++i) EXPECT_EQ(out[i] + residual[i], grad[i]) << spec;
  }
}

TEST(TopK, EveryElementIsSentInTheEnd) {
  const auto codec = make(parse_spec("topk:ratio=0.01"));
  const auto grad = gaussian(500, 1);
  std::vector<float> residual(500);
  std::vector<float> total(500);
  std::vector<float> out(500);
  for (int round = 0; round < 2000; ++round) {
    codec->decode(encoded(*codec, grad, residual, {}), out);
    for (std::size_t i = 0; i < 500; ++i) total[i] += out[i];
  }
  for (std::size_t i = 0; i < 500; ++i) {
    EXPECT_NEAR(total[i] / 2000, grad[i], 0.03f + 0.01f * std::fabs(grad[i])) << i;
  }
}

TEST(TopK, IndicesThatNoEncoderWritesAreNamed) {
  const auto codec = make(parse_spec("topk:ratio=0.1"));
  const auto good = encoded(*codec, gaussian(50, 1), {}, {});
  std::vector<float> out(50);
  const auto with_index = [&](std::size_t at, std::uint16_t index) {
    auto bad = good;
    store(index, bad.data() + 2 * at);
    return bad;
  };
  const auto repeated = with_index(3, load<std::uint16_t>(good.data() + 4));
  EXPECT_THAT([&] { codec->decode(repeated, out); },
              ThrowsMessage<DecodeError>(HasSubstr("payload 0 of 1: index 3 of unit 0 is")));
  EXPECT_THROW(codec->validate(with_index(4, 50), 50), DecodeError);
  EXPECT_THROW(codec->validate(with_index(0, 0xffff), 50), DecodeError);
  EXPECT_THROW(codec->decode_reply(repeated, 1, ReplyKind::kSame, out, {}), DecodeError);
}

TEST(TopK, ParametersOutOfRangeAreRefused) {
  for (const char* ratio : {"0", "-0.1", "1.5", "nan", "most"}) {
    EXPECT_THAT([&] { make(parse_spec(std::string("topk:ratio=") + ratio)); },
                ThrowsMessage<std::invalid_argument>(HasSubstr("topk: ratio=")))
        << ratio;
  }
  EXPECT_THAT([] { make(parse_spec("topk:values=fp8")); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("valid: fp32, fp16, bf16")));
  const auto bits = [](float value) { return std::bit_cast<std::uint32_t>(value); };
  EXPECT_THROW(from_wire(WireId::kTopK, {bits(1.5f), 0, 0, 0}), DecodeError);
  EXPECT_THROW(from_wire(WireId::kTopK, {bits(0.5f), 3, 0, 0}), DecodeError);
}

}  // namespace
}  // namespace gradwire::compress
