// lane_sums.h's fold() of lanes in registers. Included once for each target that Highway compiles, after
// hwy/foreach_target.h, so it has a guard that toggles in place of #pragma once.
//
// Threading: all functions are pure.
#if defined(GRADWIRE_COMPRESS_LANE_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADWIRE_COMPRESS_LANE_SUMS_INL_H_
#undef GRADWIRE_COMPRESS_LANE_SUMS_INL_H_
#else
#define GRADWIRE_COMPRESS_LANE_SUMS_INL_H_
#endif

#include <array>
#include <cstddef>

#include "compress/payload/lane_sums.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::compress::HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR

/// Of vectors of D, the first lanes first. Clobbers them.
template <class D, std::size_t kVectors>
HWY_INLINE float FoldVectors(D d, hwy::HWY_NAMESPACE::Vec<D> (&vectors)[kVectors]) {
  namespace hn = hwy::HWY_NAMESPACE;
  for (std::size_t half = kVectors / 2; half > 0; half /= 2) {
    for (std::size_t v = 0; v < half; ++v) vectors[v] = hn::Add(vectors[v], vectors[v + half]);
  }
  std::array<float, hn::MaxLanes(D())> left;
  hn::StoreU(vectors[0], d, left.data());
  return fold(left);
}

#endif

}  // namespace gradwire::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
