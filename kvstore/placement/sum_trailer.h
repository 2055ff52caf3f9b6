// SumTrailer is appended to the elements that a library sums. It detects ranks that summed different things,
// and ranks that found a NaN or infinity.
//
// 32 elements spell a hash of what is summed, each 0 or 1. A sum that is neither 0 nor the number of ranks
// shows every rank that they differ. The last element counts ranks that found a non-finite value.
//
// Threading: all functions are pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/collective.h"
#include "transport/frame.h"

namespace gradwire::kvstore {

struct SumTrailer {
  static constexpr std::size_t kHashElements = 32;
  static constexpr std::size_t kElements = kHashElements + 1;

  bool same = true;  ///< what all ranks summed
  bool nonfinite = false;

  static constexpr std::size_t size_bytes(std::size_t element_bytes) { return kElements * element_bytes; }

  /// Writes one rank's tail for the push of header, of kElements elements of type.
  static void write(const transport::FrameHeader& header, transport::ElementType type,
                    std::span<std::byte> out);
  /// The most ranks whose tails can be summed in this type: up to here it holds every whole number.
  static std::uint32_t most_ranks(transport::ElementType type);
  /// Reads the sum of `ranks` tails, at most as many as that.
  static SumTrailer read(std::span<const std::byte> tail, transport::ElementType type,
                         const transport::FrameHeader& header, std::uint32_t ranks);
};

}  // namespace gradwire::kvstore
