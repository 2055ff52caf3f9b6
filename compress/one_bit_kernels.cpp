#include "compress/one_bit_kernels.h"

// Vectors of a length unknown to the compiler cannot stand in the fixed lanes; such machines use 128-bit
// targets.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/one_bit_kernels.cpp"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::compress::one_bit {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

bool Encode(const float* grad, float* residual, std::size_t elements, float least, float level,
            std::byte* out) {
  return encode_scalar(grad, residual, elements, least, level, out);
}

void Decode(const std::byte* packed, std::size_t elements, float level, bool add, float* out) {
  decode_scalar(packed, elements, level, add, out);
}

#else

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::CappedTag<float, 16>;
using Ints = hn::RebindToSigned<Floats>;
using FloatVector = hn::Vec<Floats>;

constexpr std::size_t kLanes = hn::MaxLanes(Floats());
constexpr std::size_t kStep = 64;                     // elements handled at a time: one word of masks
constexpr std::size_t kAhead = 1536 / sizeof(float);  // elements that encode asks memory for in advance

/// Turns the bits of every byte around: element 0 moves between the lowest bit and the highest.
HWY_INLINE std::uint64_t ReverseInBytes(std::uint64_t v) {
  v = (v >> 1 & 0x5555555555555555) | (v & 0x5555555555555555) << 1;
  v = (v >> 2 & 0x3333333333333333) | (v & 0x3333333333333333) << 2;
  return (v >> 4 & 0x0f0f0f0f0f0f0f0f) | (v & 0x0f0f0f0f0f0f0f0f) << 4;
}

template <bool kResidual>
bool EncodeRun(const float* HWY_RESTRICT grad, float* HWY_RESTRICT residual, std::size_t elements,
               float least, float level, std::byte* HWY_RESTRICT out) {
  const Floats d;
  const FloatVector threshold = hn::Set(d, least);
  const FloatVector up = hn::Set(d, level);
  const FloatVector down = hn::Neg(up);
  bool nonfinite = false;
  std::size_t i = 0;
  for (; i + kStep <= elements; i += kStep) {
    FloatVector x[kStep / kLanes];
    auto largest = hn::Zero(Ints());
    for (std::size_t e = 0; e < kStep; e += 16) {  // a cache line at a time
      hwy::Prefetch(grad + i + kAhead + e);
      if constexpr (kResidual) hwy::Prefetch(residual + i + kAhead + e);
    }
    for (std::size_t v = 0; v < kStep / kLanes; ++v) {
      x[v] = hn::LoadU(d, grad + i + v * kLanes);
      if constexpr (kResidual) x[v] = hn::Add(hn::LoadU(d, residual + i + v * kLanes), x[v]);
      largest = hn::Max(largest, hn::BitCast(Ints(), hn::Abs(x[v])));
    }
    if (HWY_UNLIKELY(!hn::AllTrue(Ints(), hn::Lt(largest, hn::Set(Ints(), 0x7f800000))))) {
      nonfinite |=
          encode_scalar(grad + i, kResidual ? residual + i : nullptr, kStep, least, level, out + i / 8);
      continue;
    }
    std::uint64_t word = 0;
    for (std::size_t v = 0; v < kStep / kLanes; ++v) {
      const auto bit = hn::Ge(x[v], threshold);
      std::uint64_t bits = 0;
      hn::StoreMaskBits(d, bit, reinterpret_cast<std::uint8_t*>(&bits));
      word |= bits << (v * kLanes);
      if constexpr (kResidual) {
        hn::StoreU(hn::Sub(x[v], hn::IfThenElse(bit, up, down)), d, residual + i + v * kLanes);
      }
    }
    store(ReverseInBytes(word), out + i / 8);
  }
  return encode_scalar(grad + i, kResidual ? residual + i : nullptr, elements - i, least, level,
                       out + i / 8) ||
         nonfinite;
}

bool Encode(const float* grad, float* residual, std::size_t elements, float least, float level,
            std::byte* out) {
  return residual == nullptr ? EncodeRun<false>(grad, residual, elements, least, level, out)
                             : EncodeRun<true>(grad, residual, elements, least, level, out);
}

template <bool kAdd>
void DecodeRun(const std::byte* HWY_RESTRICT packed, std::size_t elements, float level,
               float* HWY_RESTRICT out) {
  const Floats d;
  const FloatVector up = hn::Set(d, level);
  const FloatVector down = hn::Neg(up);
  std::size_t i = 0;
  for (; i + kStep <= elements; i += kStep) {
    const std::uint64_t word = ReverseInBytes(load<std::uint64_t>(packed + i / 8));
    for (std::size_t v = 0; v < kStep / kLanes; ++v) {
      const std::uint64_t bits = word >> (v * kLanes);
      const auto bit = hn::LoadMaskBits(d, reinterpret_cast<const std::uint8_t*>(&bits));
      FloatVector value = hn::IfThenElse(bit, up, down);
      if constexpr (kAdd) value = hn::Add(hn::LoadU(d, out + i + v * kLanes), value);
      hn::StoreU(value, d, out + i + v * kLanes);
    }
  }
  decode_scalar(packed + i / 8, elements - i, level, kAdd, out + i);
}

void Decode(const std::byte* packed, std::size_t elements, float level, bool add, float* out) {
  if (add) {
    DecodeRun<true>(packed, elements, level, out);
  } else {
    DecodeRun<false>(packed, elements, level, out);
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace gradwire::compress::one_bit
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradwire::compress::one_bit {

HWY_EXPORT(Encode);
HWY_EXPORT(Decode);

bool encode(const float* grad, float* residual, std::size_t elements, float least, float level,
            std::byte* out) noexcept {
  return HWY_DYNAMIC_DISPATCH(Encode)(grad, residual, elements, least, level, out);
}

void decode(const std::byte* packed, std::size_t elements, float level, bool add, float* out) noexcept {
  HWY_DYNAMIC_DISPATCH(Decode)(packed, elements, level, add, out);
}

}  // namespace gradwire::compress::one_bit
#endif
