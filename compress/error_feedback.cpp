#include "compress/error_feedback.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <string>

#include "compress/block/block_kernels.h"
#include "compress/codecs.h"
#include "compress/dense/halves.h"
#include "compress/payload/bf16_residuals.h"
#include "compress/payload/float_bits.h"
#include "compress/payload/little_endian.h"
#include "compress/payload/parameters.h"
#include "compress/payload/payloads.h"
#include "compress/suggestions.h"

namespace gradwire::compress {
namespace {

constexpr std::uint32_t kMagic = 0x31464547;  // "GEF1"
constexpr std::size_t kHeadBytes = 16;        // magic, residual type, has velocity, 2 zeros, elements

// Of an int8 residual: elements whose residuals are within 1/254 of each other's, at 1/16 byte an element.
constexpr std::size_t kBlock = 64;
constexpr block::Code kCode = block::Code::kInt8;

constexpr std::array<std::string_view, 3> kResidualTypes{"fp32", "bf16", "int8"};

std::string_view name_of(ResidualType residual) { return kResidualTypes[static_cast<std::size_t>(residual)]; }

void require(bool holds, const Codec& codec, const std::string& text) {
  if (!holds) throw std::invalid_argument("error feedback of " + std::string(codec.name()) + ": " + text);
}

void validate(const Codec& codec, std::size_t elements, const ErrorFeedbackOptions& options) {
  require(elements > 0, codec, "0 elements given, expected at least 1");
  require(options.momentum >= 0 && options.momentum < 1, codec,
          "momentum=" + std::to_string(options.momentum) + " is outside [0, 1)");
  require(options.momentum > 0 || !(options.nesterov || options.factor_masking), codec,
          "nesterov or factor masking without momentum; give a momentum above 0, or leave them out");
  // An int8 residual would take the scale of a block from an infinity.
  require(options.residual != ResidualType::kInt8 || !keeps_nonfinite(codec), codec,
          "a residual in int8 cannot keep NaN as nonfinite=mxnet does; use residual fp32 or bf16, or "
          "nonfinite=skip");
}

std::size_t scale_bytes(std::size_t elements) { return block::scale_count(elements, kBlock) * sizeof(float); }

std::size_t narrow_bytes(ResidualType type, std::size_t elements) {
  if (type == ResidualType::kFp32) return 0;
  return type == ResidualType::kBf16 ? 2 * elements
                                     : scale_bytes(elements) + block::code_bytes(kCode, elements);
}

void widen(ResidualType type, std::span<const std::byte> from, std::span<float> to) {
  if (type == ResidualType::kInt8) {
    return block::decode(kCode, kBlock, from.data(), from.data() + scale_bytes(to.size()), to.size(), false,
                         to.data());
  }
  dense::floats_from_halves(dense::Format::kBf16, from, to);
}

/// Requires finite residuals for int8.
void narrow(ResidualType type, std::span<const float> from, std::span<std::byte> to) {
  if (type == ResidualType::kInt8) {
    block::encode(kCode, kBlock, from.data(), nullptr, from.size(), to.data(),
                  to.data() + scale_bytes(from.size()));
  } else {
    dense::bf16_from_residuals(from, to);
  }
}

double squared(double value) { return value * value; }

using Head = std::array<std::byte, kHeadBytes>;

Head head_of(ResidualType residual, bool has_velocity, std::size_t elements) {
  Head head{};
  // The two zero bytes at 6 come from head{}.
  store(kMagic, head.data());
  store(residual, head.data() + 4);
  store(static_cast<std::uint8_t>(has_velocity), head.data() + 5);
  store(static_cast<std::uint64_t>(elements), head.data() + 8);
  return head;
}

}  // namespace

ResidualType residual_type(std::string_view name) {
  for (std::size_t i = 0; i < kResidualTypes.size(); ++i) {
    if (name == kResidualTypes[i]) return static_cast<ResidualType>(i);
  }
  throw std::invalid_argument("error feedback: residual=\"" + std::string(name) + "\" is unknown; " +
                              did_you_mean(name, kResidualTypes) + "valid: " + join(kResidualTypes));
}

ErrorFeedback::ErrorFeedback(const Codec& codec, std::size_t elements, const ErrorFeedbackOptions& options)
    : codec_(codec), elements_(elements), options_(options) {
  validate(codec, elements, options);
  if (options.residual == ResidualType::kFp32) {
    state_.residual.resize(elements);
  } else {
    state_.narrow.resize(narrow_bytes(options.residual, elements));
    // A fused codec reads the narrow residual itself.
    if (fused() == nullptr) widened_.resize(elements);
  }
  if (options.momentum > 0) {
    state_.velocity.resize(elements);
    given_.resize(elements);
  }
  if (options.can_roll_back) before_ = state_;
}

Encoded ErrorFeedback::encode(std::span<const float> grad, std::span<const UnitScale> scales,
                              std::span<std::byte> out, const Position& position) {
  require(
      grad.size() == elements_, codec_,
      "the gradient has " + std::to_string(grad.size()) + " elements, expected " + std::to_string(elements_));
  // Before the state is touched: a call that is refused is no step.
  expect_encode_spans(codec_.name(), elements_, elements_, out.size(), codec_.max_encoded_size(elements_));
  has_step_ = false;  // until the codec has taken the step
  if (options_.can_roll_back) before_ = state_;
  const auto given = options_.momentum > 0 ? accelerated(grad) : grad;
  const Encoded encoded = options_.residual == ResidualType::kFp32
                              ? codec_.encode(given, state_.residual, scales, out, position)
                              : encode_narrow(given, scales, out, position);
  if (options_.momentum > 0) keep_velocity(grad, out.first(encoded.bytes));
  has_step_ = options_.can_roll_back;
  return encoded;
}

/// The codec's own pass for this residual, if there is one.
const Bf16Residuals* ErrorFeedback::fused() const noexcept {
  return options_.residual == ResidualType::kBf16 ? codec_.bf16_residuals() : nullptr;
}

std::span<const float> ErrorFeedback::accelerated(std::span<const float> grad) {
  const float momentum = options_.momentum;
  for (std::size_t i = 0; i < elements_; ++i) {
    // Not written to the state yet: the codec may refuse the step.
    const float velocity = momentum * state_.velocity[i] + grad[i];
    given_[i] = options_.nesterov ? grad[i] + momentum * velocity : velocity;
  }
  return given_;
}

/// After the codec, which may throw.
void ErrorFeedback::keep_velocity(std::span<const float> grad, Payload sent) {
  for (std::size_t i = 0; i < elements_; ++i) {
    const float velocity = options_.momentum * state_.velocity[i] + grad[i];
    // An infinity would stay in the velocity for ever.
    state_.velocity[i] = is_finite(velocity) ? velocity : state_.velocity[i];
  }
  // Factor masking of Lin et al. 2018 (deep gradient compression): what was sent begins its momentum anew.
  if (!options_.factor_masking) return;
  codec_.decode(sent, given_);
  for (std::size_t i = 0; i < elements_; ++i) {
    state_.velocity[i] = given_[i] != 0 ? 0 : state_.velocity[i];
  }
}

Encoded ErrorFeedback::encode_narrow(std::span<const float> given, std::span<const UnitScale> scales,
                                     std::span<std::byte> out, const Position& position) {
  if (fused() != nullptr) return fused()->encode_bf16(given, state_.narrow, out, position);
  widen(options_.residual, state_.narrow, widened_);
  const Encoded encoded = codec_.encode(given, widened_, scales, out, position);
  // After the codec, which may throw: the narrow residual is then as it was.
  narrow(options_.residual, widened_, state_.narrow);
  return encoded;
}

void ErrorFeedback::roll_back() {
  if (!has_step_) {
    throw std::logic_error("error feedback of " + std::string(codec_.name()) +
                           (options_.can_roll_back
                                ? ": no step to roll back; a step can be rolled back once, right after it"
                                : ": a step can be rolled back only if can_roll_back was given"));
  }
  // No copy, and no second roll-back: before_ has the step that was undone.
  std::swap(state_, before_);
  has_step_ = false;
}

void ErrorFeedback::reset() {
  std::fill(state_.residual.begin(), state_.residual.end(), 0.0F);
  std::fill(state_.narrow.begin(), state_.narrow.end(), std::byte{0});
  std::fill(state_.velocity.begin(), state_.velocity.end(), 0.0F);
  has_step_ = false;
}

ErrorFeedbackMetrics ErrorFeedback::measure(Payload payload) const {
  std::vector<float> sent(elements_);
  std::vector<float> kept(elements_);
  codec_.decode(payload, sent);
  copy_residual(kept);
  ErrorFeedbackMetrics metrics;
  double kept_squares = 0;
  double given_squares = 0;
  for (std::size_t i = 0; i < elements_; ++i) {
    kept_squares += squared(kept[i]);
    given_squares += squared(static_cast<double>(kept[i]) + sent[i]);
    metrics.sent_elements += static_cast<std::size_t>(sent[i] != 0);
  }
  metrics.residual_norm = std::sqrt(kept_squares);
  metrics.given_norm = std::sqrt(given_squares);
  metrics.share_sent = given_squares > 0 ? 1 - kept_squares / given_squares : 1;
  return metrics;
}

std::size_t ErrorFeedback::saved_bytes() const noexcept {
  return kHeadBytes + state_.narrow.size() + 4 * (state_.residual.size() + state_.velocity.size());
}

void ErrorFeedback::save(std::span<std::byte> out) const {
  require(out.size() == saved_bytes(), codec_,
          "room for " + std::to_string(out.size()) + " bytes of state, expected " +
              std::to_string(saved_bytes()));
  const Head head = head_of(options_.residual, options_.momentum > 0, elements_);
  std::byte* to = std::copy(head.begin(), head.end(), out.data());
  const auto append = [&](std::span<const std::byte> array) {
    to = std::copy(array.begin(), array.end(), to);
  };
  append(std::as_bytes(std::span(state_.residual)));
  append(state_.narrow);
  append(std::as_bytes(std::span(state_.velocity)));
}

void ErrorFeedback::load(std::span<const std::byte> saved) {
  const Head expected = head_of(options_.residual, options_.momentum > 0, elements_);
  if (saved.size() != saved_bytes() || !std::equal(expected.begin(), expected.end(), saved.begin())) {
    throw DecodeError("error feedback of " + std::string(codec_.name()) + ": the saved state (" +
                      std::to_string(saved.size()) + " bytes) is not one of " + std::to_string(elements_) +
                      " elements with a residual in " + std::string(name_of(options_.residual)) +
                      (options_.momentum > 0 ? ", with" : ", without") + " momentum (" +
                      std::to_string(saved_bytes()) + " bytes)");
  }
  // Into a copy, which is checked before it becomes the state: bad bytes leave the object as it was.
  State loaded = state_;
  const std::byte* from = saved.data() + kHeadBytes;
  const auto take = [&](std::span<std::byte> array) {
    std::copy_n(from, array.size(), array.begin());
    from += array.size();
  };
  take(std::as_writable_bytes(std::span(loaded.residual)));
  take(loaded.narrow);
  take(std::as_writable_bytes(std::span(loaded.velocity)));
  expect_finite(loaded);
  std::swap(state_, loaded);
  has_step_ = false;
}

void ErrorFeedback::expect_finite(const State& loaded) const {
  const auto expect = [&](const char* what, std::span<const float> values) {
    const auto wrong = std::find_if_not(values.begin(), values.end(), is_finite);
    if (wrong == values.end()) return;
    throw DecodeError("error feedback of " + std::string(codec_.name()) + ": element " +
                      std::to_string(wrong - values.begin()) + " of the saved " + what + " is " +
                      parameter_text(static_cast<double>(*wrong)) + ", expected a finite number");
  };
  std::vector<float> residual(elements_);
  copy_residual(loaded, residual);
  // nonfinite=mxnet has NaN and infinity in its residual, as MXNet does.
  if (!keeps_nonfinite(codec_)) expect("residual", residual);
  expect("velocity", loaded.velocity);
}

void ErrorFeedback::copy_residual(std::span<float> out) const {
  require(out.size() == elements_, codec_,
          "room for " + std::to_string(out.size()) + " elements of the residual, expected " +
              std::to_string(elements_));
  copy_residual(state_, out);
}

void ErrorFeedback::copy_residual(const State& state, std::span<float> out) const {
  if (options_.residual != ResidualType::kFp32) return widen(options_.residual, state.narrow, out);
  std::copy(state.residual.begin(), state.residual.end(), out.begin());
}

}  // namespace gradwire::compress
