// randomk: what is drawn, that all draw the same, and that a reply loses nothing.
#include "compress/sparse/random_k.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <utility>
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

TEST(RandomSelection, AreAPermutation) {
  RandomSelection drawn;
  for (std::size_t elements = 1; elements <= 300; ++elements) {
    std::vector<int> seen(elements);
    for (std::uint32_t i : drawn.draw({1, 2, 3, 4}, elements, elements)) ++seen.at(i);
    ASSERT_EQ(seen, std::vector<int>(elements, 1)) << elements;
  }
  std::vector<int> seen(kUnitElements);
  for (std::uint32_t i : drawn.draw({1, 2, 3, 4}, kUnitElements, kUnitElements)) ++seen.at(i);
  EXPECT_EQ(seen, std::vector<int>(kUnitElements, 1));
}

TEST(RandomSelection, OfFewerAreTheFirstOfMore) {
  RandomSelection drawn;
  for (std::size_t elements : {5, 64, 65536}) {
    const auto few = drawn.draw({1, 2, 3, 4}, elements, 3);
    const std::vector<std::uint32_t> three(few.begin(), few.end());
    const auto more = drawn.draw({1, 2, 3, 4}, elements, 5);
    EXPECT_EQ(std::vector<std::uint32_t>(more.begin(), more.begin() + 3), three);
  }
}

/// By how many deviations the worst of counts is away from what a fair draw gives it.
double worst_deviation(const std::vector<int>& counts, int draws, double chance) {
  double worst = 0;
  for (int count : counts) worst = std::max(worst, std::fabs(count - draws * chance));
  return chance < 1 ? worst / std::sqrt(draws * chance * (1 - chance)) : worst;
}

/// (chi square - its mean) / its deviation, of the places of pairs.
double excess(const std::vector<int>& counts, std::size_t cells, double expected) {
  double chi = 0;
  for (int count : counts) chi += (count - expected) * (count - expected) / expected;
  // Cells that cannot be, an element twice, are 0 and were counted as if they could.
  chi -= static_cast<double>(counts.size() - cells) * expected;
  return (chi - static_cast<double>(cells - 1)) / std::sqrt(2.0 * static_cast<double>(cells - 1));
}

TEST(RandomSelection, OfAnyNumberAreFairOneByOneAndInPairs) {
  RandomSelection drawn;
  const int draws = 20000;
  for (std::size_t m = 2; m <= 64; ++m) {
    for (const std::size_t count : {std::size_t{2}, (m + 1) / 2, m}) {
      if (count < 2) continue;
      std::vector<int> chosen(m);        // how often an element is among them
      std::vector<int> first(m * m);     // which are the first and the second
      std::vector<int> together(m * m);  // which are among them together, the lesser one first
      for (std::uint32_t step = 0; step < static_cast<std::uint32_t>(draws); ++step) {
        const auto places = drawn.draw({7, 3, step, 1}, m, count);
        ++first[places[0] * m + places[1]];
        for (std::size_t i = 0; i < count; ++i) {
          ++chosen[places[i]];
          for (std::size_t j = 0; j < i && m <= 16; ++j)
            ++together[std::min(places[i], places[j]) * m + std::max(places[i], places[j])];
        }
      }
      SCOPED_TRACE(std::to_string(count) + " of " + std::to_string(m));
      const auto all = static_cast<double>(m);
      EXPECT_LT(worst_deviation(chosen, draws, static_cast<double>(count) / all), 5);
      EXPECT_LT(std::fabs(excess(first, m * (m - 1), draws / (all * (all - 1)))), 5);
      const double both = static_cast<double>(count * (count - 1)) / (all * (all - 1));
      for (std::size_t a = 0; a < m && m <= 16; ++a) {
        for (std::size_t b = a + 1; b < m; ++b) {
          EXPECT_LT(worst_deviation({together[a * m + b]}, draws, both), 5) << a << " and " << b;
        }
      }
    }
  }
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

TEST(RandomK, GivesEveryPairOfFewElementsTheSameChance) {
  const int rounds = 20000;
  for (const auto& [elements, spec, count] : {std::tuple{5, "randomk:ratio=0.4", 2},
                                              {10, "randomk:ratio=0.2", 2},
                                              {20, "randomk:ratio=0.15", 3},
                                              {3, "randomk:ratio=0.6", 2}}) {
    const auto codec = make(parse_spec(spec));
    std::map<std::pair<std::size_t, std::size_t>, int> times;
    for (std::uint64_t step = 0; step < rounds; ++step) {
      const auto places = places_of(*codec, static_cast<std::size_t>(elements), {0, 0, step, 0});
      for (std::size_t b = 0; b < places.size(); ++b) {
        for (std::size_t a = 0; a < b; ++a) ++times[{places[a], places[b]}];
      }
    }
    const double chance = count * (count - 1.0) / (elements * (elements - 1.0));
    EXPECT_EQ(times.size(), static_cast<std::size_t>(elements * (elements - 1) / 2));
    for (const auto& [pair, chosen] : times) {
      EXPECT_LT(worst_deviation({chosen}, rounds, chance), 5)
          << pair.first << " and " << pair.second << " of " << elements;
    }
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

TEST(RandomK, PayloadsThatAreDrawnByAnotherRuleAreRefused) {
  WireParameters parameters = make(parse_spec("randomk"))->wire_parameters();
  parameters[3] = 0;
  EXPECT_THAT([&] { from_wire(WireId::kRandomK, parameters); },
              ThrowsMessage<DecodeError>(HasSubstr("run one version of gradwire on all ranks")));
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
