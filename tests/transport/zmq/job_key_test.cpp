#include "transport/zmq/job_key.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <stdexcept>

namespace gradwire::transport {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// RFC 7748, section 6.1: Alice's private key and Bob's, and their public ones.
const std::string kAlice = "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a";
const std::string kAlicePublic = "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a";
const std::string kBob = "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb";
const std::string kBobPublic = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f";

std::string hex(const CurveKey& key) {
  std::string text;
  for (const std::byte byte : key) {
    for (const int half : {std::to_integer<int>(byte) >> 4, std::to_integer<int>(byte) & 15})
      text += "0123456789abcdef"[half];
  }
  return text;
}

std::string fault_of_key(const std::string& text) {
  try {
    JobKey::parse(text);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST(JobKey, IsWhatItsTextSays) {
  const JobKey key = JobKey::make();
  EXPECT_EQ(key.text().size(), 128u);
  EXPECT_EQ(JobKey::parse(key.text()), key);
}

TEST(JobKey, IsANewOneEveryTime) { EXPECT_NE(JobKey::make().text(), JobKey::make().text()); }

TEST(JobKey, IsReadInCapitalsToo) {
  const std::string text = JobKey::make().text();
  std::string capitals;
  for (const char c : text) capitals += static_cast<char>(std::toupper(c));
  EXPECT_EQ(JobKey::parse(capitals).text(), text);
}

TEST(JobKey, WhatIsNoneIsRefusedAndNotRepeated) {
  const std::string good = JobKey::make().text();
  for (const std::string& bad :
       {std::string(), good.substr(1), good + "0", good.substr(0, 127) + "g", std::string(128, ' ')}) {
    EXPECT_THAT(fault_of_key(bad),
                AllOf(HasSubstr(std::to_string(bad.size()) + " characters"),
                      HasSubstr("expected 128 hexadecimal digits"), Not(HasSubstr(good.substr(8, 16)))));
  }
}

TEST(JobKey, HasThePublicKeysThatTheRfcDerives) {
  const JobKey key = JobKey::parse(kAlice + kBob);
  EXPECT_EQ(hex(key.of_listeners().public_key), kAlicePublic);
  EXPECT_EQ(hex(key.of_connectors().public_key), kBobPublic);
  EXPECT_EQ(hex(key.of_listeners().secret_key), kAlice);
}

}  // namespace
}  // namespace gradwire::transport
