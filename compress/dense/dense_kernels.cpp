#include "compress/dense/dense_kernels.h"

// Vectors of a length unknown to the compiler cannot stand in the fixed lanes; such machines use 128-bit
// targets.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/dense/dense_kernels.cpp"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::compress::dense {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

bool Encode(Format format, const float* grad, float* residual, std::size_t elements, std::byte* out) {
  return encode_scalar(format, grad, residual, elements, out);
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

HWY_INLINE BitVector F16FromFloat(BitVector magnitude) {
  magnitude = hn::Min(magnitude, Splat(kF16LargestBits));
  const BitVector odd = hn::And(hn::ShiftRight<13>(magnitude), Splat(1));
  const BitVector normal = hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, Splat(0xfffu - kF16Rebias)), odd));
  const FloatVector small = hn::Add(hn::BitCast(Floats(), magnitude), hn::Set(Floats(), 0.5f));
  const BitVector subnormal = hn::Sub(hn::BitCast(Bits(), small), Splat(kHalfBits));
  return hn::IfThenElse(hn::Lt(magnitude, Splat(kF16SmallestNormal)), subnormal, normal);
}

HWY_INLINE BitVector FloatFromF16(BitVector magnitude) {
  const FloatVector small = hn::BitCast(Floats(), hn::Or(magnitude, Splat(kHalfBits)));
  const BitVector subnormal = hn::BitCast(Bits(), hn::Sub(small, hn::Set(Floats(), 0.5f)));
  const BitVector normal = hn::Add(hn::ShiftLeft<13>(magnitude), Splat(kF16Rebias));
  const BitVector special = hn::IfThenElseZero(hn::Gt(magnitude, Splat(0x7bff)), Splat(kF16Rebias));
  return hn::IfThenElse(hn::Lt(magnitude, Splat(0x400)), subnormal, hn::Add(normal, special));
}

HWY_INLINE BitVector Bf16FromFloat(BitVector magnitude) {
  const BitVector odd = hn::And(hn::ShiftRight<16>(magnitude), Splat(1));
  return hn::Min(hn::ShiftRight<16>(hn::Add(hn::Add(magnitude, Splat(0x7fff)), odd)), Splat(kBf16Largest));
}

/// Widens sixteen-bit patterns, sign in bit 15, to floats.
template <Format kFormat>
HWY_INLINE FloatVector Widen(BitVector half) {
  if constexpr (kFormat == Format::kBf16) return hn::BitCast(Floats(), hn::ShiftLeft<16>(half));
  const BitVector sign = hn::ShiftLeft<16>(hn::And(half, Splat(0x8000)));
  return hn::BitCast(Floats(), hn::Or(FloatFromF16(hn::And(half, Splat(0x7fff))), sign));
}

template <Format kFormat>
HWY_INLINE FloatVector Load(const std::byte* from) {
  if constexpr (bytes_per_element(kFormat) == 4) {
    return hn::LoadU(Floats(), reinterpret_cast<const float*>(from));
  } else {
    return Widen<kFormat>(
        hn::PromoteTo(Bits(), hn::LoadU(Halves(), reinterpret_cast<const std::uint16_t*>(from))));
  }
}

/// Writes x, of which only lanes in `finite` are finite, and returns what a decoder will read.
template <Format kFormat>
HWY_INLINE FloatVector Store(FloatVector x, hn::Mask<Floats> finite, std::byte* to) {
  if constexpr (kFormat != Format::kF32) x = hn::IfThenElseZero(finite, x);
  if constexpr (bytes_per_element(kFormat) == 4) {
    hn::StoreU(x, Floats(), reinterpret_cast<float*>(to));
    return x;
  } else {
    const BitVector bits = hn::BitCast(Bits(), x);
    const BitVector magnitude = hn::AndNot(Splat(kSignBit), bits);
    const BitVector sign = hn::ShiftRight<16>(hn::And(bits, Splat(kSignBit)));
    BitVector half;
    if constexpr (kFormat == Format::kF16) {
      half = hn::Or(F16FromFloat(magnitude), sign);
    } else {
      half = hn::Or(Bf16FromFloat(magnitude), sign);
    }
    hn::StoreU(hn::DemoteTo(Halves(), hn::BitCast(Ints(), half)), Halves(),
               reinterpret_cast<std::uint16_t*>(to));
    return Widen<kFormat>(half);
  }
}

/// Lanes whose magnitude has lesser bits than `first`.
HWY_INLINE hn::Mask<Floats> Below(FloatVector x, std::uint32_t first) {
  const auto magnitude = hn::BitCast(Ints(), hn::Abs(x));
  return hn::RebindMask(Floats(), hn::Lt(magnitude, hn::Set(Ints(), static_cast<std::int32_t>(first))));
}

HWY_INLINE hn::Mask<Floats> Finite(FloatVector x) { return Below(x, kInfinityBits); }

template <Format kFormat, bool kResidual>
bool EncodeRun(const float* HWY_RESTRICT grad, float* HWY_RESTRICT residual, std::size_t elements,
               std::byte* HWY_RESTRICT out) {
  constexpr std::size_t kWidth = bytes_per_element(kFormat);
  const Floats d;
  auto all_fit = hn::Eq(hn::Zero(d), hn::Zero(d));
  std::size_t i = 0;
  for (; i + kLanes <= elements; i += kLanes) {
    hwy::Prefetch(grad + i + kAheadBytes / sizeof(float));
    if constexpr (kResidual) hwy::Prefetch(residual + i + kAheadBytes / sizeof(float));
    FloatVector x = hn::LoadU(d, grad + i);
    const FloatVector kept = kResidual ? hn::LoadU(d, residual + i) : hn::Zero(d);
    if constexpr (kResidual) x = hn::Add(kept, x);
    const auto finite = Finite(x);
    all_fit = hn::And(all_fit, Below(x, first_beyond(kFormat)));
    const FloatVector sent = Store<kFormat>(x, finite, out + i * kWidth);
    if constexpr (kResidual) hn::StoreU(hn::IfThenElse(finite, hn::Sub(x, sent), kept), d, residual + i);
  }
  const bool tail =
      encode_scalar(kFormat, grad + i, kResidual ? residual + i : nullptr, elements - i, out + i * kWidth);
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

template <Format kFormat>
bool EncodeAs(const float* grad, float* residual, std::size_t elements, std::byte* out) {
  return residual == nullptr ? EncodeRun<kFormat, false>(grad, residual, elements, out)
                             : EncodeRun<kFormat, true>(grad, residual, elements, out);
}

bool Encode(Format format, const float* grad, float* residual, std::size_t elements, std::byte* out) {
  switch (format) {
    case Format::kF16:
      return EncodeAs<Format::kF16>(grad, residual, elements, out);
    case Format::kBf16:
      return EncodeAs<Format::kBf16>(grad, residual, elements, out);
    case Format::kF32Finite:
      return EncodeAs<Format::kF32Finite>(grad, residual, elements, out);
    default:
      return EncodeAs<Format::kF32>(grad, residual, elements, out);
  }
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
HWY_EXPORT(Sum);
HWY_EXPORT(Decode);

bool encode(Format format, const float* grad, float* residual, std::size_t elements,
            std::byte* out) noexcept {
  return HWY_DYNAMIC_DISPATCH(Encode)(format, grad, residual, elements, out);
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
