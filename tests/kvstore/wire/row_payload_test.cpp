#include "kvstore/wire/row_payload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <set>
#include <string>

#include "compress/codecs.h"

namespace gradwire::kvstore {
namespace {

using compress::DecodeError;
using testing::HasSubstr;
using Bytes = std::vector<std::byte>;
using Ids = std::vector<std::uint64_t>;

constexpr std::uint64_t kEnormous = std::uint64_t{1} << 63;

Bytes written(const RowShape& shape, const Ids& ids, std::size_t row_bytes = 0) {
  Bytes bytes(max_row_head_bytes(ids.size()));
  bytes.resize(write_row_head(shape, ids, bytes));
  bytes.resize(bytes.size() + ids.size() * row_bytes, std::byte{7});
  bytes.shrink_to_fit();  // so that ASan sees one read too many
  return bytes;
}

Bytes from_hex(const std::string& hex) {
  Bytes bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoul(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

std::string refusal(const Bytes& bytes, std::uint64_t count) {
  try {
    open_rows(bytes, count);
  } catch (const DecodeError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(RowPayload, TheBytesAreThoseOfTheReadme) {
  EXPECT_EQ(written({1000, 2}, {3, 4, 300}, 0), from_hex("e803000000000000020000000400000003"
                                                         "00a702"));
}

TEST(RowPayload, EveryIdComesBack) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    const std::uint64_t rows = 1 + random() % (round % 2 == 0 ? 500 : kEnormous);
    std::set<std::uint64_t> drawn{rows - 1};
    for (std::size_t i = random() % 300; i > 0; --i) drawn.insert(random() % rows);
    const Ids ids(drawn.begin(), drawn.end());
    const Bytes bytes = written({rows, 3}, ids, 5);
    const OpenedRows opened = open_rows(bytes, ids.size());
    ASSERT_EQ(opened.shape, (RowShape{rows, 3}));
    ASSERT_EQ(opened.ids, ids);
    ASSERT_EQ(opened.body.size(), 5 * ids.size());
    require_row_bytes(opened.body, ids.size(), 5);
  }
}

TEST(RowPayload, NoRowIsAPayloadToo) {
  const OpenedRows opened = open_rows(written({9, 4}, {}), 0);
  EXPECT_TRUE(opened.ids.empty());
  EXPECT_NO_THROW(require_row_bytes(opened.body, 0, 16));
}

TEST(RowPayload, NeighboursCostAByteEach) {
  Ids ids(1000);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = 50 + 3 * i;
  EXPECT_EQ(written({1'000'000, 4}, ids).size(), 16 + ids.size());
}

TEST(RowPayload, WhatIsNoRowsIsRefusedByName) {
  const Bytes good = written({1000, 2}, {3, 4, 300});
  EXPECT_THAT(refusal({}, 0), HasSubstr("0 bytes given, expected a head of 16"));
  EXPECT_THAT(refusal(good, 2), HasSubstr("are left after those of 2 rows"));
  EXPECT_THAT(refusal(good, 4), HasSubstr("an id ends behind the ids"));
  EXPECT_THAT(refusal(good, kEnormous), HasSubstr("4 bytes of ids given, expected those of"));
  EXPECT_THAT(refusal(written({300, 2}, {3, 4}), 2), "accepted");
  Bytes outside = good;
  outside[1] = std::byte{0};  // a table of 232 rows
  EXPECT_THAT(refusal(outside, 3), HasSubstr("outside a table of 232 rows"));
  Bytes no_rows = good;
  no_rows[0] = no_rows[1] = std::byte{0};
  EXPECT_THAT(refusal(no_rows, 3), HasSubstr("a table of 0 rows"));
  const Bytes cut(good.begin(), good.end() - 1);
  EXPECT_THAT(refusal(cut, 3), HasSubstr("4 bytes of ids announced, 3 bytes follow"));
}

TEST(RowPayload, AnIdHasOneForm) {
  const std::string head =
      "ffffffffffffffff"
      "02000000";
  EXPECT_THAT(refusal(from_hex(head + "02000000"
                                      "8000"),
                      1),
              HasSubstr("written longer than it is"));
  EXPECT_THAT(refusal(from_hex(head + "0a000000"
                                      "ffffffffffffffffff02"),
                      1),
              HasSubstr("more than 64 bits"));
  // A distance that would wrap around to a smaller id is outside every table.
  EXPECT_THAT(refusal(from_hex(head + "0b000000"
                                      "05ffffffffffffffffff01"),
                      2),
              HasSubstr("outside a table"));
}

TEST(RowPayload, RowsOfAnotherLengthAreRefused) {
  const Bytes body(24);
  EXPECT_NO_THROW(require_row_bytes(body, 3, 8));
  EXPECT_THROW(require_row_bytes(body, 3, 7), DecodeError);
  EXPECT_THROW(require_row_bytes(body, 0, 8), DecodeError);
  EXPECT_THROW(require_row_bytes(body, std::size_t{1} << 62, 64), DecodeError);  // whose product is 0
}

TEST(RowPayload, EveryCodecThatAgreesNoScalesSendsRows) {
  for (const auto& entry : compress::codecs())
    EXPECT_TRUE(can_send_rows(*compress::make({std::string(entry.name), {}}))) << entry.name;
  EXPECT_FALSE(can_send_rows(*compress::make(compress::parse_spec("2bit:threshold=auto"))));
}

TEST(RowPayload, DrawnNumbersOfTwoRowsDoNotMeet) {
  EXPECT_EQ(row_position(3, 1, 7, 2, 70'000).offset, 4 * compress::kUnitElements);
  EXPECT_NE(row_position(3, 1, 7, 2, 64), row_position(3, 1, 7, 3, 64));
}

// Hostile bytes: either a DecodeError, or ids that ascend within the table and would be written the same. Run
// under ASan; GRADWIRE_FUZZ_ROUNDS sets the rounds, the seed is fixed.
int fuzz_rounds() {
  const char* const text = std::getenv("GRADWIRE_FUZZ_ROUNDS");
  return text == nullptr ? 4000 : 10 * std::atoi(text);
}

Bytes mutated(Bytes bytes, std::mt19937& random) {
  const auto below = [&](std::size_t bound) { return random() % bound; };
  for (std::size_t edits = below(4); edits > 0 && !bytes.empty(); --edits) {
    const std::size_t at = below(below(2) == 0 ? std::min<std::size_t>(bytes.size(), 24) : bytes.size());
    switch (below(4)) {
      case 0:
        bytes[at] ^= static_cast<std::byte>(1u << below(8));
        break;
      case 1:
        bytes[at] = static_cast<std::byte>(random() & 0xff);
        break;
      case 2:
        for (std::size_t i = at; i < std::min(at + 10, bytes.size()); ++i) bytes[i] = std::byte{0xff};
        break;
      default:
        bytes.resize(below(2) == 0 ? at : bytes.size() + below(30));
    }
  }
  bytes.shrink_to_fit();
  return bytes;
}

TEST(RowPayloadFuzz, OpeningSurvivesHostileBytes) {
  std::mt19937 random(20261122);
  int refused = 0;
  int accepted = 0;
  for (int round = 0; round < fuzz_rounds(); ++round) {
    const std::uint64_t rows = 1 + random() % 5000;
    std::set<std::uint64_t> drawn;
    for (std::size_t i = random() % 40; i > 0; --i) drawn.insert(random() % rows);
    const Ids ids(drawn.begin(), drawn.end());
    const Bytes hostile = mutated(written({rows, 2}, ids, 8), random);
    const std::uint64_t count = random() % 8 == 0 ? random() % 100 : ids.size();
    OpenedRows opened;
    try {
      opened = open_rows(hostile, count);
      ++accepted;
    } catch (const DecodeError& error) {
      EXPECT_NE(std::string(error.what()), "");
      ++refused;
      continue;
    }
    ASSERT_EQ(opened.ids.size(), count);
    for (std::size_t i = 0; i < opened.ids.size(); ++i) {
      ASSERT_LT(opened.ids[i], opened.shape.rows);
      ASSERT_TRUE(i == 0 || opened.ids[i - 1] < opened.ids[i]);
    }
    const Bytes again = written(opened.shape, opened.ids);
    ASSERT_TRUE(std::equal(again.begin(), again.end(), hostile.begin()));
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace gradwire::kvstore
