#include "compress/block/block_kernels.h"

#include <cstring>
#include <type_traits>

// Vectors of a length unknown to the compiler cannot stand in the fixed lanes; such machines use 128-bit
// targets.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/block/block_kernels.cpp"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
// For each target, so behind foreach_target.h.
#include "compress/dense/residuals_inl.h"
#include "compress/payload/lane_sums_inl.h"
#include "compress/stochastic/dither_inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::compress::block {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

bool Encode(Code code, std::size_t block, const float* grad, float* residual, std::size_t elements,
            std::byte* scales, std::byte* codes, const Dither* dither) {
  return encode_scalar(code, block, grad, residual, elements, scales, codes, dither);
}

bool EncodeBf16(Code code, std::size_t block, const float* grad, std::byte* residual, std::size_t elements,
                std::byte* scales, std::byte* codes, const Dither* dither) {
  return encode_bf16_scalar(code, block, grad, residual, elements, scales, codes, dither);
}

void Decode(Code code, std::size_t block, const std::byte* scales, const std::byte* codes,
            std::size_t elements, bool add, float* out) {
  decode_scalar(code, block, scales, codes, elements, add, out);
}

#else

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::CappedTag<float, 16>;
using Bits = hn::RebindToUnsigned<Floats>;
using Ints = hn::RebindToSigned<Floats>;
using Quarters = hn::Rebind<std::uint8_t, Floats>;
using Bytes = hn::Repartition<std::int8_t, Floats>;
// Not wider than the smallest block, so that packing never reads beyond a block's codes.
using Pairs = hn::CappedTag<std::uint16_t, kLeastBlock / 2>;
using PairHalves = hn::Rebind<std::uint8_t, Pairs>;
using Fours = hn::CappedTag<std::uint32_t, kLeastBlock / 4>;
using FourQuarters = hn::Rebind<std::uint8_t, Fours>;
using FloatVector = hn::Vec<Floats>;
using BitVector = hn::Vec<Bits>;
using dense::HWY_NAMESPACE::Bf16Residual;
using dense::HWY_NAMESPACE::Fp32Residual;
using dense::HWY_NAMESPACE::NoResidual;

constexpr std::size_t kLanes = hn::MaxLanes(Floats());
constexpr std::size_t kPairLanes = hn::MaxLanes(Pairs());
constexpr std::size_t kFourLanes = hn::MaxLanes(Fours());
// Sums have kSumLanes lanes on every target, in one or more vectors: their order, and so their bits, are
// those of lane_sums.h.
constexpr std::size_t kSumVectors = kSumLanes / kLanes;
constexpr std::size_t kAhead = 1536 / sizeof(float);  // elements that encode asks memory for in advance

HWY_INLINE BitVector Splat(std::uint32_t value) { return hn::Set(Bits(), value); }

template <Code kCode>
constexpr const Float8& kFloat8 = kCode == Code::kE4m3 ? kFloatE4m3 : kFloatE5m2;

/// float8_from_float() of float8.h.
template <Code kCode>
HWY_INLINE BitVector Float8FromFloat(FloatVector value) {
  constexpr const Float8& kFormat = kFloat8<kCode>;
  const BitVector bits = hn::BitCast(Bits(), value);
  const BitVector magnitude = hn::Min(hn::AndNot(Splat(kSignBit), bits), Splat(kFormat.largest_bits));
  // The sum is rounded where the smallest subnormal has its last bit, to nearest even, by the processor.
  const FloatVector small =
      hn::Add(hn::BitCast(Floats(), magnitude), hn::Set(Floats(), kFormat.subnormal_rounder));
  const BitVector subnormal = hn::Sub(hn::BitCast(Bits(), small), Splat(kFormat.rounder_bits()));
  const BitVector odd = hn::And(hn::ShiftRight<kFormat.shift()>(magnitude), Splat(1));
  const BitVector bias = Splat((1u << (kFormat.shift() - 1)) - 1 - kFormat.rebias());
  const BitVector normal = hn::ShiftRight<kFormat.shift()>(hn::Add(hn::Add(magnitude, bias), odd));
  // Both are computed for all lanes. What the wrong one gives in a lane is not selected.
  const BitVector rounded =
      hn::IfThenElse(hn::Lt(magnitude, Splat(kFormat.smallest_normal_bits)), subnormal, normal);
  return hn::Or(rounded, hn::ShiftRight<24>(hn::And(bits, Splat(kSignBit))));
}

/// float_from_float8() of float8.h, of which only the lowest eight bits of a lane count.
template <Code kCode>
HWY_INLINE FloatVector FloatFromFloat8(BitVector eight) {
  constexpr const Float8& kFormat = kFloat8<kCode>;
  const BitVector magnitude = hn::And(eight, Splat(0x7f));
  const FloatVector small = hn::BitCast(Floats(), hn::Or(magnitude, Splat(kFormat.rounder_bits())));
  const BitVector subnormal =
      hn::BitCast(Bits(), hn::Sub(small, hn::Set(Floats(), kFormat.subnormal_rounder)));
  const BitVector normal = hn::Add(hn::ShiftLeft<kFormat.shift()>(magnitude), Splat(kFormat.rebias()));
  const BitVector value =
      hn::IfThenElse(hn::Lt(magnitude, Splat(1u << kFormat.fraction_bits)), subnormal, normal);
  return hn::BitCast(Floats(), hn::Or(value, hn::ShiftLeft<24>(hn::And(eight, Splat(0x80)))));
}

/// What nf4's limits are compared with: the largest code of int8 below each.
constexpr std::array<std::int8_t, 16> below_nf4_limits() {
  std::array<std::int8_t, 16> below{};
  for (unsigned i = 0; i < kNf4Limits; ++i) below[i] = static_cast<std::int8_t>(nf4_limit(i) - 1);
  return below;
}
alignas(16) constexpr std::array<std::int8_t, 16> kBelowNf4Limits = below_nf4_limits();

/// nf4_code_of() of normal_float.h, of which only the lowest byte of a lane counts: a binary search.
HWY_INLINE BitVector Nf4FromInt8(BitVector eight_bits) {
  const Bytes d;
  const auto eight = hn::BitCast(d, eight_bits);
  const auto below = hn::LoadDup128(d, kBelowNf4Limits.data());
  auto passed = hn::Zero(d);  // limits
  // Four steps find one of sixteen levels.
  for (std::int8_t step = 8; step > 0; step /= 2) {
    const auto next = hn::Or(passed, hn::Set(d, static_cast<std::int8_t>(step - 1)));
    const auto above = hn::Gt(eight, hn::TableLookupBytes(below, next));
    passed = hn::Or(passed, hn::IfThenElseZero(above, hn::Set(d, step)));
  }
  const auto code = hn::Add(passed, hn::Set(d, static_cast<std::int8_t>(kLowestNf4)));
  return hn::BitCast(Bits(), hn::And(code, hn::Set(d, 15)));
}

/// The codes of int8 that nf4's stand for.
HWY_INLINE BitVector Int8FromNf4(BitVector codes) {
  const Bytes d;
  const auto table = hn::LoadDup128(d, kNf4Levels.data());
  return hn::BitCast(Bits(), hn::TableLookupBytes(table, hn::And(hn::BitCast(d, codes), hn::Set(d, 15))));
}

/// Codes of scaled elements, of which only the lowest byte of a lane counts; code_of() of block_code.h.
template <Code kCode>
HWY_INLINE BitVector CodesOf(FloatVector scaled) {
  if constexpr (kCode == Code::kE4m3 || kCode == Code::kE5m2) return Float8FromFloat<kCode>(scaled);
  if constexpr (kCode == Code::kNf4) return Nf4FromInt8(CodesOf<Code::kInt8>(scaled));
  if constexpr (kCode == Code::kNf2) {
    // nf2_code_of() of normal_float.h.
    const auto is_large = hn::Ge(hn::Abs(scaled), hn::Set(Floats(), kBetweenLevels));
    const BitVector large = hn::IfThenElseZero(hn::RebindMask(Bits(), is_large), Splat(1));
    return hn::Or(hn::And(hn::ShiftRight<30>(hn::BitCast(Bits(), scaled)), Splat(2)), large);
  }
  // Rounds to nearest even in the last bits of the sum, in the mode that every processor begins with.
  const FloatVector rounded = hn::Add(scaled, hn::Set(Floats(), kRounder));
  return hn::Sub(hn::BitCast(Bits(), rounded), Splat(std::bit_cast<std::uint32_t>(kRounder)));
}

/// What codes stand for, of which only the lowest code_bits(kCode) bits of a lane count.
template <Code kCode>
HWY_INLINE FloatVector ValuesOf(BitVector codes) {
  if constexpr (kCode == Code::kE4m3 || kCode == Code::kE5m2) return FloatFromFloat8<kCode>(codes);
  if constexpr (kCode == Code::kNf4) return ValuesOf<Code::kInt8>(Int8FromNf4(codes));
  if constexpr (kCode == Code::kNf2) {
    // The large level is made from the small one by adding to its exponent.
    static_assert(std::bit_cast<std::uint32_t>(kLargeLevel) ==
                  std::bit_cast<std::uint32_t>(1.0f) + (1u << 24));
    const BitVector sign = hn::ShiftLeft<30>(hn::And(codes, Splat(2)));
    const BitVector level =
        hn::Add(Splat(std::bit_cast<std::uint32_t>(1.0f)), hn::ShiftLeft<24>(hn::And(codes, Splat(1))));
    return hn::BitCast(Floats(), hn::Or(sign, level));
  }
  constexpr int kUnused = 32 - static_cast<int>(code_bits(kCode));
  // Up and down again: fills the upper bits with the code's sign, and drops what unpacking left there.
  const auto signs = hn::ShiftRight<kUnused>(hn::BitCast(Ints(), hn::ShiftLeft<kUnused>(codes)));
  return hn::ConvertTo(Floats(), signs);
}

/// Packs codes of four bits that lie in a byte each. Requires whole vectors.
HWY_INLINE void PackHalves(const std::uint8_t* HWY_RESTRICT codes, std::size_t elements,
                           std::byte* HWY_RESTRICT out) {
  const Pairs d;
  for (std::size_t i = 0; i < elements; i += 2 * kPairLanes) {
    const auto pair = hn::LoadU(d, reinterpret_cast<const std::uint16_t*>(codes + i));
    const auto lower = hn::And(pair, hn::Set(d, 0x0f));
    const auto upper = hn::And(hn::ShiftRight<4>(pair), hn::Set(d, 0xf0));
    hn::StoreU(hn::TruncateTo(PairHalves(), hn::Or(lower, upper)), PairHalves(),
               reinterpret_cast<std::uint8_t*>(out + i / 2));
  }
}

/// The other way, one code a byte; what the upper halves of those bytes hold is of no account.
HWY_INLINE void UnpackHalves(const std::byte* HWY_RESTRICT packed, std::size_t elements,
                             std::uint8_t* HWY_RESTRICT codes) {
  const Pairs d;
  for (std::size_t i = 0; i < elements; i += 2 * kPairLanes) {
    const auto pair =
        hn::PromoteTo(d, hn::LoadU(PairHalves(), reinterpret_cast<const std::uint8_t*>(packed + i / 2)));
    hn::StoreU(hn::Or(pair, hn::ShiftLeft<4>(pair)), d, reinterpret_cast<std::uint16_t*>(codes + i));
  }
}

/// As PackHalves(), of two bits.
HWY_INLINE void PackQuarters(const std::uint8_t* HWY_RESTRICT codes, std::size_t elements,
                             std::byte* HWY_RESTRICT out) {
  const Fours d;
  for (std::size_t i = 0; i < elements; i += 4 * kFourLanes) {
    const auto four = hn::LoadU(d, reinterpret_cast<const std::uint32_t*>(codes + i));
    const auto lower = hn::Or(four, hn::ShiftRight<6>(four));
    const auto packed = hn::And(hn::Or(lower, hn::ShiftRight<12>(lower)), hn::Set(d, 0xff));
    hn::StoreU(hn::TruncateTo(FourQuarters(), packed), FourQuarters(),
               reinterpret_cast<std::uint8_t*>(out + i / 4));
  }
}

/// As UnpackHalves(), of two bits.
HWY_INLINE void UnpackQuarters(const std::byte* HWY_RESTRICT packed, std::size_t elements,
                               std::uint8_t* HWY_RESTRICT codes) {
  const Fours d;
  for (std::size_t i = 0; i < elements; i += 4 * kFourLanes) {
    const auto four =
        hn::PromoteTo(d, hn::LoadU(FourQuarters(), reinterpret_cast<const std::uint8_t*>(packed + i / 4)));
    const auto pairs = hn::Or(four, hn::ShiftLeft<12>(four));
    hn::StoreU(hn::Or(pairs, hn::ShiftLeft<6>(pairs)), d, reinterpret_cast<std::uint32_t*>(codes + i));
  }
}

/// Writes x = residual + grad of one whole block to `x` and returns the bits of the largest |x|, where NaN is
/// above infinity. sum gets the sum of |x|, if kSum.
template <bool kSum, class Residual>
HWY_INLINE std::uint32_t Gather(const float* HWY_RESTRICT grad, Residual residual, std::size_t block,
                                float* HWY_RESTRICT x, float& sum) {
  constexpr std::size_t kVectors = kSum ? kSumVectors : 1;
  const Floats d;
  // Floats without a sign are in the order of their bits as integers, and NaN is above infinity.
  auto most = hn::Zero(Ints());
  FloatVector lanes[kVectors];
  for (FloatVector& lane : lanes) lane = hn::Zero(d);
  for (std::size_t begin = 0; begin < block; begin += kVectors * kLanes) {
    for (std::size_t l = 0; l < kVectors; ++l) {
      const std::size_t i = begin + l * kLanes;
      if (i >= block) break;  // a block of fewer elements than lanes
      hwy::Prefetch(grad + i + kAhead);
      FloatVector v = hn::LoadU(d, grad + i);
      if constexpr (Residual::kIsThere) {
        residual.Prefetch(i + kAhead);
        v = hn::Add(residual.Load(i), v);
      }
      // Kept for the second pass, in the first-level cache: gradient and residual are read once.
      hn::Store(v, d, x + i);
      most = hn::Max(most, hn::BitCast(Ints(), hn::Abs(v)));
      if constexpr (kSum) lanes[l] = hn::Add(lanes[l], hn::Abs(v));
    }
  }
  if constexpr (kSum) sum = compress::HWY_NAMESPACE::FoldVectors(d, lanes);
  return static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(Ints(), most)));
}

/// The scale of one whole block by its sums.
HWY_INLINE float ScaleBySums(const float* HWY_RESTRICT x, std::size_t length, const BlockSum& block) {
  const Floats d;
  const FloatVector limit = hn::Set(d, limit_of(block, length));
  FloatVector lanes[kSumVectors];
  for (FloatVector& lane : lanes) lane = hn::Zero(d);
  LargeSum large;
  for (std::size_t begin = 0; begin < length; begin += kSumLanes) {
    for (std::size_t l = 0; l < kSumVectors; ++l) {
      if (begin + l * kLanes >= length) break;
      const FloatVector size = hn::Abs(hn::Load(d, x + begin + l * kLanes));
      const auto is_large = hn::Gt(size, limit);
      // Adds 0 where the scalar rule adds nothing: a sum of magnitudes keeps its bits.
      lanes[l] = hn::Add(lanes[l], hn::IfThenElseZero(is_large, size));
      large.count += static_cast<std::uint32_t>(hn::CountTrue(d, is_large));
    }
  }
  large.sum = compress::HWY_NAMESPACE::FoldVectors(d, lanes);
  return scale_of(block, large, length);
}

/// Writes the codes of one whole block, one a byte, and keeps x - sent.
template <Code kCode, class Residual>
HWY_INLINE void Quantise(const float* HWY_RESTRICT x, float scale, std::size_t block,
                         std::uint8_t* HWY_RESTRICT codes, Residual residual) {
  const Floats d;
  const FloatVector by_scale = hn::Set(d, scale);
  const FloatVector by_inverse = hn::Set(d, inverse_of(scale));
  for (std::size_t i = 0; i < block; i += kLanes) {
    const FloatVector v = hn::Load(d, x + i);
    const BitVector code = CodesOf<kCode>(hn::Mul(v, by_inverse));
    hn::StoreU(hn::TruncateTo(Quarters(), code), Quarters(), codes + i);
    if constexpr (Residual::kIsThere) residual.Store(hn::Sub(v, hn::Mul(ValuesOf<kCode>(code), by_scale)), i);
  }
}

/// dithered_code_of() of block_code.h, one code a lane.
template <Code kCode>
HWY_INLINE BitVector DitheredCodesOf(FloatVector scaled, FloatVector uniform) {
  const FloatVector size = hn::Abs(scaled);
  const auto lower = hn::ConvertTo(Ints(), size);
  const FloatVector fraction = hn::Sub(size, hn::ConvertTo(Floats(), lower));
  const auto up = hn::RebindMask(Ints(), hn::Lt(uniform, fraction));
  const auto most = hn::Set(Ints(), static_cast<std::int32_t>(largest(kCode)));
  const auto level = hn::Min(hn::IfThenElse(up, hn::Add(lower, hn::Set(Ints(), 1)), lower), most);
  const auto negative = hn::RebindMask(Ints(), hn::Lt(scaled, hn::Zero(Floats())));
  return hn::BitCast(Bits(), hn::IfThenElse(negative, hn::Neg(level), level));
}

/// Quantise() by chance; the block begins at `first` after the dither's position.
template <Code kCode, class Residual>
void QuantiseDithered(const float* HWY_RESTRICT x, float scale, std::size_t block, const Dither& dither,
                      std::size_t first, std::uint8_t* HWY_RESTRICT codes, Residual residual) {
  const Floats d;
  const FloatVector by_scale = hn::Set(d, scale);
  const FloatVector by_inverse = hn::Set(d, inverse_of(scale));
  alignas(64) std::uint32_t words[Dither::kGroup];
  for (std::size_t i = 0; i < block; i += kLanes) {
    const std::size_t within = i % Dither::kGroup;
    // Philox gives words for a group at a time. Groups are counted from the tensor's begin, so that any cut
    // of it draws the same numbers.
    if (within == 0) {
      compress::HWY_NAMESPACE::WordsOfGroup(dither, (dither.position.offset + first + i) / Dither::kGroup,
                                            words);
    }
    const FloatVector v = hn::Load(d, x + i);
    const FloatVector uniform = compress::HWY_NAMESPACE::UniformsOf(hn::Load(Bits(), words + within));
    const BitVector code = DitheredCodesOf<kCode>(hn::Mul(v, by_inverse), uniform);
    hn::StoreU(hn::TruncateTo(Quarters(), code), Quarters(), codes + i);
    if constexpr (Residual::kIsThere) residual.Store(hn::Sub(v, hn::Mul(ValuesOf<kCode>(code), by_scale)), i);
  }
}

/// Blocks that are not whole, or hold what is not finite.
template <Code kCode, class Residual>
bool EncodeByElement(std::size_t block, const float* grad, Residual residual, std::size_t elements,
                     std::byte* scales, std::byte* codes, const Dither* dither, std::size_t first) {
  if constexpr (std::is_same_v<Residual, Bf16Residual>) {
    return encode_bf16_scalar(kCode, block, grad, residual.at, elements, scales, codes, dither, first);
  } else {
    return encode_scalar(kCode, block, grad, residual.at, elements, scales, codes, dither, first);
  }
}

template <Code kCode, class Residual>
bool EncodeBlocks(std::size_t block, const float* grad, Residual residual, std::size_t elements,
                  std::byte* scales, std::byte* codes, const Dither* dither) {
  alignas(64) float x[kMostBlock];
  alignas(64) std::uint8_t bytes[kMostBlock];
  bool nonfinite = false;
  std::size_t i = 0;
  for (; i + block <= elements; i += block, scales += scale_bytes(kCode)) {
    const Residual kept = residual.from(i);
    std::byte* const to = codes + code_bytes(kCode, i);
    float sum = 0;
    const std::uint32_t most = Gather<scales_by_sums(kCode)>(grad + i, kept, block, x, sum);
    // One infinity would be the scale of the whole block. The scalar rule leaves such elements out one by
    // one.
    if (HWY_UNLIKELY(most >= kInfinityBits)) {
      nonfinite |= EncodeByElement<kCode>(block, grad + i, kept, block, scales, to, dither, i);
      continue;
    }
    const auto largest_x = std::bit_cast<float>(most);
    const float scale =
        scales_by_sums(kCode) ? ScaleBySums(x, block, {largest_x, sum}) : scale_of(kCode, largest_x);
    store_scale(kCode, scale, scales);
    // Codes of eight bits need no packing and go straight to the payload.
    auto* const target = code_bits(kCode) == 8 ? reinterpret_cast<std::uint8_t*>(to) : bytes;
    if (!is_integer(kCode) || dither == nullptr) {
      Quantise<kCode>(x, scale, block, target, kept);
    } else {
      QuantiseDithered<kCode>(x, scale, block, *dither, i, target, kept);
    }
    if constexpr (code_bits(kCode) == 4) PackHalves(bytes, block, to);
    if constexpr (code_bits(kCode) == 2) PackQuarters(bytes, block, to);
  }
  // Called before the `or`, and not skipped by it: the last block is encoded either way.
  return EncodeByElement<kCode>(block, grad + i, residual.from(i), elements - i, scales,
                                codes + code_bytes(kCode, i), dither, i) ||
         nonfinite;
}

/// Writes or adds the values of one whole block's codes, which lie in a byte each.
template <Code kCode, bool kAdd>
HWY_INLINE void Scale(const std::uint8_t* HWY_RESTRICT codes, float scale, std::size_t block,
                      float* HWY_RESTRICT out) {
  const Floats d;
  const FloatVector by_scale = hn::Set(d, scale);
  for (std::size_t i = 0; i < block; i += kLanes) {
    const BitVector code = hn::PromoteTo(Bits(), hn::LoadU(Quarters(), codes + i));
    FloatVector value = hn::Mul(ValuesOf<kCode>(code), by_scale);
    if constexpr (kAdd) value = hn::Add(hn::LoadU(d, out + i), value);
    hn::StoreU(value, d, out + i);
  }
}

template <Code kCode, bool kAdd>
void DecodeBlocks(std::size_t block, const std::byte* scales, const std::byte* codes, std::size_t elements,
                  float* out) {
  alignas(64) std::uint8_t bytes[kMostBlock];
  std::size_t i = 0;
  for (; i + block <= elements; i += block, scales += scale_bytes(kCode)) {
    const std::byte* const from = codes + code_bytes(kCode, i);
    const auto* codes_of_block = reinterpret_cast<const std::uint8_t*>(from);
    if constexpr (code_bits(kCode) < 8) codes_of_block = bytes;
    if constexpr (code_bits(kCode) == 4) UnpackHalves(from, block, bytes);
    if constexpr (code_bits(kCode) == 2) UnpackQuarters(from, block, bytes);
    Scale<kCode, kAdd>(codes_of_block, load_scale(kCode, scales), block, out + i);
  }
  decode_scalar(kCode, block, scales, codes + code_bytes(kCode, i), elements - i, kAdd, out + i);
}

template <Code kCode>
void DecodeAs(std::size_t block, const std::byte* scales, const std::byte* codes, std::size_t elements,
              bool add, float* out) {
  if (add) {
    DecodeBlocks<kCode, true>(block, scales, codes, elements, out);
  } else {
    DecodeBlocks<kCode, false>(block, scales, codes, elements, out);
  }
}

template <class Residual>
bool EncodeWith(Code code, std::size_t block, const float* grad, Residual residual, std::size_t elements,
                std::byte* scales, std::byte* codes, const Dither* dither) {
  switch (code) {
    case Code::kInt4:
      return EncodeBlocks<Code::kInt4>(block, grad, residual, elements, scales, codes, dither);
    // Without a dither: only integers are rounded by chance (qsgd).
    case Code::kE4m3:
      return EncodeBlocks<Code::kE4m3>(block, grad, residual, elements, scales, codes, nullptr);
    case Code::kE5m2:
      return EncodeBlocks<Code::kE5m2>(block, grad, residual, elements, scales, codes, nullptr);
    case Code::kNf2:
      return EncodeBlocks<Code::kNf2>(block, grad, residual, elements, scales, codes, nullptr);
    case Code::kNf4:
      return EncodeBlocks<Code::kNf4>(block, grad, residual, elements, scales, codes, nullptr);
    default:
      return EncodeBlocks<Code::kInt8>(block, grad, residual, elements, scales, codes, dither);
  }
}

bool Encode(Code code, std::size_t block, const float* grad, float* residual, std::size_t elements,
            std::byte* scales, std::byte* codes, const Dither* dither) {
  if (residual == nullptr)
    return EncodeWith(code, block, grad, NoResidual(), elements, scales, codes, dither);
  return EncodeWith(code, block, grad, Fp32Residual{residual}, elements, scales, codes, dither);
}

bool EncodeBf16(Code code, std::size_t block, const float* grad, std::byte* residual, std::size_t elements,
                std::byte* scales, std::byte* codes, const Dither* dither) {
  return EncodeWith(code, block, grad, Bf16Residual{residual}, elements, scales, codes, dither);
}

void Decode(Code code, std::size_t block, const std::byte* scales, const std::byte* codes,
            std::size_t elements, bool add, float* out) {
  switch (code) {
    case Code::kInt4:
      return DecodeAs<Code::kInt4>(block, scales, codes, elements, add, out);
    case Code::kE4m3:
      return DecodeAs<Code::kE4m3>(block, scales, codes, elements, add, out);
    case Code::kE5m2:
      return DecodeAs<Code::kE5m2>(block, scales, codes, elements, add, out);
    case Code::kNf2:
      return DecodeAs<Code::kNf2>(block, scales, codes, elements, add, out);
    case Code::kNf4:
      return DecodeAs<Code::kNf4>(block, scales, codes, elements, add, out);
    default:
      return DecodeAs<Code::kInt8>(block, scales, codes, elements, add, out);
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace gradwire::compress::block
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradwire::compress::block {

HWY_EXPORT(Encode);
HWY_EXPORT(EncodeBf16);
HWY_EXPORT(Decode);

bool encode(Code code, std::size_t block, const float* grad, float* residual, std::size_t elements,
            std::byte* scales, std::byte* codes, const Dither* dither) noexcept {
  return HWY_DYNAMIC_DISPATCH(Encode)(code, block, grad, residual, elements, scales, codes, dither);
}

bool encode_bf16(Code code, std::size_t block, const float* grad, std::byte* residual, std::size_t elements,
                 std::byte* scales, std::byte* codes, const Dither* dither) noexcept {
  return HWY_DYNAMIC_DISPATCH(EncodeBf16)(code, block, grad, residual, elements, scales, codes, dither);
}

void decode(Code code, std::size_t block, const std::byte* scales, const std::byte* codes,
            std::size_t elements, bool add, float* out) noexcept {
  HWY_DYNAMIC_DISPATCH(Decode)(code, block, scales, codes, elements, add, out);
}

}  // namespace gradwire::compress::block
#endif
