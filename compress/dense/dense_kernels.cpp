#include "compress/dense/dense_kernels.h"

#include <type_traits>

// Vectors of a length unknown to the compiler cannot stand in the fixed lanes; such machines use 128-bit
// targets.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/dense/dense_kernels.cpp"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
// For each target, so behind foreach_target.h.
#include "compress/dense/residuals_inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::compress::dense {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

bool Encode(Format format, const float* grad, float* residual, std::size_t elements, std::byte* out) {
  return encode_scalar(format, grad, residual, elements, out);
}

bool EncodeBf16(Format format, const float* grad, std::byte* residual, std::size_t elements, std::byte* out) {
  return encode_bf16_scalar(format, grad, residual, elements, out);
}

bool Sum(Format format, std::span<const Payload> payloads, std::size_t offset, std::size_t elements,
         float* out) {
  return sum_scalar(format, payloads, offset, elements, out);
}

void Decode(Format format, const std::byte* payload, std::size_t elements, float scale, float* out) {
  decode_scalar(format, payload, elements, scale, out);
}

#else

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::CappedTag<float, 16>;
using Bits = hn::RebindToUnsigned<Floats>;
using Ints = hn::RebindToSigned<Floats>;
using Halves = hn::Rebind<std::uint16_t, Floats>;
constexpr std::size_t kLanes = hn::MaxLanes(Floats());
constexpr std::size_t kAheadBytes = 1536;               // what a pass asks memory for in advance
constexpr std::size_t kStreamElements = kUnitElements;  // outputs from here on go around the cache

using FloatVector = hn::Vec<Floats>;
using BitVector = hn::Vec<Bits>;

HWY_INLINE BitVector Splat(std::uint32_t value) { return hn::Set(Bits(), value); }

// Processors that convert to binary16, to nearest even. For others, Highway's own code truncates.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2

using Float16s = hn::Rebind<hwy::float16_t, Floats>;

HWY_INLINE FloatVector LoadF16(const std::byte* from) {
  const auto half = hn::LoadU(Halves(), reinterpret_cast<const std::uint16_t*>(from));
  return hn::PromoteTo(Floats(), hn::BitCast(Float16s(), half));
}

HWY_INLINE FloatVector StoreF16(FloatVector x, std::byte* to) {
  const FloatVector largest = hn::Set(Floats(), std::bit_cast<float>(kF16LargestBits));
  // Clamped before, because the processor would round what is beyond to infinity.
  const auto half = hn::DemoteTo(Float16s(), hn::Clamp(x, hn::Neg(largest), largest));
  hn::StoreU(hn::BitCast(Halves(), half), Halves(), reinterpret_cast<std::uint16_t*>(to));
  return hn::PromoteTo(Floats(), half);
}

#else

HWY_INLINE FloatVector FloatFromF16(BitVector half) {
  const BitVector magnitude = hn::And(half, Splat(0x7fff));
  const FloatVector small = hn::BitCast(Floats(), hn::Or(magnitude, Splat(kHalfBits)));
  const BitVector subnormal = hn::BitCast(Bits(), hn::Sub(small, hn::Set(Floats(), 0.5f)));
  const BitVector normal = hn::Add(hn::ShiftLeft<13>(magnitude), Splat(kF16Rebias));
  const BitVector special = hn::IfThenElseZero(hn::Gt(magnitude, Splat(0x7bff)), Splat(kF16Rebias));
  const BitVector bits = hn::IfThenElse(hn::Lt(magnitude, Splat(0x400)), subnormal, hn::Add(normal, special));
  return hn::BitCast(Floats(), hn::Or(bits, hn::ShiftLeft<16>(hn::And(half, Splat(0x8000)))));
}

HWY_INLINE FloatVector LoadF16(const std::byte* from) {
  return FloatFromF16(
      hn::PromoteTo(Bits(), hn::LoadU(Halves(), reinterpret_cast<const std::uint16_t*>(from))));
}

HWY_INLINE FloatVector StoreF16(FloatVector x, std::byte* to) {
  const BitVector magnitude = hn::Min(hn::BitCast(Bits(), hn::Abs(x)), Splat(kF16LargestBits));
  const BitVector odd = hn::And(hn::ShiftRight<13>(magnitude), Splat(1));
  const BitVector normal = hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, Splat(0xfffu - kF16Rebias)), odd));
  const FloatVector small = hn::Add(hn::BitCast(Floats(), magnitude), hn::Set(Floats(), 0.5f));
  const BitVector subnormal = hn::Sub(hn::BitCast(Bits(), small), Splat(kHalfBits));
  const BitVector rounded = hn::IfThenElse(hn::Lt(magnitude, Splat(kF16SmallestNormal)), subnormal, normal);
  const BitVector half =
      hn::Or(rounded, hn::ShiftRight<16>(hn::And(hn::BitCast(Bits(), x), Splat(kSignBit))));
  hn::StoreU(hn::TruncateTo(Halves(), half), Halves(), reinterpret_cast<std::uint16_t*>(to));
  return FloatFromF16(half);
}

#endif

template <Format kFormat>
HWY_INLINE FloatVector Load(const std::byte* from) {
  if constexpr (kFormat == Format::kF16) return LoadF16(from);
  if constexpr (kFormat == Format::kBf16) return LoadBf16(from);
  return hn::LoadU(Floats(), reinterpret_cast<const float*>(from));
}

/// Writes x, of which only lanes in `finite` are finite, and returns what a decoder will read.
template <Format kFormat>
HWY_INLINE FloatVector Store(FloatVector x, hn::Mask<Floats> finite, std::byte* to) {
  // `none` sends NaN and infinity as they are; all others send 0 in their place.
  if constexpr (kFormat != Format::kF32) x = hn::IfThenElseZero(finite, x);
  if constexpr (kFormat == Format::kF16) return StoreF16(x, to);
  if constexpr (kFormat == Format::kBf16) return StoreBf16(x, to);
  hn::StoreU(x, Floats(), reinterpret_cast<float*>(to));
  return x;
}

/// Lanes whose magnitude has lesser bits than `first`.
HWY_INLINE hn::Mask<Floats> Below(FloatVector x, std::uint32_t first) {
  const auto magnitude = hn::BitCast(Ints(), hn::Abs(x));
  return hn::RebindMask(Floats(), hn::Lt(magnitude, hn::Set(Ints(), static_cast<std::int32_t>(first))));
}

HWY_INLINE hn::Mask<Floats> Finite(FloatVector x) { return Below(x, kInfinityBits); }

template <Format kFormat, class Residual>
bool EncodeTail(const float* grad, Residual residual, std::size_t elements, std::byte* out) {
  if constexpr (std::is_same_v<Residual, Bf16Residual>) {
    return encode_bf16_scalar(kFormat, grad, residual.at, elements, out);
  } else {
    return encode_scalar(kFormat, grad, residual.at, elements, out);
  }
}

template <Format kFormat, class Residual>
bool EncodeRun(const float* HWY_RESTRICT grad, Residual residual, std::size_t elements,
               std::byte* HWY_RESTRICT out) {
  constexpr std::size_t kWidth = bytes_per_element(kFormat);
  constexpr std::size_t kAhead = kAheadBytes / sizeof(float);
  const Floats d;
  // One mask for the whole run: nothing branches on what elements are.
  auto all_fit = hn::Eq(hn::Zero(d), hn::Zero(d));
  std::size_t i = 0;
  for (; i + kLanes <= elements; i += kLanes) {
    hwy::Prefetch(grad + i + kAhead);
    FloatVector x = hn::LoadU(d, grad + i);
    FloatVector kept = hn::Zero(d);
    if constexpr (Residual::kIsThere) {
      residual.Prefetch(i + kAhead);
      kept = residual.Load(i);
      x = hn::Add(kept, x);
    }
    const auto finite = Finite(x);
    // Reported from where IEEE would round to infinity (fp16: 65520), though the largest finite value is
    // sent.
    all_fit = hn::And(all_fit, Below(x, first_beyond(kFormat)));
    const FloatVector sent = Store<kFormat>(x, finite, out + i * kWidth);
    // What was kept stays where x is not finite: one bad gradient must not spoil the residual for ever.
    if constexpr (Residual::kIsThere) residual.Store(hn::IfThenElse(finite, hn::Sub(x, sent), kept), i);
  }
  // Before the `or`, which would skip it.
  const bool tail = EncodeTail<kFormat>(grad + i, residual.from(i), elements - i, out + i * kWidth);
  return tail || !hn::AllTrue(d, all_fit);
}

template <Format kFormat>
bool SumRun(std::span<const Payload> payloads, std::size_t offset, std::size_t elements,
            float* HWY_RESTRICT out) {
  constexpr std::size_t kWidth = bytes_per_element(kFormat);
  const Floats d;
  auto all_finite = hn::Eq(hn::Zero(d), hn::Zero(d));
  std::size_t i = 0;
  for (; i + kLanes <= elements; i += kLanes) {
    const std::byte* const first = payloads[0].data() + offset + i * kWidth;
    hwy::Prefetch(first + kAheadBytes);
    // Element by element through all payloads, in rank order: each output is written once, and devices add in
    // the same order.
    FloatVector sum = Load<kFormat>(first);
    for (const Payload& payload : payloads.subspan(1)) {
      hwy::Prefetch(payload.data() + offset + i * kWidth + kAheadBytes);
      sum = hn::Add(sum, Load<kFormat>(payload.data() + offset + i * kWidth));
    }
    all_finite = hn::And(all_finite, Finite(sum));
    hn::StoreU(sum, d, out + i);
  }
  return sum_scalar(kFormat, payloads, offset + i * kWidth, elements - i, out + i) ||
         !hn::AllTrue(d, all_finite);
}

template <class Residual>
bool EncodeWith(Format format, const float* grad, Residual residual, std::size_t elements, std::byte* out) {
  switch (format) {
    case Format::kF16:
      return EncodeRun<Format::kF16>(grad, residual, elements, out);
    case Format::kBf16:
      return EncodeRun<Format::kBf16>(grad, residual, elements, out);
    case Format::kF32Finite:
      return EncodeRun<Format::kF32Finite>(grad, residual, elements, out);
    default:
      return EncodeRun<Format::kF32>(grad, residual, elements, out);
  }
}

bool Encode(Format format, const float* grad, float* residual, std::size_t elements, std::byte* out) {
  return residual == nullptr ? EncodeWith(format, grad, NoResidual(), elements, out)
                             : EncodeWith(format, grad, Fp32Residual{residual}, elements, out);
}

bool EncodeBf16(Format format, const float* grad, std::byte* residual, std::size_t elements, std::byte* out) {
  return EncodeWith(format, grad, Bf16Residual{residual}, elements, out);
}

bool Sum(Format format, std::span<const Payload> payloads, std::size_t offset, std::size_t elements,
         float* out) {
  switch (format) {
    case Format::kF16:
      return SumRun<Format::kF16>(payloads, offset, elements, out);
    case Format::kBf16:
      return SumRun<Format::kBf16>(payloads, offset, elements, out);
    default:
      return SumRun<Format::kF32>(payloads, offset, elements, out);
  }
}

/// Around the cache, whose lines need not be read then: needs out + head aligned to a vector.
template <Format kFormat, bool kScale, bool kStream>
void DecodeRun(const std::byte* HWY_RESTRICT payload, std::size_t head, std::size_t elements, float scale,
               float* HWY_RESTRICT out) {
  constexpr std::size_t kWidth = bytes_per_element(kFormat);
  const Floats d;
  const FloatVector factor = hn::Set(d, scale);
  // The elements before the first aligned vector.
  decode_scalar(kFormat, payload, head, scale, out);
  std::size_t i = head;
  for (; i + kLanes <= elements; i += kLanes) {
    hwy::Prefetch(payload + i * kWidth + kAheadBytes);
    FloatVector value = Load<kFormat>(payload + i * kWidth);
    if constexpr (kScale) value = hn::Mul(value, factor);
    if constexpr (kStream) {
      hn::Stream(value, d, out + i);
    } else {
      hn::StoreU(value, d, out + i);
    }
  }
  if constexpr (kStream) hwy::FlushStream();
  decode_scalar(kFormat, payload + i * kWidth, elements - i, scale, out + i);
}

template <Format kFormat, bool kScale>
void DecodeAs(const std::byte* payload, std::size_t elements, float scale, float* out) {
  if (elements < kStreamElements) return DecodeRun<kFormat, kScale, false>(payload, 0, elements, scale, out);
  const std::size_t head = -reinterpret_cast<std::uintptr_t>(out) / sizeof(float) % kLanes;
  DecodeRun<kFormat, kScale, true>(payload, head, elements, scale, out);
}

template <Format kFormat>
void DecodeAs(const std::byte* payload, std::size_t elements, float scale, float* out) {
  // A product with 1 may change a NaN's bits.
  if (scale == 1) return DecodeAs<kFormat, false>(payload, elements, scale, out);
  DecodeAs<kFormat, true>(payload, elements, scale, out);
}

void Decode(Format format, const std::byte* payload, std::size_t elements, float scale, float* out) {
  switch (format) {
    case Format::kF16:
      return DecodeAs<Format::kF16>(payload, elements, scale, out);
    case Format::kBf16:
      return DecodeAs<Format::kBf16>(payload, elements, scale, out);
    default:
      return DecodeAs<Format::kF32>(payload, elements, scale, out);
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace gradwire::compress::dense
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradwire::compress::dense {

HWY_EXPORT(Encode);
HWY_EXPORT(EncodeBf16);
HWY_EXPORT(Sum);
HWY_EXPORT(Decode);

bool encode(Format format, const float* grad, float* residual, std::size_t elements,
            std::byte* out) noexcept {
  return HWY_DYNAMIC_DISPATCH(Encode)(format, grad, residual, elements, out);
}

bool encode_bf16(Format format, const float* grad, std::byte* residual, std::size_t elements,
                 std::byte* out) noexcept {
  return HWY_DYNAMIC_DISPATCH(EncodeBf16)(format, grad, residual, elements, out);
}

bool sum(Format format, std::span<const Payload> payloads, std::size_t offset, std::size_t elements,
         float* out) noexcept {
  return HWY_DYNAMIC_DISPATCH(Sum)(format, payloads, offset, elements, out);
}

void decode(Format format, const std::byte* payload, std::size_t elements, float scale, float* out) noexcept {
  HWY_DYNAMIC_DISPATCH(Decode)(format, payload, elements, scale, out);
}

}  // namespace gradwire::compress::dense
#endif
