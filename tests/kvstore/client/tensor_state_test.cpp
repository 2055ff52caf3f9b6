#include "kvstore/client/tensor_state.h"

#include <gtest/gtest.h>

#include <random>

namespace gradwire::kvstore {
namespace {

const TensorState kState{5, {1, -0.0F, 3}, {{0.25F, 0.5F}}, "2bit reply=1"};

TEST(TensorState, ComesBackAsItWas) {
  for (const TensorState& state : {kState, TensorState{}, TensorState{1, {}, {{1, 1}, {2, 2}}, "x"}})
    EXPECT_EQ(decode_tensor_state(encode_state(state), 3), state);
}

TEST(TensorState, OtherLengthsAreRefused) {
  const auto bytes = encode_state(kState);
  for (std::size_t length = 0; length < bytes.size(); ++length)
    EXPECT_THROW(decode_tensor_state(std::span(bytes).first(length), 3), compress::DecodeError) << length;
  EXPECT_THROW(decode_tensor_state(bytes, 4), compress::DecodeError);
}

TEST(TensorState, TheStepIsReadFromTheFirstBytes) {
  const auto bytes = encode_state(kState);
  EXPECT_EQ(step_of(std::span(bytes).first(kStepBytes)), 5U);
  EXPECT_THROW(step_of(std::span(bytes).first(kStepBytes - 1)), compress::DecodeError);
  const std::vector<std::byte> none_of_ours(kStepBytes, std::byte{0xff});
  EXPECT_THROW(step_of(none_of_ours), compress::DecodeError);
}

TEST(TensorState, HostileHeadsAreRefusedOrMeanWhatTheySay) {
  std::mt19937 random(4);
  const auto good = encode_state(kState);
  for (int round = 0; round < 5000; ++round) {
    auto bytes = good;
    for (int change = 0; change < 3; ++change) bytes[random() % 32] = static_cast<std::byte>(random());
    try {
      EXPECT_EQ(encode_state(decode_tensor_state(bytes, 3)), bytes);
    } catch (const compress::DecodeError&) {  // NOLINT(bugprone-empty-catch): what it should be
    }
  }
}

}  // namespace
}  // namespace gradwire::kvstore
