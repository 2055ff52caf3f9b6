// Hostile bytes: every decode path of every codec either throws DecodeError or finishes, and never touches
// memory that is not its own (run under ASan). GRADWIRE_FUZZ_ROUNDS sets the rounds per codec; the seed is
// fixed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "compress/payload/integer_sums.h"
#include "compress/payload/segmented.h"
#include "compress/two_bit/lossless.h"
#include "compress/two_bit/two_bit_scalar.h"
#include "tests/compress/codec_cases.h"

namespace gradwire::compress {
namespace {

using Bytes = std::vector<std::byte>;

int rounds() {
  const char* const text = std::getenv("GRADWIRE_FUZZ_ROUNDS");
  return text == nullptr ? 400 : std::atoi(text);
}

class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed) {}

  std::size_t below(std::size_t bound) { return random_() % bound; }

  Bytes mutate(Bytes bytes) {
    for (std::size_t edits = below(4); edits > 0 && !bytes.empty(); --edits) {
      // Headers are short, so half of the edits go to the front.
      const std::size_t at = below(below(2) == 0 ? std::min<std::size_t>(bytes.size(), 40) : bytes.size());
      switch (below(4)) {
        case 0:
          bytes[at] ^= static_cast<std::byte>(1u << below(8));
          break;
        case 1:
          bytes[at] = static_cast<std::byte>(random_() & 0xff);
          break;
        case 2:
          for (std::size_t i = at; i < std::min(at + 4, bytes.size()); ++i) bytes[i] = std::byte{0xff};
          break;
        default:
          bytes.resize(below(2) == 0 ? at : bytes.size() + below(70));
      }
    }
    return bytes;
  }

 private:
  std::mt19937 random_;
};

/// Bytes in a heap block of exactly their size, so that ASan sees one read too many.
Bytes exact(Bytes bytes) {
  bytes.shrink_to_fit();
  return bytes;
}

class CodecFuzz : public testing::TestWithParam<std::string> {};

TEST_P(CodecFuzz, DecodersSurviveHostileBytes) {
  const auto codec = make(parse_spec(GetParam()));
  Mutator mutator(20261121);
  int refused = 0;
  int accepted = 0;
  const auto attempt = [&](const auto& call) {
    try {
      call();
      ++accepted;
    } catch (const DecodeError& error) {
      EXPECT_NE(std::string(error.what()), "");
      ++refused;
    }
  };
  for (int round = 0; round < rounds(); ++round) {
    const std::size_t elements =
        round % 16 == 0 ? kUnitElements + mutator.below(200) : 1 + mutator.below(400);
    const std::size_t ways = 1 + mutator.below(4);
    const auto grad = gaussian(elements, static_cast<unsigned>(round));
    const auto scales = mutator.below(2) == 0 ? std::vector<UnitScale>{} : scales_after_a_round(*codec, grad);
    const Bytes good = encoded(*codec, grad, {}, scales);
    std::vector<Bytes> bytes;
    for (std::size_t w = 0; w < ways; ++w) bytes.push_back(exact(w == 0 ? mutator.mutate(good) : good));
    const std::vector<Payload> payloads(bytes.begin(), bytes.end());
    std::vector<float> out(elements);
    attempt([&] { codec->validate(bytes[0], elements); });
    attempt([&] { codec->decode_sum(payloads, out); });
    for (ReplyKind kind : reply_kinds(*codec)) {
      std::vector<float> residual(elements);
      attempt([&] { replied(*codec, payloads, elements, kind, residual); });
      const std::vector<Payload> honest(ways, Payload(good));
      const Bytes reply = exact(mutator.mutate(replied(*codec, honest, elements, kind, {})));
      std::vector<UnitScale> next(codec->agrees_scales() ? unit_count(elements) : 0);
      attempt([&] { codec->decode_reply(reply, ways, kind, out, next); });
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(accepted, 0);
}

// Heads come from other ranks, and integers from a library that they all used.
TEST_P(CodecFuzz, SumsThatALibraryMadeAreHostileToo) {
  const auto codec = make(parse_spec(GetParam()));
  if (codec->integer_sums() == nullptr) return;
  Mutator mutator(20261122);
  int refused = 0;
  int accepted = 0;
  for (int round = 0; round < rounds(); ++round) {
    const auto first = static_cast<std::uint32_t>(1 + mutator.below(300));
    const Segmented together(*codec, {first, 100});
    const bool is_segmented = mutator.below(2) == 0;
    const Codec& whole = is_segmented ? static_cast<const Codec&>(together) : *codec;
    const std::size_t elements = is_segmented ? first + 100 : first;
    const IntegerSums& sums = *whole.integer_sums();
    std::vector<UnitScale> scales(codec->agrees_scales() ? (is_segmented ? 2 : 1) : 0, {0.3f, 0.5f});
    const Bytes payload = encoded(whole, gaussian(elements, static_cast<unsigned>(round)), {}, scales);
    const IntegerWidth width = mutator.below(2) == 0 ? IntegerWidth::kInt8 : IntegerWidth::kInt16;
    Bytes good_head(sums.head_bytes(elements));
    Bytes integers(elements * bytes_of(width));
    sums.write_head(payload, elements, good_head);
    sums.expand(payload, elements, width, integers);
    if (mutator.below(2) == 0) integers = mutator.mutate(integers);
    const Bytes added = exact(integers);
    std::vector<Bytes> heads;
    for (std::size_t way = 0; way < 2; ++way)
      heads.push_back(exact(way == 0 ? mutator.mutate(good_head) : good_head));
    const std::vector<Payload> views(heads.begin(), heads.end());
    const SummedRound summed{2, good_head.empty() ? std::span<const Payload>() : views, added, width};
    std::vector<float> out(elements);
    try {
      sums.decode_sum(summed, out);
      for (ReplyKind kind : reply_kinds(whole)) {
        Bytes reply(whole.max_reply_size(elements, 2, kind));
        sums.encode_reply(summed, elements, kind, {}, reply);
      }
      ++accepted;
    } catch (const DecodeError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(accepted, 0);
}

TEST_P(CodecFuzz, RandomBytesOfEveryLengthAreSafe) {
  const auto codec = make(parse_spec(GetParam()));
  std::mt19937 random(7);
  for (std::size_t length = 0; length < 300; ++length) {
    Bytes bytes(length);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random() % 3 == 0 ? random() & 0xff : random() & 1);
    for (std::size_t elements : {1, 16, 40, 64, 70}) {
      std::vector<float> out(elements);
      try {
        codec->decode(bytes, out);
        EXPECT_NO_THROW(codec->validate(bytes, elements));
      } catch (const DecodeError&) {
        EXPECT_THROW(codec->validate(bytes, elements), DecodeError);
      }
    }
  }
}

// What the lossless stage accepts is what it would have written: codes have one coded form.
TEST(LosslessFuzz, DecoderSurvivesHostileBytes) {
  const auto codec = make(parse_spec("2bit:threshold=1"));
  Mutator mutator(20261123);
  int refused = 0;
  int accepted = 0;
  for (int round = 0; round < rounds(); ++round) {
    const std::size_t elements =
        round % 16 == 0 ? kUnitElements + mutator.below(200) : 1 + mutator.below(1000);
    const float deviation = 0.3f * static_cast<float>(1 + mutator.below(6));
    const Bytes codes = encoded(*codec, gaussian(elements, static_cast<unsigned>(round), deviation), {}, {});
    Bytes coded(lossless::max_coded_bytes(elements));
    coded.resize(lossless::encode(codes, elements, coded));
    const Bytes hostile = exact(mutator.mutate(coded));
    Bytes back(codes.size());
    try {
      lossless::decode(hostile, elements, back);
      ++accepted;
    } catch (const DecodeError& error) {
      EXPECT_NE(std::string(error.what()), "");
      ++refused;
      continue;
    }
    Bytes again(lossless::max_coded_bytes(elements));
    again.resize(lossless::encode(back, elements, again));
    ASSERT_EQ(again, hostile);
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(accepted, 0);
}

TEST(LosslessFuzz, RandomBytesOfEveryLengthAreSafe) {
  std::mt19937 random(8);
  for (std::size_t length = 0; length < 300; ++length) {
    for (std::size_t elements : {1u, 16u, 40u, 64u, 700u}) {
      Bytes bytes(length);
      for (std::byte& b : bytes) b = static_cast<std::byte>(random() & 0xff);
      if (length >= 4) {  // a head that is nearly right
        bytes[0] &= std::byte{15};
        bytes[1] = bytes[2] = std::byte{0};
        bytes[3] &= std::byte{0xc0};
      }
      Bytes codes(two_bit::packed_bytes(elements));
      try {
        lossless::decode(exact(bytes), elements, codes);
      } catch (const DecodeError&) {
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CodecFuzz, testing::ValuesIn(specs_under_test()), [](const auto& info) {
  std::string name;
  for (char c : info.param) name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
});

}  // namespace
}  // namespace gradwire::compress
