// The frame header: golden bytes, round trip, and every way in which bytes can be wrong.
#include "transport/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

#include "tests/test_options.h"

namespace gradwire::transport {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The worked example of transport/PROTOCOL.md; made with Python's struct and zlib.crc32.
constexpr const char* kGoldenHex =
    "47525731012103010201000001000000efcdab896745230101000003f9ffffff"
    "2a00000000000000e80300000000000000100000000000001000000000000000"
    "0000003f0000000000000000090000000400000000000000abebc53cc5070905"
    "00000000000000000000000000000000";

FrameHeader golden_header() {
  FrameHeader header;
  header.kind = Kind::kPush;
  header.codec = 3;
  header.dtype = 1;
  header.reply = 2;
  header.content = 1;
  header.flags = kFlagNonfinite;
  header.epoch = 0x0123456789ABCDEF;
  header.sender = {Role::kWorker, 1};
  header.priority = -7;
  header.key = 42;
  header.step = 1000;
  header.offset = 4096;
  header.count = 16;
  header.codec_parameters = {0x3F000000, 0, 0, 9};
  return header;
}

std::vector<std::byte> golden_payload() {
  std::vector<std::byte> payload(4);
  for (const int i : {0, 1, 2, 3}) payload[static_cast<std::size_t>(i)] = static_cast<std::byte>(0xC0 + i);
  return payload;
}

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    constexpr const char* kDigits = "0123456789abcdef";
    text += kDigits[std::to_integer<int>(byte) >> 4];
    text += kDigits[std::to_integer<int>(byte) & 15];
  }
  return text;
}

std::string error_of(std::span<const std::byte> header, std::span<const std::byte> payload) {
  try {
    decode_header(header, payload);
  } catch (const FrameError& error) {
    return error.what();
  }
  return "no error";
}

// Reference CRC-32 (reflected 0xEDB88320, as zlib's), bit by bit.
std::uint32_t crc32_by_bits(std::span<const std::byte> bytes) {
  std::uint32_t crc = 0xFFFFFFFF;
  for (const std::byte byte : bytes) {
    crc ^= std::to_integer<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320 : 0);
  }
  return ~crc;
}

// Changes a field and puts the header checksum right again, so that the field itself is judged.
template <typename T>
std::array<std::byte, kHeaderBytes> forged(std::size_t at, T value) {
  auto bytes = encode_header(golden_header(), golden_payload());
  std::memcpy(bytes.data() + at, &value, sizeof(value));
  const std::uint32_t zero = 0;
  std::memcpy(bytes.data() + 92, &zero, 4);
  const std::uint32_t crc = crc32_by_bits(bytes);
  std::memcpy(bytes.data() + 92, &crc, 4);
  return bytes;
}

TEST(Frame, HeaderHasTheGoldenBytes) {
  EXPECT_EQ(hex(encode_header(golden_header(), golden_payload())), kGoldenHex);
}

TEST(Frame, TheProtocolShowsTheGoldenBytes) {
  std::ifstream file(test_options().source_dir + "/transport/PROTOCOL.md");
  ASSERT_TRUE(file) << "give --source-dir=FOLDER";
  std::string text((std::istreambuf_iterator<char>(file)), {});
  std::erase_if(text, [](unsigned char c) { return std::isspace(c) != 0; });
  EXPECT_THAT(text, HasSubstr(kGoldenHex));
}

TEST(Frame, DecodeGivesBackWhatWasEncoded) {
  const auto bytes = encode_header(golden_header(), golden_payload());
  EXPECT_EQ(decode_header(bytes, golden_payload()), golden_header());
}

TEST(Frame, TheProgramsStepIsAtItsPlace) {
  FrameHeader header = golden_header();
  header.program_step = 0xA1B2C3D4;
  const auto bytes = encode_header(header, golden_payload());
  EXPECT_EQ(hex(std::span(bytes).subspan(96, 4)), "d4c3b2a1");
  EXPECT_EQ(decode_header(bytes, golden_payload()), header);
}

TEST(Frame, EmptyPayloadHasChecksumZero) {
  const auto bytes = encode_header(golden_header(), {});
  EXPECT_EQ(hex(std::span(bytes).subspan(80, 12)), "000000000000000000000000");
  EXPECT_EQ(decode_header(bytes, {}), golden_header());
}

TEST(Frame, EveryBitFlipOfHeaderOrPayloadIsNoticed) {
  const auto bytes = encode_header(golden_header(), golden_payload());
  for (std::size_t bit = 0; bit < kHeaderBytes * 8; ++bit) {
    auto broken = bytes;
    broken[bit / 8] ^= std::byte{1} << bit % 8;
    EXPECT_THROW(decode_header(broken, golden_payload()), FrameError) << "bit " << bit;
  }
  for (std::size_t bit = 0; bit < 32; ++bit) {
    auto broken = golden_payload();
    broken[bit / 8] ^= std::byte{1} << bit % 8;
    EXPECT_THAT(error_of(bytes, broken), HasSubstr("payload checksum")) << "bit " << bit;
  }
}

Frame golden_frame() {
  Frame frame{golden_header(), Buffer::allocate(4)};
  std::memcpy(frame.payload.bytes().data(), golden_payload().data(), 4);
  return frame;
}

TEST(Frame, ASealTravelsInTheHeaderAsItIs) {
  Frame frame = golden_frame();
  frame.payload.seal();
  EXPECT_EQ(hex(encode_header(frame)), kGoldenHex);
  frame.payload.seal(7);
  EXPECT_EQ(open_header(encode_header(frame), 4).checksum, 7U);
}

TEST(Frame, WithoutASealTheHeaderSaysSoAndNothingIsCompared) {
  const auto bytes = encode_header(golden_frame());
  EXPECT_EQ(hex(std::span(bytes).subspan(12, 4)), "03000000");
  EXPECT_EQ(hex(std::span(bytes).subspan(88, 4)), "00000000");
  const OpenedHeader opened = open_header(bytes, 4);
  EXPECT_EQ(opened.checksum, std::nullopt);
  EXPECT_EQ(opened.header, golden_header());
  EXPECT_EQ(decode_header(bytes, std::vector<std::byte>(4)), golden_header());
}

TEST(Frame, AnEmptyPayloadNeedsNoSeal) {
  Frame frame;
  frame.header = golden_header();
  EXPECT_EQ(encode_header(frame), encode_header(golden_header(), {}));
}

TEST(Frame, TruncatedHeaderIsRefused) {
  const auto bytes = encode_header(golden_header(), golden_payload());
  for (std::size_t length = 0; length < kHeaderBytes; ++length) {
    EXPECT_THAT(error_of(std::span(bytes).first(length), golden_payload()),
                HasSubstr("header length is " + std::to_string(length) + ", expected 112"));
  }
}

TEST(Frame, ErrorsNameTheFieldWhatWasGivenAndWhatWasExpected) {
  const auto payload = golden_payload();
  EXPECT_THAT(error_of(forged(0, std::uint32_t{7}), payload), HasSubstr("magic is 7, expected 827806279"));
  EXPECT_THAT(error_of(forged(4, std::uint8_t{9}), payload), HasSubstr("version is 9, expected 1"));
  EXPECT_THAT(error_of(forged(5, std::uint8_t{0}), payload),
              HasSubstr("kind is 0, expected one of 1-10, 32-53, 60-69"));
  EXPECT_THAT(error_of(forged(5, std::uint8_t{11}), payload), HasSubstr("kind is 11"));
  EXPECT_THAT(error_of(forged(5, std::uint8_t{31}), payload), HasSubstr("kind is 31"));
  EXPECT_THAT(error_of(forged(5, std::uint8_t{54}), payload), HasSubstr("kind is 54"));
  for (std::uint8_t kind = 32; kind <= 53; ++kind) EXPECT_EQ(error_of(forged(5, kind), payload), "no error");
  EXPECT_THAT(error_of(forged(10, std::uint16_t{1}), payload),
              HasSubstr("reserved field at 10 is 1, expected 0"));
  EXPECT_THAT(error_of(forged(103, std::uint8_t{9}), payload),
              HasSubstr("role on whose behalf is 9, expected"));
  EXPECT_THAT(error_of(forged(27, std::uint8_t{0}), payload), HasSubstr("sender role is 0, expected"));
  EXPECT_THAT(error_of(forged(27, std::uint8_t{4}), payload), HasSubstr("sender role is 4"));
  EXPECT_THAT(error_of(forged(12, std::uint32_t{3}), payload),
              AllOf(HasSubstr("absent payload checksum is 1019603883"), HasSubstr("expected 0")));
  EXPECT_THAT(error_of(forged(80, std::uint64_t{1} << 63), payload),
              AllOf(HasSubstr("payload length is 9223372036854775808"), HasSubstr("expected 4")));
}

TEST(Frame, ChecksumsOfEveryLengthEqualTheReference) {
  std::vector<std::byte> payload;
  for (std::size_t length = 1; length <= 300; ++length) {
    payload.push_back(static_cast<std::byte>(length * 37));
    const auto bytes = encode_header(golden_header(), payload);
    std::uint32_t crc = 0;
    std::memcpy(&crc, bytes.data() + 88, 4);
    ASSERT_EQ(crc, crc32_by_bits(payload)) << "length " << length;
  }
}

TEST(Frame, TheLengthOfThePayloadIsReadFromACheckedHeader) {
  const std::vector<std::byte> payload(1234, std::byte{7});
  auto bytes = encode_header(golden_header(), payload);
  EXPECT_EQ(payload_bytes_of(bytes), 1234u);
  bytes[80] ^= std::byte{1};
  EXPECT_THROW(payload_bytes_of(bytes), FrameError);
  EXPECT_THROW(payload_bytes_of(std::span(bytes).first(100)), FrameError);
}

TEST(Frame, NodesHaveNamesForPeople) {
  EXPECT_EQ(to_string(Node{Role::kWorker, 3}), "worker 3");
  EXPECT_EQ(to_string(Node{Role::kServer, 0}), "server 0");
  EXPECT_EQ(to_string(Node{Role::kScheduler, 0}), "scheduler");
}

}  // namespace
}  // namespace gradwire::transport
