// Error feedback: steps against the codec's own residual, what is sent and kept, state that is saved, undone
// and forgotten, and what is refused. The arithmetic is compared with the papers' in tests/oracle.
#include "compress/error_feedback.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "compress/dense/dense_scalar.h"
#include "compress/payload/little_endian.h"
#include "tests/compress/codec_cases.h"

namespace gradwire::compress {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kElements = 40'000;  // more than one piece of a widened residual
constexpr ResidualType kTypes[] = {ResidualType::kFp32, ResidualType::kBf16, ResidualType::kInt8};
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Bytes step(ErrorFeedback& feedback, std::span<const float> grad, std::span<const UnitScale> scales = {},
           const Position& position = {}) {
  Bytes out(feedback.codec().max_encoded_size(grad.size()));
  out.resize(feedback.encode(grad, scales, out, position).bytes);
  return out;
}

std::vector<float> residual_of(const ErrorFeedback& feedback) {
  std::vector<float> residual(feedback.elements());
  feedback.copy_residual(residual);
  return residual;
}

Bytes saved(const ErrorFeedback& feedback) {
  Bytes state(feedback.saved_bytes());
  feedback.save(state);
  return state;
}

class EveryCodec : public testing::TestWithParam<std::string> {};

TEST_P(EveryCodec, AFloat32ResidualIsTheCodecsOwn) {
  const auto codec = make(parse_spec(GetParam()));
  ErrorFeedback feedback(*codec, kElements);
  std::vector<float> residual(kElements);
  for (unsigned round = 0; round < 3; ++round) {
    const auto grad = gaussian(kElements, round);
    const auto scales = scales_after_a_round(*codec, grad);
    const Position position{1, 2, round, 0};
    const auto expected = encoded(*codec, grad, residual, scales, nullptr, position);
    ASSERT_EQ(step(feedback, grad, scales, position), expected);
    ASSERT_EQ(residual_of(feedback), residual);
  }
}

TEST_P(EveryCodec, ABfloat16ResidualIsThatRoundedOnceAStep) {
  const auto codec = make(parse_spec(GetParam()));
  if (GetParam().find("mxnet") != std::string::npos) return;  // refused, as RefusesWhatCannotWork says
  ErrorFeedback feedback(*codec, kElements, {.residual = ResidualType::kBf16});
  std::vector<float> residual(kElements);
  for (unsigned round = 0; round < 3; ++round) {
    const auto grad = gaussian(kElements, round);
    const auto scales = scales_after_a_round(*codec, grad);
    const auto expected = encoded(*codec, grad, residual, scales);
    for (float& kept : residual) kept = dense::float_from_bf16(dense::bf16_from_float(kept));
    ASSERT_EQ(step(feedback, grad, scales), expected);
    ASSERT_EQ(residual_of(feedback), residual);
  }
}

TEST_P(EveryCodec, MomentumSendsTheVelocity) {
  const auto codec = make(parse_spec(GetParam()));
  for (const bool nesterov : {false, true}) {
    ErrorFeedback feedback(*codec, 1000, {.momentum = 0.9f, .nesterov = nesterov});
    std::vector<float> residual(1000);
    std::vector<float> velocity(1000);
    for (unsigned round = 0; round < 3; ++round) {
      const auto grad = gaussian(1000, round);
      const auto scales = scales_after_a_round(*codec, grad);
      std::vector<float> given(1000);
      for (std::size_t i = 0; i < given.size(); ++i) {
        velocity[i] = 0.9f * velocity[i] + grad[i];
        given[i] = nesterov ? grad[i] + 0.9f * velocity[i] : velocity[i];
      }
      ASSERT_EQ(step(feedback, grad, scales), encoded(*codec, given, residual, scales));
      ASSERT_EQ(residual_of(feedback), residual);
      ASSERT_THAT(feedback.velocity(), testing::ElementsAreArray(velocity));
    }
  }
}

TEST_P(EveryCodec, AnInt8ResidualIsThatRoundedOnceAStepInBlocksOf64) {
  const auto codec = make(parse_spec(GetParam()));
  if (GetParam().find("mxnet") != std::string::npos) return;  // refused, as RefusesWhatCannotWork says
  const auto rounding = make(parse_spec("int8:block=64"));
  ErrorFeedback feedback(*codec, kElements, {.residual = ResidualType::kInt8});
  std::vector<float> residual(kElements);
  for (unsigned round = 0; round < 3; ++round) {
    const auto grad = gaussian(kElements, round);
    const auto scales = scales_after_a_round(*codec, grad);
    const auto expected = encoded(*codec, grad, residual, scales);
    rounding->decode(encoded(*rounding, residual, {}, {}), residual);
    ASSERT_EQ(step(feedback, grad, scales), expected);
    ASSERT_EQ(residual_of(feedback), residual);
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryCodec, testing::ValuesIn(specs_under_test()), [](const auto& info) {
  std::string name;
  for (char c : info.param) name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
});

TEST(ErrorFeedback, MaskingClearsTheVelocityOfWhatWasSent) {
  const auto codec = make(parse_spec("topk:ratio=0.1"));
  ErrorFeedback feedback(*codec, 1000, {.momentum = 0.9f, .factor_masking = true});
  const auto grad = gaussian(1000, 1);
  std::vector<float> sent(1000);
  codec->decode(step(feedback, grad), sent);
  std::size_t cleared = 0;
  for (std::size_t i = 0; i < sent.size(); ++i) {
    EXPECT_EQ(feedback.velocity()[i], sent[i] != 0 ? 0.0f : grad[i]);
    cleared += sent[i] != 0 ? 1u : 0u;
  }
  EXPECT_EQ(cleared, 100u);
}

TEST(ErrorFeedback, WhatIsNotFiniteEntersNeitherResidualNorVelocity) {
  const auto codec = make(parse_spec("2bit:threshold=0.5"));
  for (const ResidualType type : {ResidualType::kFp32, ResidualType::kBf16}) {
    ErrorFeedback feedback(*codec, 4, {.residual = type, .momentum = 0.5f});
    step(feedback, std::vector<float>{.25f, .25f, .25f, .25f});
    Bytes out(codec->max_encoded_size(4));
    const float inf = std::numeric_limits<float>::infinity();
    EXPECT_TRUE(feedback.encode(std::vector<float>{kNan, inf, -inf, 0}, {}, out).nonfinite);
    EXPECT_EQ(residual_of(feedback), (std::vector<float>{.25f, .25f, .25f, .375f}));
    EXPECT_THAT(feedback.velocity(), testing::ElementsAre(.25f, .25f, .25f, .125f));
  }
}

TEST(ErrorFeedback, MeasuresTheLastStep) {
  const auto codec = make(parse_spec("2bit:threshold=3"));
  ErrorFeedback feedback(*codec, 4);
  const Bytes payload = step(feedback, std::vector<float>{3, 1, -5, 0});
  const ErrorFeedbackMetrics metrics = feedback.measure(payload);  // sends 3, 0, -3, 0, keeps 0, 1, -2, 0
  EXPECT_DOUBLE_EQ(metrics.residual_norm, std::sqrt(5.0));
  EXPECT_DOUBLE_EQ(metrics.given_norm, std::sqrt(35.0));
  EXPECT_DOUBLE_EQ(metrics.share_sent, 1 - 5.0 / 35.0);
  EXPECT_EQ(metrics.sent_elements, 2u);
  ErrorFeedback quiet(*codec, 4);
  EXPECT_EQ(quiet.measure(step(quiet, std::vector<float>(4))).share_sent, 1);
}

TEST(ErrorFeedback, RollsBackOneStep) {
  const auto codec = make(parse_spec("int8"));
  for (const ResidualType type : kTypes) {
    ErrorFeedback feedback(*codec, 500, {.residual = type, .momentum = 0.9f, .can_roll_back = true});
    step(feedback, gaussian(500, 1));
    const Bytes before = saved(feedback);
    const Bytes payload = step(feedback, gaussian(500, 2));
    const Bytes after = saved(feedback);
    ASSERT_NE(after, before);
    feedback.roll_back();
    EXPECT_EQ(saved(feedback), before);
    EXPECT_THAT([&] { feedback.roll_back(); },
                ThrowsMessage<std::logic_error>(HasSubstr("rolled back once")));
    EXPECT_EQ(step(feedback, gaussian(500, 2)), payload);
    EXPECT_EQ(saved(feedback), after);
  }
  ErrorFeedback forgetful(*codec, 500);
  step(forgetful, gaussian(500, 1));
  EXPECT_THAT([&] { forgetful.roll_back(); }, ThrowsMessage<std::logic_error>(HasSubstr("can_roll_back")));
}

TEST(ErrorFeedback, GoesOnFromASavedStateWithTheSameBits) {
  const auto codec = make(parse_spec("2bit"));
  for (const ResidualType type : kTypes) {
    const ErrorFeedbackOptions options{.residual = type, .momentum = 0.9f};
    ErrorFeedback first(*codec, 500, options);
    step(first, gaussian(500, 1));
    ErrorFeedback second(*codec, 500, options);
    second.load(saved(first));
    EXPECT_EQ(step(second, gaussian(500, 2)), step(first, gaussian(500, 2)));
    EXPECT_EQ(saved(second), saved(first));
    second.reset();
    EXPECT_EQ(saved(second), saved(ErrorFeedback(*codec, 500, options)));
  }
}

// As compress/FORMAT.md has it.
TEST(ErrorFeedback, SavesTheseBytes) {
  const auto codec = make(parse_spec("2bit:threshold=3"));
  ErrorFeedback feedback(*codec, 2, {.residual = ResidualType::kBf16, .momentum = 0.5f});
  step(feedback, std::vector<float>{1, -4});
  const Bytes state = saved(feedback);
  std::string hex;
  for (std::byte b : state) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex += kDigits[std::to_integer<unsigned>(b) >> 4];
    hex += kDigits[std::to_integer<unsigned>(b) & 15];
  }
  EXPECT_EQ(hex,
            "47454631"
            "01010000"
            "0200000000000000"
            "803f80bf"
            "0000803f000080c0");
}

TEST(ErrorFeedback, RefusesAStateOfAnotherKind) {
  const auto codec = make(parse_spec("2bit"));
  ErrorFeedback feedback(*codec, 8);
  step(feedback, gaussian(8, 1));
  const Bytes before = saved(feedback);
  const auto refused = [&](const Bytes& state) {
    EXPECT_THAT(
        [&] { feedback.load(state); },
        ThrowsMessage<DecodeError>(HasSubstr("8 elements with a residual in fp32, without momentum")));
    EXPECT_EQ(saved(feedback), before);
  };
  refused({});
  refused(saved(ErrorFeedback(*codec, 9)));
  refused(saved(ErrorFeedback(*codec, 16, {.residual = ResidualType::kBf16})));
  refused(saved(ErrorFeedback(*codec, 4, {.momentum = 0.5f})));
  Bytes longer = before;
  longer.push_back(std::byte{0});
  refused(longer);
}

TEST(ErrorFeedback, AStepThatThrowsChangesNothing) {
  const auto codec = make(parse_spec("2bit:threshold=auto"));
  const std::size_t elements = kUnitElements + 100;
  for (const ResidualType type : kTypes) {
    for (const bool masking : {false, true}) {
      ErrorFeedback feedback(
          *codec, elements,
          {.residual = type, .momentum = 0.9f, .factor_masking = masking, .can_roll_back = true});
      const auto grad = gaussian(elements, 1);
      std::vector<UnitScale> scales = scales_after_a_round(*codec, grad);
      step(feedback, grad, scales);
      const Bytes before = saved(feedback);
      scales[1].level = kNan;  // that of the first unit could be taken
      EXPECT_THROW(step(feedback, grad, scales), std::invalid_argument);
      EXPECT_EQ(saved(feedback), before);
      EXPECT_THROW(step(feedback, grad, std::span(scales).first(1)), std::invalid_argument);
      EXPECT_EQ(saved(feedback), before);
      EXPECT_THROW(feedback.roll_back(), std::logic_error);
      EXPECT_EQ(saved(feedback), before);
    }
  }
}

TEST(ErrorFeedback, RefusesAStateThatIsNotFinite) {
  const auto codec = make(parse_spec("2bit"));
  const float inf = std::numeric_limits<float>::infinity();
  for (const float bad : {kNan, inf, -inf}) {
    ErrorFeedback feedback(*codec, 8, {.momentum = 0.5f});
    step(feedback, gaussian(8, 1));
    const Bytes before = saved(feedback);
    const auto refused = [&](std::size_t offset, const char* why) {
      Bytes state = before;
      store(bad, state.data() + offset);
      EXPECT_THAT([&] { feedback.load(state); }, ThrowsMessage<DecodeError>(HasSubstr(why)));
      EXPECT_EQ(saved(feedback), before);
    };
    refused(16 + 4 * 3, "2bit: element 3 of the saved residual is ");
    refused(16 + 4 * (8 + 7), "2bit: element 7 of the saved velocity is ");
  }
  ErrorFeedback half(*codec, 8, {.residual = ResidualType::kBf16});
  Bytes state = saved(half);
  store(std::uint16_t{0xff80}, state.data() + 16 + 2 * 5);
  EXPECT_THAT([&] { half.load(state); },
              ThrowsMessage<DecodeError>(HasSubstr("element 5 of the saved residual is -inf")));
  ErrorFeedback quarter(*codec, 70, {.residual = ResidualType::kInt8});
  step(quarter, gaussian(70, 1, 0.1f));
  state = saved(quarter);
  store(kNan, state.data() + 16 + 4);  // the scale of the second block
  EXPECT_THAT([&] { quarter.load(state); },
              ThrowsMessage<DecodeError>(HasSubstr("element 64 of the saved residual is nan")));
  const auto mxnet = make(parse_spec("2bit:nonfinite=mxnet"));
  ErrorFeedback sticky(*mxnet, 2);
  step(sticky, std::vector<float>{kNan, 1});
  ErrorFeedback other(*mxnet, 2);
  other.load(saved(sticky));
  EXPECT_TRUE(std::isnan(residual_of(other)[0]));
}

TEST(ErrorFeedback, RefusesWhatCannotWork) {
  const auto codec = make(parse_spec("2bit:nonfinite=mxnet"));
  const auto refused = [&](std::size_t elements, const ErrorFeedbackOptions& options, const char* why) {
    EXPECT_THAT([&] { ErrorFeedback(*codec, elements, options); },
                ThrowsMessage<std::invalid_argument>(HasSubstr(why)));
  };
  refused(0, {}, "0 elements");
  refused(1, {.momentum = 1}, "outside [0, 1)");
  refused(1, {.momentum = -0.1f}, "outside [0, 1)");
  refused(1, {.momentum = kNan}, "outside [0, 1)");
  refused(1, {.nesterov = true}, "without momentum");
  refused(1, {.factor_masking = true}, "without momentum");
  refused(1, {.residual = ResidualType::kInt8}, "a residual in int8 cannot keep NaN");
  EXPECT_THAT([] { residual_type("fp61"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("fp32, bf16, int8")));
  ErrorFeedback feedback(*codec, 16);
  Bytes out(4);
  const std::vector<float> grad(17, 1.0f);
  EXPECT_THROW(feedback.encode(grad, {}, out), std::invalid_argument);
  EXPECT_THROW(feedback.encode(std::span(grad).first(16), {}, std::span(out).first(3)),
               std::invalid_argument);
  EXPECT_EQ(residual_of(feedback), std::vector<float>(16));
}

}  // namespace
}  // namespace gradwire::compress
