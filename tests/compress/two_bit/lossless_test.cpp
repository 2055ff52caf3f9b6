// The lossless stage: every byte comes back, sizes against entropy, bytes worked out by hand, hostile bytes.
#include "compress/two_bit/lossless.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "compress/codecs.h"
#include "compress/two_bit/two_bit_scalar.h"
#include "tests/compress/codec_cases.h"

namespace gradwire::compress::lossless {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using Bytes = std::vector<std::byte>;

Bytes bytes(std::initializer_list<int> values) {
  Bytes out;
  for (int value : values) out.push_back(static_cast<std::byte>(value));
  return out;
}

/// Codes of independent elements, each sent with that probability, signs even.
Bytes drawn_codes(std::size_t elements, double density, unsigned seed) {
  std::mt19937 random(seed);
  std::bernoulli_distribution sent(density);
  Bytes codes(two_bit::packed_bytes(elements));
  for (std::size_t i = 0; i < elements; ++i) {
    if (!sent(random)) continue;
    codes[i / 4] |= static_cast<std::byte>((2 | (random() & 1)) << two_bit::code_shift(i));
  }
  return codes;
}

Bytes encoded(const Bytes& codes, std::size_t elements) {
  Bytes coded(max_coded_bytes(elements));
  coded.resize(encode(codes, elements, coded));
  coded.shrink_to_fit();
  return coded;
}

Bytes decoded(const Bytes& coded, std::size_t elements) {
  Bytes codes(two_bit::packed_bytes(elements), std::byte{0xee});
  decode(coded, elements, codes);
  return codes;
}

/// Bits an element of independent elements sent with probability p, signs even.
double entropy(double p) { return -p * std::log2(p) - (1 - p) * std::log2(1 - p) + p; }

TEST(Lossless, EveryByteComesBack) {
  for (std::size_t elements = 1; elements <= 257; ++elements) {
    for (double density : {0.0, 0.01, 0.1, 0.3, 0.7, 1.0}) {
      const Bytes codes = drawn_codes(elements, density, static_cast<unsigned>(elements));
      ASSERT_EQ(decoded(encoded(codes, elements), elements), codes) << elements << " at " << density;
    }
  }
  for (std::size_t elements : {kUnitElements - 1, kUnitElements, kUnitElements + 1, 3 * kUnitElements + 77}) {
    for (double density : {0.0, 0.0001, 0.001, 0.02, 0.1, 0.2, 0.25, 0.5, 0.9, 1.0}) {
      const Bytes codes = drawn_codes(elements, density, 7);
      ASSERT_EQ(decoded(encoded(codes, elements), elements), codes) << elements << " at " << density;
    }
  }
}

TEST(Lossless, IsWithinAFifthOfTheEntropy) {
  constexpr std::size_t kElements = 8 * kUnitElements;
  for (double density : {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5}) {
    const auto size = encoded(drawn_codes(kElements, density, 3), kElements).size();
    const double bits = 8.0 * static_cast<double>(size) / kElements;
    EXPECT_LT(bits, 1.2 * entropy(density)) << density;
    EXPECT_GT(bits, 0.97 * entropy(density)) << density;  // else the measure is wrong
  }
}

TEST(Lossless, TheOrderOfTheElementsDoesNotMatter) {
  constexpr std::size_t kSent = 3000;
  Bytes together(two_bit::packed_bytes(kUnitElements));
  Bytes apart(together.size());
  for (std::size_t i = 0; i < kSent; ++i) {
    const auto put = [](Bytes& codes, std::size_t at) {
      codes[at / 4] |= static_cast<std::byte>(3 << two_bit::code_shift(at));
    };
    put(together, 20'000 + i);
    put(apart, i * (kUnitElements / kSent));
  }
  EXPECT_EQ(encoded(together, kUnitElements).size(), encoded(apart, kUnitElements).size());
  EXPECT_EQ(decoded(encoded(together, kUnitElements), kUnitElements), together);
}

TEST(Lossless, EveryUnitTakesTheFormOfItsDensity) {
  EXPECT_EQ(plan_unit(kUnitElements, 0), (UnitPlan{Form::kPositions, 0, 0}));
  EXPECT_EQ(plan_unit(kUnitElements, 66).form, Form::kPositions);
  EXPECT_EQ(plan_unit(kUnitElements, 66).low_bits, 9);
  EXPECT_EQ(plan_unit(kUnitElements, kUnitElements / 10).form, Form::kPositions);
  EXPECT_EQ(plan_unit(kUnitElements, kUnitElements / 2).form, Form::kBitmap);
  EXPECT_EQ(plan_unit(kUnitElements, kUnitElements), (UnitPlan{Form::kRaw, 0, kUnitElements / 4}));
  Bytes codes = drawn_codes(2 * kUnitElements, 0, 1);
  for (std::size_t b = kUnitElements / 4; b < codes.size(); ++b) codes[b] = std::byte{0xff};
  EXPECT_EQ(encoded(codes, 2 * kUnitElements).size(), 4 + 4 + kUnitElements / 4);
}

// Worked out by hand from compress/FORMAT.md, as its examples are.
TEST(Lossless, BytesWorkedOutByHand) {
  // Elements 3 (+) and 17 (-) of 32 as positions with 3 lower bits: 3 is 0 and 3, 17 is 2 and 1.
  Bytes codes(8);
  codes[0] = std::byte{0x03};
  codes[4] = std::byte{0x20};
  EXPECT_EQ(encoded(codes, 32), bytes({0x02, 0, 0, 0x80, 0b1001, 0x36}));
  // + - 0 0 | + - 0 0 | + of 9: a bitmap, and the signs 0 1 0 1 0.
  const Bytes dense = bytes({0xe0, 0xe0, 0xc0, 0});
  EXPECT_EQ(encoded(dense, 9), bytes({0x05, 0, 0, 0x40, 0x33, 0x01, 0x0a}));
  // All of 16 sent: as it is.
  const Bytes all = bytes({0xff, 0xaa, 0xff, 0xaa});
  EXPECT_EQ(encoded(all, 16), bytes({0, 0, 0, 0, 0xff, 0xaa, 0xff, 0xaa}));
}

TEST(Lossless, WhatNoEncoderWritesStaysAsItIs) {
  for (const Bytes& odd : {bytes({0x40, 0, 0, 0}), bytes({0, 0, 0, 0x01}), bytes({0, 0x03, 0, 0})}) {
    EXPECT_EQ(encoded(odd, 5).size(), 8);
    EXPECT_EQ(decoded(encoded(odd, 5), 5), odd);
  }
}

TEST(Lossless, ASpecificTwoBitPayloadComesBack) {
  const auto codec = make(parse_spec("2bit:threshold=1.4"));
  const auto grad = gaussian(100'000, 3);
  const auto payload = compress::encoded(*codec, grad, {}, {});
  const Bytes coded = encoded(payload, grad.size());
  EXPECT_LT(coded.size(), payload.size() / 20);
  EXPECT_EQ(decoded(coded, grad.size()), payload);
}

// ------------------------------------------------------------------------------------- what is refused

void expect_refused(const Bytes& coded, std::size_t elements, const char* why) {
  EXPECT_THAT([&] { decoded(coded, elements); }, ThrowsMessage<DecodeError>(HasSubstr(why)));
}

TEST(Lossless, NamesWhatIsWrongWithBytes) {
  expect_refused({}, 32, "ends before a unit");
  expect_refused(bytes({2, 0, 0, 0x80, 0b1001}), 32, "ends within a unit");
  expect_refused(bytes({2, 0, 0, 0x80, 0b1001, 0x36, 0}), 32, "goes on after its last unit");
  expect_refused(bytes({33, 0, 0, 0x80}), 32, "more sent elements than elements");
  expect_refused(bytes({2, 0, 0, 0x40, 0, 0, 0, 0, 0}), 32, "not the form that its density asks for");
  expect_refused(bytes({1, 0, 0, 0, 0, 0, 0, 0}), 32, "not the form");
  expect_refused(bytes({2, 0, 0, 0xc0, 0b1001, 0x36}), 32, "not the form");
  expect_refused(bytes({2, 0, 0, 0x80, 0b11001, 0x36}), 32, "more positions");
  expect_refused(bytes({2, 0, 0, 0x80, 0b0001, 0x36}), 32, "fewer positions");
  expect_refused(bytes({2, 0, 0, 0x80, 0b0011, 0x66}), 32, "do not ascend");       // 3, 3
  expect_refused(bytes({2, 0, 0, 0x80, 0b100001, 0x36}), 32, "leave their unit");  // 3, 33
  expect_refused(bytes({5, 0, 0, 0x40, 0x13, 0x03, 0x0a}), 9, "beyond its last element");
  expect_refused(bytes({5, 0, 0, 0x40, 0x13, 0x01, 0x0a}), 9, "not as many ones");
  expect_refused(bytes({5, 0, 0, 0x40, 0xff, 0x01, 0x0a}), 9, "more ones");
}

// Any codes have one coded form; the others would decode to the same.
TEST(Lossless, RefusesBytesThatAreNotTheOneCodedForm) {
  expect_refused(bytes({0, 0, 0, 0, 0x03, 0, 0, 0, 0x20, 0, 0, 0}), 32, "raw though its density asks");
  expect_refused(bytes({0, 0, 0, 0, 0, 0, 0, 0}), 16, "raw though its density asks");
  EXPECT_EQ(decoded(bytes({0, 0, 0, 0, 0xff, 0xaa, 0xff, 0xaa}), 16), bytes({0xff, 0xaa, 0xff, 0xaa}));
  expect_refused(bytes({5, 0, 0, 0x40, 0x33, 0x01, 0x2a}), 9, "signs beyond its last sent element");
  EXPECT_EQ(decoded(bytes({5, 0, 0, 0x40, 0x33, 0x01, 0x0a}), 9), bytes({0xe0, 0xe0, 0xc0, 0}));
  Bytes one(16);
  one[1] = std::byte{0xc0};  // of 64 elements: 3 lower bits and a sign fill half of the last byte
  Bytes coded = encoded(one, 64);
  EXPECT_EQ(coded.size(), 6);
  coded.back() |= std::byte{0x80};
  expect_refused(coded, 64, "bits beyond its last position");
}

TEST(Lossless, RefusesRoomOfAnotherSize) {
  Bytes room(8);
  EXPECT_THROW(encode(room, 33, room), std::invalid_argument);
  EXPECT_THROW(encode(room, 32, room), std::invalid_argument);  // 12 bytes may be needed
  EXPECT_THROW(decode(room, 33, room), std::invalid_argument);
}

}  // namespace
}  // namespace gradwire::compress::lossless
