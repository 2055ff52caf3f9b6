#include "transport/half_sums.h"

#include <bit>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Written without branches, so that compilers turn the loops into vector code for any target.
namespace gradwire::transport {
namespace {

float as_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }
std::uint32_t as_bits(float value) { return std::bit_cast<std::uint32_t>(value); }

/// A ?: whose sides are both computed: left to itself, GCC moves a float operation into one branch, and then
/// cannot make vectors of it.
std::uint32_t choose(bool condition, std::uint32_t yes, std::uint32_t no) {
  const std::uint32_t mask = 0U - static_cast<std::uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

constexpr std::uint32_t kSign = 0x80000000;
constexpr std::uint32_t kInfinity = 0x7F800000;
constexpr std::uint32_t kQuietNan = 0x7FC00000;

// binary16 has 5 bits of exponent biased by 15 and 10 of mantissa; binary32 has 8, 127 and 23.
constexpr int kMantissaShift = 23 - 10;
constexpr std::uint32_t kRebias = (127 - 15) << 23;
constexpr std::uint32_t kSmallestNormal = kRebias + (1 << 23);  // 2^-14
constexpr std::uint32_t kBeyondLargest = 0x47800000;            // 2^16: all from here on is infinite
constexpr std::uint32_t kHalf = 0x3F000000;                     // 0.5, whose unit in the last place is 2^-24

// Sums are added in float and rounded to 16 bits. The result is that of rounding the exact sum once: float
// has at least 2 p + 2 digits (Figueroa, 1995). p is 11 for binary16 and 8 for bfloat16.
float widen_float16(std::uint16_t half) {
  const std::uint32_t magnitude = (half & 0x7FFFU) << kMantissaShift;
  const std::uint32_t exponent = magnitude & 0x0F800000U;
  const std::uint32_t normal = magnitude + kRebias;
  const std::uint32_t special = magnitude | kInfinity;
  // A subnormal's digits, put behind an exponent that makes them 2^-14 too large in value.
  const std::uint32_t subnormal = as_bits(as_float(magnitude + kSmallestNormal) - as_float(kSmallestNormal));
  const std::uint32_t bits =
      choose(exponent == 0x0F800000U, special, choose(exponent == 0, subnormal, normal));
  return as_float(bits | (half & 0x8000U) << 16);
}

std::uint16_t narrow_to_float16(float value) {
  const std::uint32_t bits = as_bits(value);
  const std::uint32_t magnitude = bits & ~kSign;
  // Half a unit less one bit, and one more where the last kept digit is odd: ties go to even. A carry into
  // the exponent is right, and turns the largest into infinity.
  const std::uint32_t odd = (magnitude >> kMantissaShift) & 1U;
  const std::uint32_t normal = (magnitude - kRebias + 0xFFFU + odd) >> kMantissaShift;
  // Adding 0.5 rounds to its unit in the last place, which is that of subnormal halves.
  const std::uint32_t subnormal = as_bits(as_float(magnitude) + as_float(kHalf)) - kHalf;
  const std::uint32_t special = choose(magnitude > kInfinity, 0x7E00U, 0x7C00U);
  const std::uint32_t finite = choose(magnitude < kSmallestNormal, subnormal, normal);
  const std::uint32_t half = choose(magnitude >= kBeyondLargest, special, finite);
  return static_cast<std::uint16_t>(half | (bits & kSign) >> 16);
}

float widen_bfloat16(std::uint16_t half) { return as_float(static_cast<std::uint32_t>(half) << 16); }

std::uint16_t narrow_to_bfloat16(float value) {
  const std::uint32_t bits = as_bits(value);
  // As above. A NaN could be carried into infinity, or lose all its digits, so it is replaced.
  const std::uint32_t rounded = bits + 0x7FFFU + ((bits >> 16) & 1U);
  const std::uint32_t nan = (bits & kSign) | kQuietNan;
  return static_cast<std::uint16_t>(choose((bits & ~kSign) > kInfinity, nan, rounded) >> 16);
}

#if defined(__x86_64__)
bool has_float16_conversions() { return __builtin_cpu_supports("f16c") != 0; }

// Returns how many elements it has summed: all but the last seven at most.
__attribute__((target("f16c"))) std::size_t add_float16_by_eights(const std::uint16_t* from,
                                                                  std::uint16_t* to, std::size_t count) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 left = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
    const __m256 right = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(to + i)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm256_cvtps_ph(_mm256_add_ps(left, right), _MM_FROUND_TO_NEAREST_INT));
  }
  return i;
}
#else
bool has_float16_conversions() { return false; }
std::size_t add_float16_by_eights(const std::uint16_t*, std::uint16_t*, std::size_t) { return 0; }
#endif

}  // namespace

void add_float16(const std::uint16_t* from, std::uint16_t* to, std::size_t count) noexcept {
  // Asked at run time: the library is built for processors without F16C, too.
  const std::size_t done = has_float16_conversions() ? add_float16_by_eights(from, to, count) : 0;
  add_float16_portably(from + done, to + done, count - done);
}

void add_float16_portably(const std::uint16_t* __restrict from, std::uint16_t* __restrict to,
                          std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    to[i] = narrow_to_float16(widen_float16(from[i]) + widen_float16(to[i]));
  }
}

void add_bfloat16(const std::uint16_t* __restrict from, std::uint16_t* __restrict to,
                  std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    to[i] = narrow_to_bfloat16(widen_bfloat16(from[i]) + widen_bfloat16(to[i]));
  }
}

}  // namespace gradwire::transport
