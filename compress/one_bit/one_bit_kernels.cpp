#include "compress/one_bit/one_bit_kernels.h"

// Vectors of a length unknown to the compiler cannot stand in the fixed lanes; such machines use 128-bit
// targets.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/one_bit/one_bit_kernels.cpp"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::compress::one_bit {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

bool Encode(const float* grad, float* residual, std::size_t elements, const SignCode& code, std::byte* out) {
  return encode_scalar(grad, residual, elements, code, out);
}

std::size_t SentElements(const float* grad, const float* residual, std::size_t elements) {
  return sent_elements_scalar(grad, residual, elements);
}

void Decode(const std::byte* packed, std::size_t elements, const SignCode& code, bool add, float* out) {
  decode_scalar(packed, elements, code, add, out);
}

#else

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::CappedTag<float, 16>;
using Ints = hn::RebindToSigned<Floats>;
using FloatVector = hn::Vec<Floats>;

constexpr std::size_t kLanes = hn::MaxLanes(Floats());
constexpr std::size_t kAhead = 1536 / sizeof(float);  // elements that encode asks memory for in advance

/// Turns the bits of every byte around: element 0 moves between the lowest bit and the highest.
HWY_INLINE std::uint64_t ReverseInBytes(std::uint64_t v) {
  v = (v >> 1 & 0x5555555555555555) | (v & 0x5555555555555555) << 1;
  v = (v >> 2 & 0x3333333333333333) | (v & 0x3333333333333333) << 2;
  return (v >> 4 & 0x0f0f0f0f0f0f0f0f) | (v & 0x0f0f0f0f0f0f0f0f) << 4;
}

constexpr std::size_t kVectors = kWordElements / kLanes;  // of a word

/// One word's x, and the largest of their magnitudes' bits.
struct Word {
  FloatVector x[kVectors];
  hn::Vec<Ints> largest;

  bool Finite() const {
    return hn::AllTrue(Ints(), hn::Lt(largest, hn::Set(Ints(), static_cast<std::int32_t>(kInfinityBits))));
  }
  bool Zero() const { return hn::AllTrue(Ints(), hn::Eq(largest, hn::Zero(Ints()))); }
};

template <bool kResidual>
HWY_INLINE Word LoadWord(const float* grad, const float* residual) {
  const Floats d;
  Word word;
  word.largest = hn::Zero(Ints());
  for (std::size_t v = 0; v < kVectors; ++v) {
    word.x[v] = hn::LoadU(d, grad + v * kLanes);
    if constexpr (kResidual) word.x[v] = hn::Add(hn::LoadU(d, residual + v * kLanes), word.x[v]);
    word.largest = hn::Max(word.largest, hn::BitCast(Ints(), hn::Abs(word.x[v])));
  }
  return word;
}

/// The word's signs as they are sent.
HWY_INLINE std::uint32_t Signs(const Word& word, FloatVector threshold) {
  std::uint64_t signs = 0;
  for (std::size_t v = 0; v < kVectors; ++v) {
    std::uint64_t bits = 0;
    hn::StoreMaskBits(Floats(), hn::Ge(word.x[v], threshold), reinterpret_cast<std::uint8_t*>(&bits));
    signs |= bits << (v * kLanes);
  }
  return static_cast<std::uint32_t>(ReverseInBytes(signs));
}

template <bool kResidual>
bool EncodeRun(const float* HWY_RESTRICT grad, float* HWY_RESTRICT residual, std::size_t elements,
               const SignCode& code, std::byte* HWY_RESTRICT out) {
  const Floats d;
  const FloatVector threshold = hn::Set(d, code.least);
  const FloatVector up = hn::Set(d, code.level);
  const FloatVector down = hn::Neg(up);
  bool nonfinite = false;
  std::size_t i = 0;
  for (; i + kWordElements <= elements; i += kWordElements) {
    for (std::size_t e = 0; e < kWordElements; e += 16) {  // a cache line at a time
      hwy::Prefetch(grad + i + kAhead + e);
      if constexpr (kResidual) hwy::Prefetch(residual + i + kAhead + e);
    }
    const Word word = LoadWord<kResidual>(grad + i, kResidual ? residual + i : nullptr);
    const std::uint32_t signs = Signs(word, threshold);
    const bool marks = code.zeros == Zeros::kMarked;
    // Both are rare: an element that is not finite counts as 0, and signs that look like the mark lose one of
    // them.
    if (HWY_UNLIKELY(!word.Finite() || (marks && signs == kZeroWord))) {
      nonfinite |=
          encode_scalar(grad + i, kResidual ? residual + i : nullptr, kWordElements, code, out + i / 8);
      continue;
    }
    // Without a mark a zero has a sign like any other element: it sends +level, and keeps -level.
    const bool all_zero = marks && word.Zero();
    store(word_to_send(signs, all_zero, code.zeros), out + i / 8);
    if constexpr (kResidual) {
      for (std::size_t v = 0; v < kVectors; ++v) {
        const auto sent = hn::IfThenElse(hn::Ge(word.x[v], threshold), up, down);
        // The x of a word of zeros are kept as they are, which keeps the sign of each zero.
        hn::StoreU(all_zero ? word.x[v] : hn::Sub(word.x[v], sent), d, residual + i + v * kLanes);
      }
    }
  }
  return encode_scalar(grad + i, kResidual ? residual + i : nullptr, elements - i, code, out + i / 8) ||
         nonfinite;
}

bool Encode(const float* grad, float* residual, std::size_t elements, const SignCode& code, std::byte* out) {
  return residual == nullptr ? EncodeRun<false>(grad, residual, elements, code, out)
                             : EncodeRun<true>(grad, residual, elements, code, out);
}

template <bool kResidual>
std::size_t SentRun(const float* HWY_RESTRICT grad, const float* HWY_RESTRICT residual,
                    std::size_t elements) {
  std::size_t sent = 0;
  std::size_t i = 0;
  for (; i + kWordElements <= elements; i += kWordElements) {
    const Word word = LoadWord<kResidual>(grad + i, kResidual ? residual + i : nullptr);
    // By element: what is not finite counts as 0, and the rest of the word may be 0, too.
    if (HWY_UNLIKELY(!word.Finite())) {
      sent += sent_elements_scalar(grad + i, kResidual ? residual + i : nullptr, kWordElements);
    } else {
      sent += word.Zero() ? 0 : kWordElements;
    }
  }
  return sent + sent_elements_scalar(grad + i, kResidual ? residual + i : nullptr, elements - i);
}

std::size_t SentElements(const float* grad, const float* residual, std::size_t elements) {
  return residual == nullptr ? SentRun<false>(grad, residual, elements)
                             : SentRun<true>(grad, residual, elements);
}

template <bool kAdd>
void DecodeRun(const std::byte* HWY_RESTRICT packed, std::size_t elements, const SignCode& code,
               float* HWY_RESTRICT out) {
  const Floats d;
  const FloatVector up = hn::Set(d, code.level);
  const FloatVector down = hn::Neg(up);
  std::size_t i = 0;
  for (; i + kWordElements <= elements; i += kWordElements) {
    const auto word = load<std::uint32_t>(packed + i / 8);
    const bool zeros = stands_for_zeros(word, code.zeros);
    // The payload has element 0 in the highest bit of a byte, as MXNet's; masks have it in the lowest.
    const std::uint64_t signs = ReverseInBytes(word);
    for (std::size_t v = 0; v < kVectors; ++v) {
      const std::uint64_t bits = signs >> (v * kLanes);
      const auto bit = hn::LoadMaskBits(d, reinterpret_cast<const std::uint8_t*>(&bits));
      FloatVector value = zeros ? hn::Zero(d) : hn::IfThenElse(bit, up, down);
      if constexpr (kAdd) value = hn::Add(hn::LoadU(d, out + i + v * kLanes), value);
      hn::StoreU(value, d, out + i + v * kLanes);
    }
  }
  decode_scalar(packed + i / 8, elements - i, code, kAdd, out + i);
}

void Decode(const std::byte* packed, std::size_t elements, const SignCode& code, bool add, float* out) {
  if (add) {
    DecodeRun<true>(packed, elements, code, out);
  } else {
    DecodeRun<false>(packed, elements, code, out);
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace gradwire::compress::one_bit
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradwire::compress::one_bit {

HWY_EXPORT(Encode);
HWY_EXPORT(SentElements);
HWY_EXPORT(Decode);

bool encode(const float* grad, float* residual, std::size_t elements, const SignCode& code,
            std::byte* out) noexcept {
  return HWY_DYNAMIC_DISPATCH(Encode)(grad, residual, elements, code, out);
}

std::size_t sent_elements(const float* grad, const float* residual, std::size_t elements) noexcept {
  return HWY_DYNAMIC_DISPATCH(SentElements)(grad, residual, elements);
}

void decode(const std::byte* packed, std::size_t elements, const SignCode& code, bool add,
            float* out) noexcept {
  HWY_DYNAMIC_DISPATCH(Decode)(packed, elements, code, add, out);
}

}  // namespace gradwire::compress::one_bit
#endif
