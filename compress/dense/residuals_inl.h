// Where a kernel finds what a run keeps: nowhere, in float32, or in bfloat16. Included once for each target
// that Highway compiles, after hwy/foreach_target.h, so it has a guard that toggles in place of #pragma once.
//
// Threading: all functions are pure; they touch only the memory handed to them.
#if defined(GRADWIRE_COMPRESS_DENSE_RESIDUALS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADWIRE_COMPRESS_DENSE_RESIDUALS_INL_H_
#undef GRADWIRE_COMPRESS_DENSE_RESIDUALS_INL_H_
#else
#define GRADWIRE_COMPRESS_DENSE_RESIDUALS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "compress/dense/dense_scalar.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::compress::dense::HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR

using ResidualTag = hwy::HWY_NAMESPACE::CappedTag<float, 16>;
using ResidualVector = hwy::HWY_NAMESPACE::Vec<ResidualTag>;

HWY_INLINE ResidualVector LoadBf16(const std::byte* from) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::RebindToUnsigned<ResidualTag> bits;
  const hn::Rebind<std::uint16_t, ResidualTag> halves;
  const auto half = hn::LoadU(halves, reinterpret_cast<const std::uint16_t*>(from));
  return hn::BitCast(ResidualTag(), hn::ShiftLeft<16>(hn::PromoteTo(bits, half)));
}

/// bf16_from_float(). Returns what LoadBf16() will read.
HWY_INLINE ResidualVector StoreBf16(ResidualVector value, std::byte* to) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::RebindToUnsigned<ResidualTag> d;
  const hn::Rebind<std::uint16_t, ResidualTag> halves;
  const auto bits = hn::BitCast(d, value);
  const auto sign = hn::And(bits, hn::Set(d, kSignBit));
  const auto magnitude = hn::Xor(bits, sign);
  const auto odd = hn::And(hn::ShiftRight<16>(magnitude), hn::Set(d, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(magnitude, hn::Set(d, 0x7fff)), odd));
  const auto most = hn::Max(hn::ShiftRight<16>(magnitude), hn::Set(d, kBf16Largest));
  const auto half = hn::Or(hn::Min(rounded, most), hn::ShiftRight<16>(sign));
  hn::StoreU(hn::TruncateTo(halves, half), halves, reinterpret_cast<std::uint16_t*>(to));
  return hn::BitCast(ResidualTag(), hn::ShiftLeft<16>(half));
}

struct NoResidual {
  static constexpr bool kIsThere = false;
  static constexpr float* at = nullptr;

  NoResidual from(std::size_t) const { return {}; }
};

struct Fp32Residual {
  static constexpr bool kIsThere = true;
  float* at;

  /// The residual from element i on.
  Fp32Residual from(std::size_t i) const { return {at + i}; }
  HWY_INLINE void Prefetch(std::size_t i) const { hwy::Prefetch(at + i); }
  HWY_INLINE ResidualVector Load(std::size_t i) const {
    return hwy::HWY_NAMESPACE::LoadU(ResidualTag(), at + i);
  }
  HWY_INLINE void Store(ResidualVector value, std::size_t i) const {
    hwy::HWY_NAMESPACE::StoreU(value, ResidualTag(), at + i);
  }
};

struct Bf16Residual {
  static constexpr bool kIsThere = true;
  std::byte* at;  ///< 2 bytes an element

  Bf16Residual from(std::size_t i) const { return {at + 2 * i}; }
  HWY_INLINE void Prefetch(std::size_t i) const { hwy::Prefetch(at + 2 * i); }
  HWY_INLINE ResidualVector Load(std::size_t i) const { return LoadBf16(at + 2 * i); }
  HWY_INLINE void Store(ResidualVector value, std::size_t i) const { StoreBf16(value, at + 2 * i); }
};

#endif

}  // namespace gradwire::compress::dense::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // GRADWIRE_COMPRESS_DENSE_RESIDUALS_INL_H_
