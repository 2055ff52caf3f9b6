#include "compress/stochastic/natural_kernels.h"

// Vectors of a length unknown to the compiler cannot stand in the fixed lanes; such machines use 128-bit
// targets.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/stochastic/natural_kernels.cpp"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
// For each target, so behind foreach_target.h.
#include "compress/stochastic/dither_inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::compress::natural {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

bool Encode(const float* grad, float* residual, std::size_t elements, const Dither* dither,
            std::byte* exponents, std::byte* signs) {
  return encode_scalar(grad, residual, elements, dither, 0, exponents, signs);
}

void Decode(const std::byte* exponents, const std::byte* signs, std::size_t elements, bool add, float* out) {
  decode_scalar(exponents, signs, elements, add, out);
}

#else

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::CappedTag<float, 16>;
using Bits = hn::RebindToUnsigned<Floats>;
using Ints = hn::RebindToSigned<Floats>;
using Quarters = hn::Rebind<std::uint8_t, Floats>;
using FloatVector = hn::Vec<Floats>;
using BitVector = hn::Vec<Bits>;

constexpr std::size_t kLanes = hn::MaxLanes(Floats());
constexpr std::size_t kStep = Dither::kGroup;         // elements handled at a time: one word of signs
constexpr std::size_t kAhead = 1536 / sizeof(float);  // elements that encode asks memory for in advance
static_assert(kStep == 64);

HWY_INLINE BitVector Splat(std::uint32_t value) { return hn::Set(Bits(), value); }

HWY_INLINE hn::Mask<Bits> Finite(BitVector magnitude) {
  const auto infinity = hn::Set(Ints(), static_cast<std::int32_t>(kInfinityBits));
  return hn::RebindMask(Bits(), hn::Lt(hn::BitCast(Ints(), magnitude), infinity));
}

template <bool kResidual>
bool EncodeRun(const float* HWY_RESTRICT grad, float* HWY_RESTRICT residual, std::size_t elements,
               const Dither* dither, std::byte* HWY_RESTRICT exponents, std::byte* HWY_RESTRICT signs) {
  const Floats d;
  alignas(64) std::uint32_t words[kStep];
  // Without a dither all words are one half.
  for (std::size_t e = 0; e < kStep; e += kLanes) hn::Store(Splat(kToNearest), Bits(), words + e);
  auto all_finite = hn::Eq(Splat(0), Splat(0));
  std::size_t i = 0;
  for (; i + kStep <= elements; i += kStep) {
    if (dither != nullptr) {
      compress::HWY_NAMESPACE::WordsOfGroup(*dither, (dither->position.offset + i) / kStep, words);
    }
    std::uint64_t negative = 0;
    for (std::size_t e = 0; e < kStep; e += kLanes) {
      hwy::Prefetch(grad + i + e + kAhead);
      if constexpr (kResidual) hwy::Prefetch(residual + i + e + kAhead);
      const FloatVector kept = kResidual ? hn::LoadU(d, residual + i + e) : hn::Zero(d);
      FloatVector x = hn::LoadU(d, grad + i + e);
      if constexpr (kResidual) x = hn::Add(kept, x);
      const BitVector magnitude = hn::AndNot(Splat(kSignBit), hn::BitCast(Bits(), x));
      const auto finite = Finite(magnitude);
      all_finite = hn::And(all_finite, finite);
      const BitVector chance = hn::ShiftRight<32 - kFractionBits>(hn::Load(Bits(), words + e));
      // The fraction plus a random fraction carries into the exponent with the right probability: rounds to a
      // power of two.
      const BitVector carried = hn::ShiftRight<kFractionBits>(hn::Add(magnitude, chance));
      // The carry may reach infinity's exponent. 2^127 is sent then, and the rest kept.
      const BitVector exponent = hn::IfThenElseZero(finite, hn::Min(carried, Splat(kLargestExponent)));
      hn::StoreU(hn::TruncateTo(Quarters(), exponent), Quarters(),
                 reinterpret_cast<std::uint8_t*>(exponents + i + e));
      const BitVector sign = hn::IfThenElseZero(finite, hn::And(hn::BitCast(Bits(), x), Splat(kSignBit)));
      std::uint64_t bits = 0;
      hn::StoreMaskBits(Ints(), hn::Lt(hn::BitCast(Ints(), sign), hn::Zero(Ints())),
                        reinterpret_cast<std::uint8_t*>(&bits));
      negative |= bits << e;
      if constexpr (kResidual) {
        const BitVector sent = hn::Or(hn::ShiftLeft<kFractionBits>(exponent), sign);
        const FloatVector rest = hn::Sub(x, hn::BitCast(Floats(), sent));
        hn::StoreU(hn::IfThenElse(hn::RebindMask(d, finite), rest, kept), d, residual + i + e);
      }
    }
    store(negative, signs + i / 8);
  }
  const bool tail = encode_scalar(grad + i, kResidual ? residual + i : nullptr, elements - i, dither, i,
                                  exponents + i, signs + i / 8);
  return tail || !hn::AllTrue(Bits(), all_finite);
}

bool Encode(const float* grad, float* residual, std::size_t elements, const Dither* dither,
            std::byte* exponents, std::byte* signs) {
  return residual == nullptr ? EncodeRun<false>(grad, residual, elements, dither, exponents, signs)
                             : EncodeRun<true>(grad, residual, elements, dither, exponents, signs);
}

template <bool kAdd>
void DecodeRun(const std::byte* HWY_RESTRICT exponents, const std::byte* HWY_RESTRICT signs,
               std::size_t elements, float* HWY_RESTRICT out) {
  const Floats d;
  std::size_t i = 0;
  for (; i + kStep <= elements; i += kStep) {
    const auto negative = load<std::uint64_t>(signs + i / 8);
    for (std::size_t e = 0; e < kStep; e += kLanes) {
      const auto bytes = hn::LoadU(Quarters(), reinterpret_cast<const std::uint8_t*>(exponents + i + e));
      const BitVector power = hn::ShiftLeft<kFractionBits>(hn::PromoteTo(Bits(), bytes));
      const std::uint64_t bits = negative >> e;
      const auto is_negative = hn::LoadMaskBits(Bits(), reinterpret_cast<const std::uint8_t*>(&bits));
      FloatVector value = hn::BitCast(d, hn::Or(power, hn::IfThenElseZero(is_negative, Splat(kSignBit))));
      if constexpr (kAdd) value = hn::Add(hn::LoadU(d, out + i + e), value);
      hn::StoreU(value, d, out + i + e);
    }
  }
  decode_scalar(exponents + i, signs + i / 8, elements - i, kAdd, out + i);
}

void Decode(const std::byte* exponents, const std::byte* signs, std::size_t elements, bool add, float* out) {
  if (add) {
    DecodeRun<true>(exponents, signs, elements, out);
  } else {
    DecodeRun<false>(exponents, signs, elements, out);
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace gradwire::compress::natural
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradwire::compress::natural {

HWY_EXPORT(Encode);
HWY_EXPORT(Decode);

bool encode(const float* grad, float* residual, std::size_t elements, const Dither* dither,
            std::byte* exponents, std::byte* signs) noexcept {
  return HWY_DYNAMIC_DISPATCH(Encode)(grad, residual, elements, dither, exponents, signs);
}

void decode(const std::byte* exponents, const std::byte* signs, std::size_t elements, bool add,
            float* out) noexcept {
  HWY_DYNAMIC_DISPATCH(Decode)(exponents, signs, elements, add, out);
}

}  // namespace gradwire::compress::natural
#endif
