#include "compress/sparse/sparse_kernels.h"

// Vectors of a length unknown to the compiler cannot stand in the fixed lanes; such machines use 128-bit
// targets.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/sparse/sparse_kernels.cpp"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::compress::sparse {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

bool Accumulate(const float* grad, float* residual, std::size_t elements, float* x) {
  return accumulate_scalar(grad, residual, elements, x);
}

std::size_t Collect(const float* x, std::size_t elements, std::uint32_t least, std::uint32_t* indices) {
  return collect_scalar(x, elements, least, indices);
}

#else

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::CappedTag<float, kCollectSlack>;
using Ints = hn::RebindToSigned<Floats>;
using Bits = hn::RebindToUnsigned<Floats>;
using FloatVector = hn::Vec<Floats>;

constexpr std::size_t kLanes = hn::MaxLanes(Floats());
constexpr std::size_t kAhead = 1536 / sizeof(float);  // elements that a pass asks memory for in advance

HWY_INLINE hn::Vec<Ints> Magnitude(FloatVector v) { return hn::BitCast(Ints(), hn::Abs(v)); }

template <bool kResidual>
bool AccumulateRun(const float* HWY_RESTRICT grad, float* HWY_RESTRICT residual, std::size_t elements,
                   float* HWY_RESTRICT x) {
  const Floats d;
  const auto infinity = hn::Set(Ints(), static_cast<std::int32_t>(kInfinityBits));
  auto all_finite = hn::Eq(hn::Zero(d), hn::Zero(d));
  std::size_t i = 0;
  for (; i + kLanes <= elements; i += kLanes) {
    hwy::Prefetch(grad + i + kAhead);
    FloatVector v = hn::LoadU(d, grad + i);
    FloatVector kept = hn::Zero(d);
    if constexpr (kResidual) {
      hwy::Prefetch(residual + i + kAhead);
      kept = hn::LoadU(d, residual + i);
      v = hn::Add(kept, v);
    }
    const auto finite = hn::RebindMask(d, hn::Lt(Magnitude(v), infinity));
    all_finite = hn::And(all_finite, finite);
    hn::StoreU(hn::IfThenElseZero(finite, v), d, x + i);
    // An element that is not finite is 0 in x, and so is sent last. Its residual stays.
    if constexpr (kResidual) hn::StoreU(hn::IfThenElse(finite, v, kept), d, residual + i);
  }
  return accumulate_scalar(grad + i, kResidual ? residual + i : nullptr, elements - i, x + i) ||
         !hn::AllTrue(d, all_finite);
}

bool Accumulate(const float* grad, float* residual, std::size_t elements, float* x) {
  return residual == nullptr ? AccumulateRun<false>(grad, residual, elements, x)
                             : AccumulateRun<true>(grad, residual, elements, x);
}

std::size_t Collect(const float* HWY_RESTRICT x, std::size_t elements, std::uint32_t least,
                    std::uint32_t* HWY_RESTRICT indices) {
  const auto below =
      hn::Set(Ints(), static_cast<std::int32_t>(least) - 1);  // Highway compares no integers by >=
  std::size_t count = 0;
  std::size_t i = 0;
  for (; i + kLanes <= elements; i += kLanes) {
    const auto chosen = hn::Gt(Magnitude(hn::LoadU(Floats(), x + i)), below);
    // Most vectors have none, as few elements are sent.
    if (hn::AllFalse(Ints(), chosen)) continue;
    const auto places = hn::Iota(Bits(), static_cast<std::uint32_t>(i));
    // It writes a whole vector, hence kCollectSlack behind the indices.
    count += hn::CompressStore(places, hn::RebindMask(Bits(), chosen), Bits(), indices + count);
  }
  for (; i < elements; ++i) {
    if (magnitude_bits(x[i]) >= least) indices[count++] = static_cast<std::uint32_t>(i);
  }
  return count;
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace gradwire::compress::sparse
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradwire::compress::sparse {

HWY_EXPORT(Accumulate);
HWY_EXPORT(Collect);

bool accumulate(const float* grad, float* residual, std::size_t elements, float* x) noexcept {
  return HWY_DYNAMIC_DISPATCH(Accumulate)(grad, residual, elements, x);
}

std::size_t collect(const float* x, std::size_t elements, std::uint32_t least,
                    std::uint32_t* indices) noexcept {
  return HWY_DYNAMIC_DISPATCH(Collect)(x, elements, least, indices);
}

}  // namespace gradwire::compress::sparse
#endif
