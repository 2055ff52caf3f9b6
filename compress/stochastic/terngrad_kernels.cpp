#include "compress/stochastic/terngrad_kernels.h"

// Vectors of a length unknown to the compiler cannot stand in the fixed lanes; such machines use 128-bit
// targets.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/stochastic/terngrad_kernels.cpp"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
// For each target, so behind foreach_target.h.
#include "compress/stochastic/dither_inl.h"
#include "compress/two_bit/two_bit_codes_inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::compress::terngrad {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || !HWY_HAVE_FLOAT64

void Measure(const float* grad, const float* residual, std::size_t elements, Moments* moments) {
  measure_scalar(grad, residual, elements, moments);
}

bool Encode(const float* grad, float* residual, std::size_t elements, float scale, const Dither* dither,
            std::size_t first, std::byte* codes) {
  return encode_scalar(grad, residual, elements, scale, dither, first, codes);
}

#else

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::CappedTag<float, Moments::kLanes>;
using Ints = hn::RebindToSigned<Floats>;
using Bits = hn::RebindToUnsigned<Floats>;
using HalfFloats = hn::Half<Floats>;
using Doubles = hn::RepartitionToWide<Floats>;
using FloatVector = hn::Vec<Floats>;

constexpr std::size_t kLanes = hn::MaxLanes(Floats());
// Moments have a fixed number of lanes on every target, so that sums have the same bits.
constexpr std::size_t kVectors = Moments::kLanes / kLanes;
constexpr std::size_t kStep = Dither::kGroup;         // elements that encode handles at a time
constexpr std::size_t kAhead = 1536 / sizeof(float);  // elements that a pass asks memory for in advance
static_assert(kStep == 64);

HWY_INLINE hn::Mask<Floats> Finite(FloatVector x) {
  const auto magnitude = hn::BitCast(Ints(), hn::Abs(x));
  return hn::RebindMask(Floats(),
                        hn::Lt(magnitude, hn::Set(Ints(), static_cast<std::int32_t>(kInfinityBits))));
}

template <bool kResidual>
void MeasureRun(const float* HWY_RESTRICT grad, const float* HWY_RESTRICT residual, std::size_t elements,
                Moments* HWY_RESTRICT moments) {
  const Floats d;
  const Doubles dd;
  const HalfFloats half;
  hn::Vec<Doubles> squares[2 * kVectors];
  for (std::size_t v = 0; v < 2 * kVectors; ++v) {
    squares[v] = hn::LoadU(dd, moments->squares.data() + v * kLanes / 2);
  }
  FloatVector most = hn::Zero(d);
  std::size_t i = 0;
  for (; i + Moments::kLanes <= elements; i += Moments::kLanes) {
    hwy::Prefetch(grad + i + kAhead);
    if constexpr (kResidual) hwy::Prefetch(residual + i + kAhead);
    for (std::size_t v = 0; v < kVectors; ++v) {
      FloatVector x = hn::LoadU(d, grad + i + v * kLanes);
      if constexpr (kResidual) x = hn::Add(hn::LoadU(d, residual + i + v * kLanes), x);
      x = hn::IfThenElseZero(Finite(x), x);
      most = hn::Max(most, hn::Abs(x));
      // In double: squares of floats overflow and vanish within float32.
      const auto lower = hn::PromoteTo(dd, hn::LowerHalf(half, x));
      const auto upper = hn::PromoteTo(dd, hn::UpperHalf(half, x));
      squares[2 * v] = hn::Add(squares[2 * v], hn::Mul(lower, lower));
      squares[2 * v + 1] = hn::Add(squares[2 * v + 1], hn::Mul(upper, upper));
    }
  }
  for (std::size_t v = 0; v < 2 * kVectors; ++v) {
    hn::StoreU(squares[v], dd, moments->squares.data() + v * kLanes / 2);
  }
  moments->most = HWY_MAX(moments->most, hn::GetLane(hn::MaxOfLanes(d, most)));
  measure_scalar(grad + i, kResidual ? residual + i : nullptr, elements - i, moments);
}

void Measure(const float* grad, const float* residual, std::size_t elements, Moments* moments) {
  if (residual == nullptr) return MeasureRun<false>(grad, residual, elements, moments);
  MeasureRun<true>(grad, residual, elements, moments);
}

template <bool kResidual>
bool EncodeRun(const float* HWY_RESTRICT grad, float* HWY_RESTRICT residual, std::size_t elements,
               float scale, const Dither* dither, std::size_t first, std::byte* HWY_RESTRICT codes) {
  const Floats d;
  const FloatVector inverse = hn::Set(d, inverse_of(scale));
  const FloatVector up = hn::Set(d, scale);
  const FloatVector down = hn::Neg(up);
  alignas(64) std::uint32_t words[kStep];
  auto all_finite = hn::Eq(up, up);
  std::size_t i = 0;
  for (; i + kStep <= elements; i += kStep) {
    if (dither != nullptr) {
      compress::HWY_NAMESPACE::WordsOfGroup(*dither, (dither->position.offset + first + i) / kStep, words);
    }
    std::uint64_t all_sent = 0;
    std::uint64_t all_positive = 0;
    for (std::size_t e = 0; e < kStep; e += kLanes) {
      const FloatVector kept = kResidual ? hn::LoadU(d, residual + i + e) : hn::Zero(d);
      FloatVector x = hn::LoadU(d, grad + i + e);
      if constexpr (kResidual) x = hn::Add(kept, x);
      const auto finite = Finite(x);
      all_finite = hn::And(all_finite, finite);
      // Without a dither, one half: |x| / scale is rounded to nearest.
      FloatVector uniform = hn::Set(d, kToNearest);
      if (dither != nullptr) uniform = compress::HWY_NAMESPACE::UniformsOf(hn::Load(Bits(), words + e));
      // Below |x| / scale with that probability, so what is sent is x on average (Wen et al. 2017, equation
      // 3).
      const auto sent = hn::And(finite, hn::Lt(uniform, hn::Mul(hn::Abs(x), inverse)));
      const auto positive = hn::And(sent, hn::Gt(x, hn::Zero(d)));
      all_sent |= two_bit::HWY_NAMESPACE::MaskBits(d, sent) << e;
      all_positive |= two_bit::HWY_NAMESPACE::MaskBits(d, positive) << e;
      if constexpr (kResidual) {
        const FloatVector value = hn::IfThenElseZero(sent, hn::IfThenElse(positive, up, down));
        // What was kept stays where x is not finite.
        hn::StoreU(hn::IfThenElse(finite, hn::Sub(x, value), kept), d, residual + i + e);
      }
    }
    two_bit::HWY_NAMESPACE::StoreCodes(all_sent, all_positive, codes + i / 4);
  }
  const bool tail = encode_scalar(grad + i, kResidual ? residual + i : nullptr, elements - i, scale, dither,
                                  first + i, codes + i / 4);
  return tail || !hn::AllTrue(d, all_finite);
}

bool Encode(const float* grad, float* residual, std::size_t elements, float scale, const Dither* dither,
            std::size_t first, std::byte* codes) {
  return residual == nullptr ? EncodeRun<false>(grad, residual, elements, scale, dither, first, codes)
                             : EncodeRun<true>(grad, residual, elements, scale, dither, first, codes);
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace gradwire::compress::terngrad
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradwire::compress::terngrad {

HWY_EXPORT(Measure);
HWY_EXPORT(Encode);

void measure(const float* grad, const float* residual, std::size_t elements, Moments* moments) noexcept {
  HWY_DYNAMIC_DISPATCH(Measure)(grad, residual, elements, moments);
}

bool encode(const float* grad, float* residual, std::size_t elements, float scale, const Dither* dither,
            std::size_t first, std::byte* codes) noexcept {
  return HWY_DYNAMIC_DISPATCH(Encode)(grad, residual, elements, scale, dither, first, codes);
}

}  // namespace gradwire::compress::terngrad
#endif
