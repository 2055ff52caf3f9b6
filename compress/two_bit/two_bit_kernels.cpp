#include "compress/two_bit/two_bit_kernels.h"

#include <algorithm>
#include <array>
#include <bit>

// Vectors of a length unknown to the compiler cannot stand in the fixed lanes;
// such machines use 128-bit targets.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/two_bit/two_bit_kernels.cpp"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
// For each target, so behind foreach_target.h.
#include "compress/dense/residuals_inl.h"
#include "compress/payload/lane_sums_inl.h"
#include "compress/two_bit/two_bit_codes_inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::compress::two_bit {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

bool Encode(const float* grad, float* residual, std::size_t elements, const Quantiser& quantiser,
            std::byte* out, UnitSums* sums) {
  return encode_scalar(grad, residual, elements, quantiser, out, sums);
}

bool EncodeBf16(const float* grad, std::byte* residual, std::size_t elements, const Quantiser& quantiser,
                std::byte* out) {
  return encode_bf16_scalar(grad, residual, elements, quantiser, out);
}

void Measure(const float* grad, const float* residual, std::size_t elements, float threshold,
             UnitSums* sums) {
  measure_scalar(grad, residual, elements, threshold, sums);
}

#else

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::CappedTag<float, 16>;
using Ints = hn::RebindToSigned<Floats>;
using Words = hn::RebindToUnsigned<Floats>;
using FloatVector = hn::Vec<Floats>;

constexpr std::size_t kLanes = hn::MaxLanes(Floats());
constexpr std::size_t kStep = 64;  // elements that encode handles at a time: one word of masks
constexpr std::size_t kAhead = 1536 / sizeof(float);  // elements that encode asks memory for in advance

/// Whether some |x| has these bits or higher ones, as NaN has those of
/// infinity.
HWY_INLINE bool AnyReaches(std::uint32_t bits, const FloatVector (&x)[kStep / kLanes]) {
  const Ints di;
  // Floats without a sign are in the order of their bits as integers, and NaN is above infinity.
  hn::Vec<Ints> largest = hn::BitCast(di, hn::Abs(x[0]));
  for (std::size_t v = 1; v < kStep / kLanes; ++v) largest = hn::Max(largest, hn::BitCast(di, hn::Abs(x[v])));
  return !hn::AllTrue(di, hn::Lt(largest, hn::Set(di, static_cast<std::int32_t>(bits))));
}

/// BlockLanes in registers.
struct LaneSums {
  static constexpr std::size_t kVectors = kSumLanes / kLanes;
  FloatVector all[kVectors];
  FloatVector selected[kVectors];

  HWY_INLINE void Clear() {
    for (std::size_t v = 0; v < kVectors; ++v) all[v] = selected[v] = hn::Zero(Floats());
  }
  HWY_INLINE void Load(const BlockLanes& lanes) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      all[v] = hn::LoadU(Floats(), lanes.all.data() + v * kLanes);
      selected[v] = hn::LoadU(Floats(), lanes.selected.data() + v * kLanes);
    }
  }
  HWY_INLINE void Store(BlockLanes* lanes) const {
    for (std::size_t v = 0; v < kVectors; ++v) {
      hn::StoreU(all[v], Floats(), lanes->all.data() + v * kLanes);
      hn::StoreU(selected[v], Floats(), lanes->selected.data() + v * kLanes);
    }
  }
  HWY_INLINE void Add(std::size_t v, FloatVector magnitude, FloatVector sent) {
    all[v] = hn::Add(all[v], magnitude);
    selected[v] = hn::Add(selected[v], sent);
  }
  /// Appends the block, as UnitSums::append() does. Clobbers the lanes.
  HWY_INLINE void AppendTo(UnitSums* sums, std::uint32_t selected_count) {
    const float block_all = compress::HWY_NAMESPACE::FoldVectors(Floats(), all);
    sums->append(block_all, compress::HWY_NAMESPACE::FoldVectors(Floats(), selected), selected_count);
  }
};

/// Encodes elements one by one, from element `first` of a block on.
template <bool kSums>
HWY_INLINE bool EncodeElements(const float* grad, float* residual, std::size_t elements,
                               const Quantiser& quantiser, std::byte* out, std::size_t first, LaneSums& lanes,
                               std::uint32_t& selected_count) {
  if constexpr (!kSums) return encode_block_scalar(grad, residual, elements, quantiser, out, nullptr);
  // The scalar rule adds to the lanes where vectors left off: a block's sums have one written order.
  BlockLanes block;
  lanes.Store(&block);
  const bool nonfinite = encode_block_scalar(grad, residual, elements, quantiser, out, &block, first);
  lanes.Load(block);
  selected_count += block.selected_count;
  return nonfinite;
}

HWY_INLINE void PrefetchStep(const float* elements) {
  for (std::size_t e = 0; e < kStep; e += 16) hwy::Prefetch(elements + e);  // a cache line at a time
}

/// Encodes one block, or any number of elements where there are no sums to append.
template <bool kResidual, bool kSkip, bool kSums>
HWY_INLINE bool EncodeBlock(const float* HWY_RESTRICT grad, float* HWY_RESTRICT residual,
                            std::size_t elements, const Quantiser& quantiser, std::byte* HWY_RESTRICT out,
                            UnitSums* HWY_RESTRICT sums) {
  const Floats d;
  const FloatVector threshold = hn::Set(d, quantiser.effective_threshold());
  const FloatVector negative_threshold = hn::Neg(threshold);
  const FloatVector level = hn::Set(d, quantiser.level);
  const FloatVector negative_level = hn::Neg(level);
  LaneSums lanes;
  if constexpr (kSums) lanes.Clear();
  std::uint32_t selected_count = 0;
  bool nonfinite = false;
  std::size_t i = 0;
  for (; i + kStep <= elements; i += kStep) {
    FloatVector x[kStep / kLanes];
    PrefetchStep(grad + i + kAhead);
    if constexpr (kResidual) PrefetchStep(residual + i + kAhead);
    for (std::size_t v = 0; v < kStep / kLanes; ++v) {
      x[v] = hn::LoadU(d, grad + i + v * kLanes);
      if constexpr (kResidual) x[v] = hn::Add(hn::LoadU(d, residual + i + v * kLanes), x[v]);
    }
    // One question for 64 elements, since it is rare. Without kSkip the rule below does as MXNet with NaN.
    if (HWY_UNLIKELY(AnyReaches(kInfinityBits, x))) {
      nonfinite = true;
      if constexpr (kSkip) {
        EncodeElements<kSums>(grad + i, kResidual ? residual + i : nullptr, kStep, quantiser, out + i / 4, i,
                              lanes, selected_count);
        continue;
      }
    }
    std::uint64_t positive = 0;
    std::uint64_t sent = 0;
    for (std::size_t v = 0; v < kStep / kLanes; ++v) {
      const auto up = hn::Ge(x[v], threshold);
      const auto down = hn::Le(x[v], negative_threshold);
      const auto either = hn::Or(up, down);
      positive |= MaskBits(d, up) << (v * kLanes);
      sent |= MaskBits(d, either) << (v * kLanes);
      if constexpr (kResidual) {
        // x - 0 where nothing is sent has the bits of x, as rest_of() returns it.
        const FloatVector value = hn::IfThenElse(up, level, hn::IfThenElseZero(down, negative_level));
        hn::StoreU(hn::Sub(x[v], value), d, residual + i + v * kLanes);
      }
      if constexpr (kSums) {
        const FloatVector magnitude = hn::Abs(x[v]);
        lanes.Add(v, magnitude, hn::IfThenElseZero(either, magnitude));
      }
    }
    StoreCodes(sent, positive, out + i / 4);
    if constexpr (kSums) selected_count += static_cast<std::uint32_t>(std::popcount(sent));
  }
  if (i < elements) {
    nonfinite |= EncodeElements<kSums>(grad + i, kResidual ? residual + i : nullptr, elements - i, quantiser,
                                       out + i / 4, i, lanes, selected_count);
  }
  if constexpr (kSums) lanes.AppendTo(sums, selected_count);
  return nonfinite;
}

template <bool kResidual, bool kSkip, bool kSums>
bool EncodeRun(const float* HWY_RESTRICT grad, float* HWY_RESTRICT residual, std::size_t elements,
               const Quantiser& quantiser, std::byte* HWY_RESTRICT out, UnitSums* HWY_RESTRICT sums) {
  if constexpr (!kSums)
    return EncodeBlock<kResidual, kSkip, false>(grad, residual, elements, quantiser, out, nullptr);
  bool nonfinite = false;
  // Block by block, as sums are folded by blocks. Without sums one run is as good, and has no ends to treat.
  for (std::size_t i = 0; i < elements; i += kBlockElements) {
    nonfinite |= EncodeBlock<kResidual, kSkip, true>(grad + i, kResidual ? residual + i : nullptr,
                                                     std::min(kBlockElements, elements - i), quantiser,
                                                     out + i / 4, sums);
  }
  return nonfinite;
}

bool EncodeBf16(const float* HWY_RESTRICT grad, std::byte* HWY_RESTRICT narrow, std::size_t elements,
                const Quantiser& quantiser, std::byte* HWY_RESTRICT out) {
  const Floats d;
  const dense::HWY_NAMESPACE::Bf16Residual residual{narrow};
  const FloatVector threshold = hn::Set(d, quantiser.effective_threshold());
  const FloatVector negative_threshold = hn::Neg(threshold);
  const FloatVector level = hn::Set(d, quantiser.level);
  const FloatVector negative_level = hn::Neg(level);
  bool nonfinite = false;
  std::size_t i = 0;
  for (; i + kStep <= elements; i += kStep) {
    for (std::size_t e = 0; e < kStep; e += 16) hwy::Prefetch(grad + i + kAhead + e);
    for (std::size_t e = 0; e < kStep; e += 32) residual.Prefetch(i + kAhead + e);
    FloatVector x[kStep / kLanes];
    for (std::size_t v = 0; v < kStep / kLanes; ++v) {
      x[v] = hn::Add(residual.Load(i + v * kLanes), hn::LoadU(d, grad + i + v * kLanes));
    }
    if (HWY_UNLIKELY(AnyReaches(kInfinityBits, x))) {
      nonfinite |= encode_bf16_scalar(grad + i, residual.from(i).at, kStep, quantiser, out + i / 4);
      continue;
    }
    std::uint64_t positive = 0;
    std::uint64_t sent = 0;
    for (std::size_t v = 0; v < kStep / kLanes; ++v) {
      const auto up = hn::Ge(x[v], threshold);
      const auto down = hn::Le(x[v], negative_threshold);
      positive |= MaskBits(d, up) << (v * kLanes);
      sent |= MaskBits(d, hn::Or(up, down)) << (v * kLanes);
      const FloatVector value = hn::IfThenElse(up, level, hn::IfThenElseZero(down, negative_level));
      residual.Store(hn::Sub(x[v], value), i + v * kLanes);
    }
    StoreCodes(sent, positive, out + i / 4);
  }
  return encode_bf16_scalar(grad + i, residual.from(i).at, elements - i, quantiser, out + i / 4) || nonfinite;
}

template <bool kResidual>
bool EncodeWith(const float* grad, float* residual, std::size_t elements, const Quantiser& quantiser,
                std::byte* out, UnitSums* sums) {
  if (sums != nullptr)
    return EncodeRun<kResidual, true, true>(grad, residual, elements, quantiser, out, sums);
  if (quantiser.nonfinite == NonFinite::kSkip) {
    return EncodeRun<kResidual, true, false>(grad, residual, elements, quantiser, out, nullptr);
  }
  return EncodeRun<kResidual, false, false>(grad, residual, elements, quantiser, out, nullptr);
}

bool Encode(const float* grad, float* residual, std::size_t elements, const Quantiser& quantiser,
            std::byte* out, UnitSums* sums) {
  return residual == nullptr ? EncodeWith<false>(grad, residual, elements, quantiser, out, sums)
                             : EncodeWith<true>(grad, residual, elements, quantiser, out, sums);
}

template <bool kResidual>
void MeasureRun(const float* HWY_RESTRICT grad, const float* HWY_RESTRICT residual, std::size_t elements,
                float threshold, UnitSums* HWY_RESTRICT sums) {
  const Floats d;
  const Ints di;
  const FloatVector least = hn::Set(d, threshold);
  for (std::size_t begin = 0; begin < elements; begin += kBlockElements) {
    const std::size_t end = std::min(elements, begin + kBlockElements);
    LaneSums lanes;
    lanes.Clear();
    std::size_t count = 0;
    std::size_t i = begin;
    for (; i + kSumLanes <= end; i += kSumLanes) {
      for (std::size_t v = 0; v < LaneSums::kVectors; ++v) {
        FloatVector x = hn::LoadU(d, grad + i + v * kLanes);
        if constexpr (kResidual) x = hn::Add(hn::LoadU(d, residual + i + v * kLanes), x);
        x = hn::Abs(x);
        // Elements that are not finite are in no sum, so one of them does not change a unit's scale.
        const auto finite = hn::RebindMask(d, hn::Lt(hn::BitCast(di, x), hn::Set(di, 0x7f800000)));
        const auto selected = hn::And(finite, hn::Ge(x, least));
        lanes.Add(v, hn::IfThenElseZero(finite, x), hn::IfThenElseZero(selected, x));
        count += hn::CountTrue(d, selected);
      }
    }
    // The last block of a tensor. Its missing elements add nothing to their lanes.
    if (i < end) {
      BlockLanes block;
      lanes.Store(&block);
      measure_block_scalar(grad + i, kResidual ? residual + i : nullptr, end - i, threshold, &block,
                           i - begin);
      lanes.Load(block);
      count += block.selected_count;
    }
    lanes.AppendTo(sums, static_cast<std::uint32_t>(count));
  }
}

void Measure(const float* grad, const float* residual, std::size_t elements, float threshold,
             UnitSums* sums) {
  if (residual == nullptr) return MeasureRun<false>(grad, residual, elements, threshold, sums);
  MeasureRun<true>(grad, residual, elements, threshold, sums);
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace gradwire::compress::two_bit
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradwire::compress::two_bit {

HWY_EXPORT(Encode);
HWY_EXPORT(EncodeBf16);
HWY_EXPORT(Measure);

bool encode(const float* grad, float* residual, std::size_t elements, const Quantiser& quantiser,
            std::byte* out, UnitSums* sums) noexcept {
  return HWY_DYNAMIC_DISPATCH(Encode)(grad, residual, elements, quantiser, out, sums);
}

bool encode_bf16(const float* grad, std::byte* residual, std::size_t elements, const Quantiser& quantiser,
                 std::byte* out) noexcept {
  return HWY_DYNAMIC_DISPATCH(EncodeBf16)(grad, residual, elements, quantiser, out);
}

void measure(const float* grad, const float* residual, std::size_t elements, float threshold,
             UnitSums* sums) noexcept {
  HWY_DYNAMIC_DISPATCH(Measure)(grad, residual, elements, threshold, sums);
}

}  // namespace gradwire::compress::two_bit
#endif
