// Dither's random numbers on vectors. Included once for each target that Highway compiles, after
// hwy/foreach_target.h, so it has a guard that toggles in place of #pragma once.
//
// Threading: all functions are pure.
#if defined(GRADWIRE_COMPRESS_DITHER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADWIRE_COMPRESS_DITHER_INL_H_
#undef GRADWIRE_COMPRESS_DITHER_INL_H_
#else
#define GRADWIRE_COMPRESS_DITHER_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "compress/stochastic/dither.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::compress::HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR

using DitherFloats = hwy::HWY_NAMESPACE::CappedTag<float, Dither::kCounters>;
using DitherBits = hwy::HWY_NAMESPACE::RebindToUnsigned<DitherFloats>;
using DitherVector = hwy::HWY_NAMESPACE::Vec<DitherBits>;

/// The upper halves of the products with a constant.
HWY_INLINE DitherVector MulHigh32(DitherVector v, std::uint32_t multiplier) {
  namespace hn = hwy::HWY_NAMESPACE;
  const DitherBits d;
  const DitherVector by = hn::Set(d, multiplier);
  const hn::RepartitionToWide<DitherBits> wide;
  const auto even = hn::ShiftRight<32>(hn::MulEven(v, by));
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, v))), by);
  return hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, even));
}

/// Writes Dither::word() of the kGroup elements of one group, in their order. Requires `words` aligned for a
/// vector.
HWY_INLINE void WordsOfGroup(const Dither& dither, std::uint64_t group, std::uint32_t* HWY_RESTRICT words) {
  namespace hn = hwy::HWY_NAMESPACE;
  const DitherBits d;
  for (std::size_t c = 0; c < Dither::kCounters; c += hn::MaxLanes(DitherFloats())) {
    const philox::Counter counter = dither.counter(group, c);
    philox::Key key = dither.key();
    DitherVector c0 = hn::Iota(d, counter[0]);
    DitherVector c1 = hn::Set(d, counter[1]);
    DitherVector c2 = hn::Set(d, counter[2]);
    DitherVector c3 = hn::Set(d, counter[3]);
    for (int round = 0; round < philox::kRounds; ++round) {
      const DitherVector high0 = MulHigh32(c0, philox::kMultiplier0);
      const DitherVector high1 = MulHigh32(c2, philox::kMultiplier1);
      const DitherVector low0 = hn::Mul(c0, hn::Set(d, philox::kMultiplier0));
      const DitherVector low1 = hn::Mul(c2, hn::Set(d, philox::kMultiplier1));
      c0 = hn::Xor(hn::Xor(high1, c1), hn::Set(d, key[0]));
      c1 = low1;
      c2 = hn::Xor(hn::Xor(high0, c3), hn::Set(d, key[1]));
      c3 = low0;
      key = {key[0] + philox::kWeyl0, key[1] + philox::kWeyl1};
    }
    hn::Store(c0, d, words + c);
    hn::Store(c1, d, words + Dither::kCounters + c);
    hn::Store(c2, d, words + 2 * Dither::kCounters + c);
    hn::Store(c3, d, words + 3 * Dither::kCounters + c);
  }
}

/// Dither::uniform() of words.
HWY_INLINE hwy::HWY_NAMESPACE::Vec<DitherFloats> UniformsOf(DitherVector words) {
  namespace hn = hwy::HWY_NAMESPACE;
  const DitherFloats d;
  const hn::RebindToSigned<DitherFloats> di;
  return hn::Mul(hn::ConvertTo(d, hn::BitCast(di, hn::ShiftRight<8>(words))), hn::Set(d, 0x1p-24f));
}

#endif

}  // namespace gradwire::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
