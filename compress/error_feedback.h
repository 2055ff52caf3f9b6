// ErrorFeedback keeps what a codec left unsent of one run of a tensor and adds it to the next step's
// gradient. It is for code without a store: kvstore/client/push_encoder.h keeps the residuals of a store's
// pushes. With momentum it sends the worker's momentum in place of its gradient ("momentum correction").
//
// Threading: one thread at a time; several objects are independent.
// Lifetime: the codec outlives it. The constructor allocates all the memory, encode() none.
//
// One object holds the state of one run that is encoded as one payload: a tensor, or a partition of it. A
// step is the codec's own fused pass if the residual is in float32, or in bfloat16 for a codec that supports
// it (bf16_residuals.h). Otherwise the residual is widened into scratch memory before that pass and rounded
// after it. That pays if the run fits the second-level cache.
//
// Sources: Karimireddy et al. 2019, "Error feedback fixes SignSGD and other gradient compression schemes",
// algorithm 2; Lin et al. 2018, "Deep gradient compression", sections 3.2 (momentum correction) and 3.3
// (factor masking). Deviation: the learning rate is applied after the sum, by the optimizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "compress/codec.h"

namespace gradwire::compress {

/// How a residual is kept. Part of the saved state, never renumber.
enum class ResidualType : std::uint8_t {
  kFp32 = 0,  ///< 4 bytes an element, nothing is lost
  kBf16 = 1,  ///< 2 bytes an element, rounded to nearest even every step: what is below 1/512 of it is lost
  kInt8 = 2,  ///< 1.06, as int8 with blocks of 64: what is below 1/254 of the largest of the block is lost
};

/// Maps "fp32", "bf16" and "int8". Throws std::invalid_argument.
ResidualType residual_type(std::string_view name);

struct ErrorFeedbackOptions {
  ResidualType residual = ResidualType::kFp32;
  float momentum = 0;           ///< in [0, 1); 0: the gradient itself is sent
  bool nesterov = false;        ///< sends gradient + momentum * velocity; the form of torch.optim.SGD
  bool factor_masking = false;  ///< the velocity of an element that was sent becomes 0, as DGC has it
  bool can_roll_back = false;   ///< keeps a copy of the state from before the last step
  bool operator==(const ErrorFeedbackOptions&) const = default;
};

/// The result of the last step. x is what was to be sent plus the residual from before.
struct ErrorFeedbackMetrics {
  double residual_norm = 0;       ///< L2, of what is kept
  double given_norm = 0;          ///< L2, of x
  double share_sent = 0;          ///< 1 - |kept|^2 / |x|^2: the delta of Karimireddy et al.; 1 where x is 0
  std::size_t sent_elements = 0;  ///< elements whose payload does not stand for 0
};

class ErrorFeedback {
 public:
  /// Throws std::invalid_argument: no elements; a momentum outside [0, 1); nesterov or factor_masking without
  /// momentum; a residual of int8 for a codec with nonfinite=mxnet, whose NaN it could not keep.
  ErrorFeedback(const Codec& codec, std::size_t elements, const ErrorFeedbackOptions& options = {});

  /// Encodes one step. As Codec::encode(), with the residual kept here. A gradient that is not finite leaves
  /// the element's velocity as it was. Where it throws, residual and velocity are as they were, but the step
  /// before can no longer be rolled back.
  Encoded encode(std::span<const float> grad, std::span<const UnitScale> scales, std::span<std::byte> out,
                 const Position& position = {});

  /// Undoes the last encode(): a vetoed step, or one whose payload was lost. Throws std::logic_error where
  /// there is nothing to undo.
  void roll_back();
  /// Forgets residual and velocity.
  void reset();

  /// Looks at the last step; payload is what it made. Reads residual and payload once.
  ErrorFeedbackMetrics measure(Payload payload) const;

  std::size_t saved_bytes() const noexcept;
  /// Writes saved_bytes() bytes (compress/FORMAT.md, "Saved error feedback").
  void save(std::span<std::byte> out) const;
  /// Restores what save() wrote; nothing can be rolled back then. Throws DecodeError, and changes nothing,
  /// if length, residual type or momentum differ, or if a value is not finite (which only the residual of a
  /// codec with nonfinite=mxnet may hold).
  void load(std::span<const std::byte> saved);

  /// Writes the residual, widened to float32. Requires out of elements() floats.
  void copy_residual(std::span<float> out) const;
  /// The momentum's state ("u" of DGC, SGD's momentum buffer); empty without momentum.
  std::span<const float> velocity() const noexcept { return state_.velocity; }
  std::size_t elements() const noexcept { return elements_; }
  const ErrorFeedbackOptions& options() const noexcept { return options_; }
  const Codec& codec() const noexcept { return codec_; }

 private:
  struct State {
    std::vector<float> residual;    ///< kFp32
    std::vector<std::byte> narrow;  ///< the other types: the residual as they keep it
    std::vector<float> velocity;
  };

  const Bf16Residuals* fused() const noexcept;
  std::span<const float> accelerated(std::span<const float> grad);
  void keep_velocity(std::span<const float> grad, Payload sent);
  Encoded encode_narrow(std::span<const float> given, std::span<const UnitScale> scales,
                        std::span<std::byte> out, const Position& position);
  void copy_residual(const State& state, std::span<float> out) const;
  void expect_finite(const State& loaded) const;

  const Codec& codec_;
  std::size_t elements_;
  ErrorFeedbackOptions options_;
  State state_;
  State before_;  ///< the last step, if can_roll_back
  bool has_step_ = false;
  std::vector<float> widened_;  ///< the residual during a step, unless in float32 or fused
  std::vector<float> given_;    ///< with momentum: what is to be sent, then what was
};

}  // namespace gradwire::compress
