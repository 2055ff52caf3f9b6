// One bit an element, element by element: the specification of one_bit_kernels, on every target byte for
// byte.
//
// Source: MXNet's gradient compression (kvstore, 2.0) for the packing and for the form with a threshold;
// Karimireddy et al. 2019, "Error feedback fixes signSGD", algorithm 1, for the sign scaled by the mean of
// |x|; Seide et al. 2014 for the residual; Bernstein et al. 2018, "signSGD", for the majority vote.
//
// Threading: all functions are pure.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "compress/payload/float_bits.h"
#include "compress/payload/host_device.h"
#include "compress/payload/little_endian.h"

namespace gradwire::compress::one_bit {

/// Bits come in words of 32, as MXNet's.
constexpr std::size_t packed_bytes(std::size_t elements) { return (elements + 31) / 32 * 4; }

/// The bit of element i % 8 of a byte: element 0 is the most significant one.
constexpr unsigned bit_shift(std::size_t i) { return static_cast<unsigned>(7 - i % 8); }

GRADWIRE_HOST_DEVICE inline bool bit_at(const std::byte* packed, std::size_t i) noexcept {
  return (std::to_integer<unsigned>(packed[i / 8]) >> bit_shift(i) & 1) != 0;
}

/// What an element sends: there is no zero among the codes.
GRADWIRE_HOST_DEVICE inline float value_of(bool bit, float level) noexcept { return bit ? level : -level; }

/// Elements of a word of the payload.
inline constexpr std::size_t kWordElements = 32;

/// The word that stands for 32 zeros, as little-endian bytes 9e 37 79 b9: the fraction of the golden ratio,
/// which signs of real gradients are not more often than by chance. Signs that are it all the same are sent
/// with the first one turned round, which the residual makes up for.
inline constexpr std::uint32_t kZeroWord = 0xb979379e;
inline constexpr std::uint32_t kFirstBit = 0x80;  ///< of a word: element 0

/// What a word of 32 elements that are all 0 becomes.
enum class Zeros : std::uint8_t {
  kSigned,  ///< signs, as of any other: MXNet's
  kMarked,  ///< kZeroWord, so that what has no gradient does not move
};

/// When an element sends 1, and what elements stand for.
struct SignCode {
  float least = 0;  ///< sends 1 where x >= least
  float level = 1;  ///< 1 stands for it, 0 for its opposite
  Zeros zeros = Zeros::kSigned;
};

/// The word that is sent for one of which `all_zero` says that all its elements are 0.
GRADWIRE_HOST_DEVICE inline std::uint32_t word_to_send(std::uint32_t word, bool all_zero,
                                                       Zeros zeros) noexcept {
  if (zeros == Zeros::kSigned) return word;
  return all_zero ? kZeroWord : word == kZeroWord ? word ^ kFirstBit : word;
}

GRADWIRE_HOST_DEVICE inline bool stands_for_zeros(std::uint32_t word, Zeros zeros) noexcept {
  return zeros == Zeros::kMarked && word == kZeroWord;
}

/// The bit of element i < 32 in its word.
GRADWIRE_HOST_DEVICE constexpr std::uint32_t bit_in_word(std::size_t i) {
  return 1u << (i / 8 * 8 + bit_shift(i));
}

/// The least float for which x > bound holds.
inline float above(float bound) noexcept {
  return std::nextafter(bound, std::numeric_limits<float>::infinity());
}

/// Encodes x = residual + grad (x = grad when residual is null; counted() where that is not finite), and
/// keeps x - sent. Writes packed_bytes(elements) bytes, absent elements as 0. Returns true when a non-finite
/// x was found.
inline bool encode_scalar(const float* grad, float* residual, std::size_t elements, const SignCode& code,
                          std::byte* out) noexcept {
  bool nonfinite = false;
  for (std::size_t first = 0; first < elements; first += kWordElements) {
    const std::size_t count = std::min(kWordElements, elements - first);
    float x[kWordElements];
    std::uint32_t signs = 0;
    bool all_zero = true;
    for (std::size_t i = 0; i < count; ++i) {
      const float kept = residual == nullptr ? 0 : residual[first + i];
      x[i] = residual == nullptr ? grad[first + i] : kept + grad[first + i];
      nonfinite |= !is_finite(x[i]);
      x[i] = counted(x[i], kept);
      all_zero &= x[i] == 0;
      if (x[i] >= code.least) signs |= bit_in_word(i);
    }
    const std::uint32_t word = word_to_send(signs, all_zero, code.zeros);
    store(word, out + first / 8);
    for (std::size_t i = 0; residual != nullptr && i < count; ++i) {
      const float sent = value_of((word & bit_in_word(i)) != 0, code.level);
      residual[first + i] = stands_for_zeros(word, code.zeros) ? x[i] : x[i] - sent;
    }
  }
  return nonfinite;
}

/// Elements in words that are not all 0, those of which something is sent where zeros are marked.
inline std::size_t sent_elements_scalar(const float* grad, const float* residual,
                                        std::size_t elements) noexcept {
  std::size_t sent = 0;
  for (std::size_t first = 0; first < elements; first += kWordElements) {
    const std::size_t count = std::min(kWordElements, elements - first);
    bool all_zero = true;
    for (std::size_t i = first; i < first + count; ++i) {
      const float kept = residual == nullptr ? 0 : residual[i];
      all_zero &= counted(residual == nullptr ? grad[i] : kept + grad[i], kept) == 0;
    }
    sent += all_zero ? 0 : count;
  }
  return sent;
}

/// Writes what each element stands for to out, or adds it.
inline void decode_scalar(const std::byte* packed, std::size_t elements, const SignCode& code, bool add,
                          float* out) noexcept {
  for (std::size_t i = 0; i < elements; ++i) {
    const auto word = load<std::uint32_t>(packed + i / kWordElements * sizeof(std::uint32_t));
    const bool bit = (word & bit_in_word(i % kWordElements)) != 0;
    const float value = stands_for_zeros(word, code.zeros) ? 0 : value_of(bit, code.level);
    out[i] = add ? out[i] + value : value;
  }
}

}  // namespace gradwire::compress::one_bit
