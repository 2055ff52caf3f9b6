// What packs 2-bit codes on vectors. Included once for each target that Highway compiles, after
// hwy/foreach_target.h, so it has a guard that toggles in place of #pragma once.
//
// Threading: all functions are pure.
#if defined(GRADWIRE_COMPRESS_TWO_BIT_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADWIRE_COMPRESS_TWO_BIT_CODES_INL_H_
#undef GRADWIRE_COMPRESS_TWO_BIT_CODES_INL_H_
#else
#define GRADWIRE_COMPRESS_TWO_BIT_CODES_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "compress/payload/little_endian.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::compress::two_bit::HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR

namespace hn = hwy::HWY_NAMESPACE;

template <class D>
HWY_INLINE std::uint64_t MaskBits(D d, hn::Mask<D> mask) {
  std::uint64_t bits = 0;
  hn::StoreMaskBits(d, mask, reinterpret_cast<std::uint8_t*>(&bits));
  return bits;
}

/// Moves bit i to bit 2 * i.
HWY_INLINE std::uint64_t Spread(std::uint32_t bits) {
#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX2
  return _pdep_u64(bits, 0x5555555555555555);
#else
  std::uint64_t v = bits;
  v = (v | v << 16) & 0x0000ffff0000ffff;
  v = (v | v << 8) & 0x00ff00ff00ff00ff;
  v = (v | v << 4) & 0x0f0f0f0f0f0f0f0f;
  v = (v | v << 2) & 0x3333333333333333;
  return (v | v << 1) & 0x5555555555555555;
#endif
}

/// Packs 32 elements: sent (upper bit of a code) and positive (lower bit), element i in bit i.
HWY_INLINE void StoreCodes(std::uint32_t sent, std::uint32_t positive, std::byte* out) {
  std::uint64_t codes = Spread(sent) << 1 | Spread(positive);
  codes = (codes >> 4 & 0x0f0f0f0f0f0f0f0f) | (codes & 0x0f0f0f0f0f0f0f0f) << 4;
  codes = (codes >> 2 & 0x3333333333333333) | (codes & 0x3333333333333333) << 2;
  store(codes, out);
}

/// Packs 64 elements.
HWY_INLINE void StoreCodes(std::uint64_t sent, std::uint64_t positive, std::byte* out) {
  StoreCodes(static_cast<std::uint32_t>(sent), static_cast<std::uint32_t>(positive), out);
  StoreCodes(static_cast<std::uint32_t>(sent >> 32), static_cast<std::uint32_t>(positive >> 32), out + 8);
}

#endif

}  // namespace gradwire::compress::two_bit::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
