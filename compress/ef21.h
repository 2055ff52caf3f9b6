// EF21 compresses how a worker's gradient changes. All workers could keep the same estimate of each
// gradient: a worker sends the difference between its gradient and the estimate, and what is sent corrects
// the estimate.
//
// Threading: one thread at a time; several objects are independent.
// Lifetime: the codec outlives it. The constructor allocates all the memory; encode() and add() none.
//
// Server keeps no state for this: it adds payloads as usual. Each worker adds the sums that it receives to a
// running sum. That is the sum of all workers' estimates, with the same bits on every rank. So a round is
// encode(), the exchange, add(), and then sum() takes the place of the sum of gradients.
//
// It suits a codec that leaves less than it takes away (topk, randomk, 1bit, int4 ...). If a share a of
// |x|^2 is sent, the estimate of a constant gradient comes nearer by that share in each round. With 2bit and
// a fixed threshold the estimate stays within the threshold. A codec without a code for 0, such as 1bit with
// a fixed threshold, is refused: its estimate would leave the gradient again in each round.
//
// Source: Richtarik, Sokolov and Fatkhullin 2021, "EF21: a new, simpler, theoretically better, and
// practically faster error feedback", algorithm 2. Deviations: estimates begin at 0, and each worker keeps
// the master's sum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "compress/codec.h"

namespace gradwire::compress {

class EF21 {
 public:
  /// Throws std::invalid_argument: no elements; a codec that loses nothing, and has nothing to feed back; one
  /// that does not send 0 for 0, with which no estimate settles.
  EF21(const Codec& codec, std::size_t elements);

  /// Encodes gradient - estimate, and adds what that payload stands for to the estimate. As Codec::encode()
  /// without a residual; where it throws, nothing has changed. An element that is not finite is treated as
  /// the codec treats it.
  Encoded encode(std::span<const float> grad, std::span<const UnitScale> scales, std::span<std::byte> out,
                 const Position& position = {});

  /// Adds the decoded answer to a round: the sum of all workers' payloads. Throws std::invalid_argument, and
  /// changes nothing, unless these are elements() finite floats.
  void add(std::span<const float> answer);

  /// This worker's estimate of its gradient ("g_i").
  std::span<const float> estimate() const noexcept { return estimate_; }
  /// The sum of all workers' estimates, by the replies so far. Divided by the number of workers, it is the
  /// step's mean gradient.
  std::span<const float> sum() const noexcept { return sum_; }

  /// Forgets both, which all workers must do in the same round.
  void reset();
  std::size_t saved_bytes() const noexcept;
  /// Writes saved_bytes() bytes (compress/FORMAT.md, "Saved error feedback").
  void save(std::span<std::byte> out) const;
  /// Restores what save() wrote. Throws DecodeError, and changes nothing, if the length differs or a value
  /// is not finite.
  void load(std::span<const std::byte> saved);

  std::size_t elements() const noexcept { return estimate_.size(); }
  const Codec& codec() const noexcept { return codec_; }

 private:
  void require_elements(const char* what, std::size_t given) const;

  const Codec& codec_;
  std::vector<float> estimate_;
  std::vector<float> sum_;
  std::vector<float> change_;  ///< what is to be sent, then what was
};

}  // namespace gradwire::compress
