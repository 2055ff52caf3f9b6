// randomk: what is drawn, that all draw the same, and that a reply loses nothing.
#include "compress/random_k.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/compress/codec_cases.h"

namespace gradwire::compress {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

std::vector<std::size_t> places_of(const Codec& codec, std::size_t elements, const Position& position) {
  const std::vector<float> ones(elements, 1);
  std::vector<float> out(elements);
  codec.decode(encoded(codec, ones, {}, {}, nullptr, position), out);
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < elements; ++i) {
    if (out[i] != 0) places.push_back(i);
  }
  return places;
}

TEST(DrawnElements, AreAPermutation) {
  for (std::size_t elements = 1; elements <= 300; ++elements) {
    const DrawnElements drawn(1, 2, 3, 4, elements);
    std::vector<int> seen(elements);
    for (std::size_t i = 0; i < elements; ++i) ++seen.at(drawn[i]);
    ASSERT_EQ(seen, std::vector<int>(elements, 1)) << elements;
  }
  const DrawnElements drawn(1, 2, 3, 4, kUnitElements);
  std::vector<int> seen(kUnitElements);
  for (std::size_t i = 0; i < kUnitElements; ++i) ++seen.at(drawn[i]);
  EXPECT_EQ(seen, std::vector<int>(kUnitElements, 1));
}

TEST(RandomK, GivesEveryElementTheSameChance) {
  for (std::size_t elements : {100, 256, 1000}) {
    const auto codec = make(parse_spec("randomk:ratio=0.1"));
    std::vector<int> times(elements);
    const int rounds = 4000;
    for (int step = 0; step < rounds; ++step) {
      for (std::size_t i : places_of(*codec, elements, {1, 0, static_cast<std::uint64_t>(step), 0}))
        ++times[i];
    }
    const double chance = std::ceil(0.1f * static_cast<float>(elements)) / static_cast<double>(elements);
    const double deviation = std::sqrt(rounds * chance * (1 - chance));
    double chi = 0;
    for (int t : times) {
      EXPECT_NEAR(t, rounds * chance, 5 * deviation);
      chi += std::pow((t - rounds * chance) / deviation, 2) / static_cast<double>(elements);
    }
    EXPECT_NEAR(chi, 1, 6 * std::sqrt(2.0 / static_cast<double>(elements)));
  }
}

TEST(RandomK, RanksDrawTheSameAndRoundsKeysUnitsAndSeedsDoNot) {
  const auto codec = make(parse_spec("randomk:ratio=0.1"));
  const auto drawn = places_of(*codec, 500, {1, 0, 7, 0});
  EXPECT_EQ(drawn.size(), 50u);
  EXPECT_EQ(places_of(*codec, 500, {1, 3, 7, 0}), drawn);
  EXPECT_NE(places_of(*codec, 500, {1, 0, 8, 0}), drawn);
  EXPECT_NE(places_of(*codec, 500, {2, 0, 7, 0}), drawn);
  EXPECT_NE(places_of(*codec, 500, {1, 0, 7, kUnitElements}), drawn);
  EXPECT_NE(places_of(*make(parse_spec("randomk:ratio=0.1,seed=1")), 500, {1, 0, 7, 0}), drawn);
}

TEST(RandomK, ItsReplyIsTheWholeSumAndLeavesServersResidualAlone) {
  for (const char* spec : {"randomk:ratio=0.1", "randomk:ratio=0.1,values=bf16"}) {
    const auto codec = make(parse_spec(spec));
    const std::size_t elements = kUnitElements + 700;
    std::vector<std::vector<std::byte>> bytes;
    for (unsigned w = 0; w < 3; ++w) {
      bytes.push_back(encoded(*codec, gaussian(elements, w), {}, {}, nullptr, {1, w, 5, 2 * kUnitElements}));
    }
    const std::vector<Payload> payloads(bytes.begin(), bytes.end());
    std::vector<float> residual(elements, 0.5f);
    std::vector<float> answer(elements);
    std::vector<float> sum(elements);
    const auto reply = replied(*codec, payloads, elements, ReplyKind::kSame, residual);
    codec->decode_reply(reply, 3, ReplyKind::kSame, answer, {});
    codec->decode_sum(payloads, sum);
    EXPECT_EQ(answer, sum);
    EXPECT_EQ(residual, std::vector<float>(elements, 0.5f));
    EXPECT_EQ(reply.size(), 16 + 4 * (6554u + 70u)) << spec;
  }
}

TEST(RandomK, PayloadsOfDifferentRoundsHaveNoCommonReply) {
  const auto codec = make(parse_spec("randomk:ratio=0.1"));
  const auto one = encoded(*codec, gaussian(100, 1), {}, {}, nullptr, {1, 0, 5, 0});
  const auto other = encoded(*codec, gaussian(100, 2), {}, {}, nullptr, {1, 1, 6, 0});
  const Payload payloads[] = {one, other};
  EXPECT_THAT([&] { replied(*codec, payloads, 100, ReplyKind::kSame, {}); },
              ThrowsMessage<DecodeError>(HasSubstr("randomk: payload 1 of 2 is of another round")));
}

TEST(RandomK, WhatIsNotDrawnIsKeptAndSentInTheEnd) {
  const auto codec = make(parse_spec("randomk:ratio=0.05"));
  const std::vector<float> grad(400, 1);
  std::vector<float> residual(400);
  std::vector<float> out(400);
  for (std::uint64_t step = 0; step < 600; ++step) {
    codec->decode(encoded(*codec, grad, residual, {}, nullptr, {1, 0, step, 0}), out);
    for (std::size_t i = 0; i < 400; ++i) ASSERT_TRUE(out[i] == 0 || residual[i] == 0) << step;
  }
  for (float kept : residual) EXPECT_LT(kept, 250) << "not drawn for as many rounds";
}

TEST(RandomK, SeedsAreWholeNumbers) {
  EXPECT_EQ(make(parse_spec("randomk:seed=4294967295"))->wire_parameters()[1], 4294967295u);
  for (const char* seed : {"-1", "0.5", "4294967296", "x", "nan"}) {
    EXPECT_THAT([&] { make(parse_spec(std::string("randomk:seed=") + seed)); },
                ThrowsMessage<std::invalid_argument>(HasSubstr("is not a whole number from 0 to 4294967295")))
        << seed;
  }
}

}  // namespace
}  // namespace gradwire::compress
