#include "compress/float64_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "compress/codecs.h"
#include "compress/payload/little_endian.h"

namespace gradwire::compress {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<std::byte> payload_of(const std::vector<double>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(double));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::vector<double> reply_to(const std::vector<std::vector<double>>& given, double scale = 1) {
  const Float64Codec codec;
  std::vector<std::vector<std::byte>> bytes;
  for (const auto& values : given) bytes.push_back(payload_of(values));
  const std::vector<Payload> payloads(bytes.begin(), bytes.end());
  std::vector<std::byte> reply(codec.max_reply_size(given[0].size(), given.size(), ReplyKind::kSame));
  EXPECT_EQ(codec.encode_reply(payloads, given[0].size(), ReplyKind::kSame, {}, reply).bytes, reply.size());
  std::vector<double> out(given[0].size());
  codec.decode_reply(reply, ReplyKind::kSame, scale, out);
  return out;
}

// The bytes of compress/FORMAT.md, "none".
TEST(Float64Codec, HasTheBytesThatAreWrittenDown) {
  const Float64Codec codec;
  std::vector<std::byte> payload(codec.max_encoded_size(2));
  codec.encode(std::vector<float>{1, -2}, {}, {}, payload, {});
  std::vector<std::byte> expected(16);
  store(std::uint64_t{0x3ff0000000000000}, expected.data());
  store(std::uint64_t{0xc000000000000000}, expected.data() + 8);
  EXPECT_EQ(payload, expected);
}

TEST(Float64Codec, SumsAreOfSixtyFourBitsInRankOrder) {
  EXPECT_THAT(reply_to({{1 + 0x1p-40, 1e60, 0x1p53}, {1, 1e60, 1}, {1, 1, 1}}),
              ElementsAre(3 + 0x1p-40, 2e60 + 1, (0x1p53 + 1) + 1));
  EXPECT_THAT(reply_to({{3, 1e300}, {1, 1e300}}, 0.5), ElementsAre(2, 1e300));
}

TEST(Float64Codec, LongRunsAreSummedTileByTile) {
  std::vector<std::vector<double>> given(3, std::vector<double>(5000));
  std::vector<double> expected(5000);
  for (std::size_t i = 0; i < 5000; ++i) {
    for (std::size_t rank = 0; rank < 3; ++rank)
      given[rank][i] = 1e100 / static_cast<double>(3 * i + rank + 1);
    expected[i] = (given[0][i] + given[1][i]) + given[2][i];
  }
  EXPECT_EQ(reply_to(given), expected);
}

TEST(Float64Codec, WhatIsNotFiniteIsReportedAndStays) {
  const Float64Codec codec;
  const auto bytes = payload_of({1, kInfinity, std::nan("")});
  std::vector<std::byte> reply(24);
  const std::vector<Payload> payloads = {bytes};
  EXPECT_TRUE(codec.encode_reply(payloads, 3, ReplyKind::kSame, {}, reply).nonfinite);
  const auto sum = reply_to({{kInfinity, 1.7e308}, {1, 1.7e308}});
  EXPECT_EQ(sum[0], kInfinity);
  EXPECT_EQ(sum[1], kInfinity);
}

TEST(Float64Codec, FloatsAreRoundedOnce) {
  const Float64Codec codec;
  const auto a = payload_of({1, 0x1p24, 1e60}), b = payload_of({0x1p-25, 1.5, 1});
  std::vector<float> sum(3);
  codec.decode_sum(std::vector<Payload>{a, b}, sum);
  EXPECT_THAT(sum, ElementsAre(1, 0x1p24F + 2, std::numeric_limits<float>::infinity()));
  std::vector<std::byte> reply(codec.max_reply_size(3, 2, ReplyKind::kFp32));
  EXPECT_EQ(reply.size(), 12U);
  codec.encode_reply(std::vector<Payload>{a, b}, 3, ReplyKind::kFp32, {}, reply);
  std::vector<float> out(3);
  codec.decode_reply(reply, 2, ReplyKind::kFp32, out, {});
  EXPECT_EQ(out, sum);
  std::vector<double> wide(3);
  codec.decode_reply(reply, ReplyKind::kFp32, 2, wide);
  EXPECT_EQ(wide[1], 2 * (0x1p24 + 2));
}

TEST(Float64Codec, OtherLengthsAreRefused) {
  const Float64Codec codec;
  const auto bytes = payload_of({1, 2});
  std::vector<double> out(3);
  std::vector<float> floats(3);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const auto cut = Payload(bytes).first(length);
    EXPECT_THROW(codec.validate(cut, 2), DecodeError) << length;
    EXPECT_THROW(codec.decode_reply(cut, ReplyKind::kSame, 1, std::span(out).first(2)), DecodeError);
    EXPECT_THROW(codec.decode_reply(cut, 1, ReplyKind::kSame, std::span(floats).first(2), {}), DecodeError);
    EXPECT_THROW(codec.decode_sum(std::vector<Payload>{cut}, std::span(floats).first(2)), DecodeError);
  }
  EXPECT_THAT([&] { codec.validate(bytes, 3); }, ThrowsMessage<DecodeError>(HasSubstr("none")));
  EXPECT_THROW(codec.decode_reply(bytes, ReplyKind::kExact, 1, std::span(out).first(2)), DecodeError);
  std::vector<std::byte> reply(16);
  EXPECT_THROW(codec.encode_reply(std::vector<Payload>{bytes}, 2, ReplyKind::kExact, {}, reply),
               std::invalid_argument);
}

TEST(Float64Codec, IsTheNoneOfTheTable) {
  const Float64Codec codec;
  EXPECT_EQ(canonical_spec(codec.spec()), "none");
  EXPECT_EQ(codec.as_float64(), &codec);
  EXPECT_EQ(make({})->as_float64(), nullptr);
  EXPECT_EQ(codec.wire_id(), make({})->wire_id());
}

}  // namespace
}  // namespace gradwire::compress
