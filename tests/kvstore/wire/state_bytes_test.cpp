#include "kvstore/wire/state_bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace gradwire::kvstore {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(StateBytes, LieOneBehindTheOtherLittleEndian) {
  StateWriter to;
  to.put(std::uint16_t{0x0102}).put(std::vector<std::uint8_t>{7, 8}).put(std::string("z"));
  EXPECT_THAT(std::move(to).bytes(),
              ElementsAre(std::byte{2}, std::byte{1}, std::byte{7}, std::byte{8}, std::byte{'z'}));
}

TEST(StateBytes, AreReadAsTheyWereWritten) {
  StateWriter to(64);
  const std::vector<float> floats{1, -2.5F};
  to.put(std::uint64_t{1} << 40).put(floats).put(std::uint32_t{9});
  const transport::Buffer buffer = std::move(to).buffer();
  EXPECT_EQ(buffer.size_bytes(), 20);
  StateReader from("state", buffer.bytes(), 8);
  EXPECT_EQ(from.get<std::uint64_t>(), std::uint64_t{1} << 40);
  EXPECT_EQ(from.array<float>(2), floats);
  EXPECT_EQ(from.left(), 4);
  EXPECT_EQ(from.get<std::uint32_t>(), 9);
  EXPECT_TRUE(from.array<float>(0).empty());
}

TEST(StateBytes, FewerThanAHeadAreRefused) {
  const std::vector<std::byte> seven(7);
  EXPECT_THAT([&] { StateReader("row state", seven, 8); },
              ThrowsMessage<compress::DecodeError>("row state: 7 bytes given, expected at least 8"));
}

TEST(StateBytes, AreNeverReadBeyondTheirEnd) {
  const std::vector<std::byte> twelve(12);
  StateReader from("state", twelve, 8);
  EXPECT_THAT([&] { from.array<float>(std::uint64_t{1} << 63); },
              ThrowsMessage<compress::DecodeError>(HasSubstr("12 bytes are left")));
  from.get<std::uint64_t>();
  EXPECT_THROW(from.get<std::uint64_t>(), compress::DecodeError);
}

}  // namespace
}  // namespace gradwire::kvstore
