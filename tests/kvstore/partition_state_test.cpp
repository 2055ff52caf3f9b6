#include "kvstore/partition_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "compress/codec.h"
#include "compress/little_endian.h"

namespace gradwire::kvstore {
namespace {

std::vector<std::byte> bytes_of(const PartitionState& state) {
  const transport::Buffer buffer = encode_state(state);
  return {buffer.bytes().begin(), buffer.bytes().end()};
}

PartitionState full() { return {7, {1, -0.0F, 3}, {0.5F, 0, -1}, {{1, 2, 3, 4, 5, 6}, 9}, {1, 0.5F, 2}}; }

TEST(PartitionState, ComesBackAsItWas) {
  for (const PartitionState& state :
       {full(), PartitionState{}, PartitionState{3, {}, {1, 2, 3}, {}},
        PartitionState{1, {4, 5, 6}, {}, {{}, 2}}, PartitionState{1, {4, 5, 6}, {}, {}, {4, 5, 7}}}) {
    EXPECT_EQ(decode_partition_state(bytes_of(state), 3), state);
  }
}

// The bytes of README.md, "States".
TEST(PartitionState, HasTheBytesThatAreWrittenDown) {
  const auto bytes = bytes_of({2, {1}, {-2}, {{0.5F}, 3}, {1.5F}});
  ASSERT_EQ(bytes.size(), 24U + 16U);
  EXPECT_EQ(compress::load<std::uint64_t>(bytes.data()), 2U);
  EXPECT_EQ(compress::load<std::uint64_t>(bytes.data() + 8), 3U);
  EXPECT_EQ(compress::load<std::uint32_t>(bytes.data() + 16), 7U);
  EXPECT_EQ(compress::load<std::uint32_t>(bytes.data() + 20), 1U);
  EXPECT_EQ(compress::load<float>(bytes.data() + 24), 1.0F);
  EXPECT_EQ(compress::load<float>(bytes.data() + 28), -2.0F);
  EXPECT_EQ(compress::load<float>(bytes.data() + 32), 0.5F);
  EXPECT_EQ(compress::load<float>(bytes.data() + 36), 1.5F);
}

TEST(PartitionState, NothingIsToldOfAWeightThatIsNotThere) {
  auto bytes = bytes_of({1, {4, 5, 6}, {}, {}});
  compress::store(std::uint32_t{4}, bytes.data() + 16);
  EXPECT_THROW(decode_partition_state(bytes, 3), compress::DecodeError);
}

TEST(PartitionState, OtherLengthsAreRefused) {
  const auto bytes = bytes_of(full());
  for (std::size_t length = 0; length < bytes.size(); ++length)
    EXPECT_THROW(decode_partition_state(std::span(bytes).first(length), 3), compress::DecodeError) << length;
  EXPECT_THROW(decode_partition_state(bytes, 2), compress::DecodeError);
  EXPECT_THROW(decode_partition_state(bytes, std::uint64_t{1} << 40), compress::DecodeError);
  EXPECT_THROW(decode_partition_state(bytes, std::numeric_limits<std::uint64_t>::max()),
               compress::DecodeError);
}

TEST(PartitionState, HostileHeadsAreRefusedOrMeanWhatTheySay) {
  std::mt19937 random(3);
  const auto good = bytes_of(full());
  for (int round = 0; round < 5000; ++round) {
    auto bytes = good;
    for (int change = 0; change < 3; ++change) bytes[random() % 24] = static_cast<std::byte>(random());
    try {
      const PartitionState state = decode_partition_state(bytes, 3);
      EXPECT_EQ(bytes_of(state), bytes);
    } catch (const compress::DecodeError&) {  // NOLINT(bugprone-empty-catch): what it should be
    }
  }
}

}  // namespace
}  // namespace gradwire::kvstore
