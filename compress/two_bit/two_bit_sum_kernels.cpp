// two_bit_kernels: those that decode and sum.
#include <algorithm>
#include <cstring>

#include "compress/two_bit/two_bit_kernels.h"

// Vectors of a length unknown to the compiler cannot stand in the fixed lanes;
// such machines use 128-bit targets.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/two_bit/two_bit_sum_kernels.cpp"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
// For each target, so behind foreach_target.h.
#include "compress/two_bit/two_bit_codes_inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::compress::two_bit {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

void SumToFloats(const Codes& codes, std::size_t elements, float level, float* out) {
  sum_to_floats_scalar(codes, elements, level, out);
}

void AddToFloats(const std::byte* packed, std::size_t elements, float level, float* out) {
  add_to_floats_scalar(packed, elements, level, out);
}

void SumToPlanes(const Codes& codes, std::size_t elements, std::byte* out) {
  sum_to_planes_scalar(codes, elements, out);
}

void CountsToPlanes(const std::uint8_t* counts, std::size_t elements, std::size_t ways, std::byte* out) {
  counts_to_planes_scalar(counts, elements, ways, out);
}

std::uint32_t PlanesToFloats(const std::byte* planes, std::size_t ways, std::size_t elements, float level,
                             float* out) {
  return planes_to_floats_scalar(planes, ways, elements, level, out);
}

#else

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::CappedTag<float, 16>;
using Ints = hn::RebindToSigned<Floats>;
using Words = hn::RebindToUnsigned<Floats>;
using Bytes = hn::CappedTag<std::uint8_t, 64>;
using ByteWords = hn::Repartition<std::uint32_t, Bytes>;
using FloatVector = hn::Vec<Floats>;
using ByteVector = hn::Vec<Bytes>;
using WordVector = hn::Vec<ByteWords>;

constexpr std::size_t kLanes = hn::MaxLanes(Floats());
constexpr std::size_t kByteLanes = hn::MaxLanes(Bytes());
constexpr std::size_t kTile = 4096;                     // counts that a sum keeps in the first-level cache
constexpr std::size_t kStreamElements = kUnitElements;  // outputs from here on go around the cache
constexpr std::size_t kNibbleWays = 7;  // payloads whose counts, at most 2 each, fit four bits

/// Elements to write before out + that many is aligned for streaming.
HWY_INLINE std::size_t ElementsToAlign(const float* out, std::size_t elements) {
  // A cache line, whatever the vectors' length.
  const std::size_t bytes = -reinterpret_cast<std::uintptr_t>(out) % 64;
  return HWY_MIN(bytes / sizeof(float), elements);
}

/// Writes a vector; kStream goes around the cache, whose lines need not be read
/// then, and needs an aligned `to`.
template <bool kStream>
HWY_INLINE void StoreFloats(FloatVector value, float* to) {
  if constexpr (kStream) {
    hn::Stream(value, Floats(), to);
  } else {
    hn::StoreU(value, Floats(), to);
  }
}

/// Decodes one payload, or adds it: each lane shifts its own code down and
/// looks its value up.
template <bool kStream, bool kAdd>
void DecodeRun(const std::byte* HWY_RESTRICT packed, std::size_t elements, float level,
               float* HWY_RESTRICT out) {
  const Floats d;
  const Words dw;
  alignas(64) std::uint32_t shifts[16];
  alignas(64) float values[16];
  // Element 4b + j of a word has its code at bit 8b + 6 - 2j: the first of a byte is the uppermost
  // (FORMAT.md).
  for (std::uint32_t i = 0; i < 16; ++i) {
    shifts[i] = 8 * (i / 4) + 6 - 2 * (i % 4);
    // Repeated four times, because an index may not leave its vector, which has up to 16 lanes.
    values[i] = i % 4 == 3 ? level : i % 4 == 2 ? -level : 0.0f;
  }
  hn::Vec<Words> shift[16 / kLanes];
  for (std::size_t v = 0; v < 16 / kLanes; ++v) shift[v] = hn::Load(dw, shifts + v * kLanes);
  const FloatVector table = hn::Load(d, values);
  std::size_t i = 0;
  for (; i + 16 <= elements; i += 16) {
    const hn::Vec<Words> word = hn::Set(dw, load<std::uint32_t>(packed + i / 4));
    for (std::size_t v = 0; v < 16 / kLanes; ++v) {
      const hn::Vec<Words> code = hn::And(hn::Shr(word, shift[v]), hn::Set(dw, 3));
      FloatVector value = hn::TableLookupLanes(table, hn::IndicesFromVec(d, code));
      if constexpr (kAdd) value = hn::Add(hn::LoadU(d, out + i + v * kLanes), value);
      StoreFloats<kStream>(value, out + i + v * kLanes);
    }
  }
  for (; i < elements; ++i) {
    const float value = static_cast<float>(code_at(packed, i)) * level;
    out[i] = kAdd ? out[i] + value : value;
  }
}

void DecodeOne(const std::byte* packed, std::size_t elements, float level, float* out) {
  const std::size_t head = ElementsToAlign(out, elements);
  // A byte has four codes, so a run that begins within one cannot be aligned. Short outputs are read soon,
  // and stay in the cache.
  if (elements < kStreamElements || head % 4 != 0)
    return DecodeRun<false, false>(packed, elements, level, out);
  DecodeRun<false, false>(packed, head, level, out);
  DecodeRun<true, false>(packed + head / 4, elements - head, level, out + head);
  // Stores around the cache have no order of their own: another thread may read the output after the call.
  hwy::FlushStream();
}

void AddToFloats(const std::byte* packed, std::size_t elements, float level, float* out) {
  // Never around the cache, since the output is read here.
  DecodeRun<false, true>(packed, elements, level, out);
}

/// Rewrites codes 00, 01, 10, 11 as the counts 1, 1, 0, 2: the code's value
/// plus one.
HWY_INLINE WordVector CountsOfCodes(WordVector codes) {
  const WordVector upper = hn::Set(ByteWords(), 0xaaaaaaaau);
  const WordVector two = hn::And(hn::And(codes, hn::ShiftLeft<1>(codes)), upper);
  return hn::Or(two, hn::ShiftRight<1>(hn::AndNot(codes, upper)));
}

HWY_INLINE WordVector LoadCodes(const std::byte* packed, std::size_t bytes) {
  const ByteWords d;
  if (HWY_LIKELY(bytes >= kByteLanes)) {
    return hn::BitCast(d, hn::LoadU(Bytes(), reinterpret_cast<const std::uint8_t*>(packed)));
  }
  // The last bytes of a payload: a whole vector would read beyond it.
  alignas(64) std::uint8_t padded[kByteLanes] = {};
  std::memcpy(padded, packed, bytes);
  return hn::BitCast(d, hn::Load(Bytes(), padded));
}

/// Writes k + ways of packed bytes [begin, begin + bytes), one byte per
/// element, for a whole number of vectors: up to 4 * kByteLanes - 1 counts
/// beyond the end are written too. Requires ways <= kMaxByteWays.
void SumToCounts(const Codes& codes, std::size_t begin, std::size_t bytes,
                 std::uint8_t* HWY_RESTRICT counts) {
  const ByteWords d;
  const WordVector pairs = hn::Set(d, 0x33333333u);
  const WordVector nibble = hn::Set(d, 0x0f0f0f0fu);
  for (std::size_t b = 0; b < bytes; b += kByteLanes, counts += 4 * kByteLanes) {
    WordVector sum0 = hn::Zero(d), sum1 = hn::Zero(d), sum2 = hn::Zero(d), sum3 = hn::Zero(d);
    for (std::size_t way = 0; way < codes.ways();) {
      WordVector even = hn::Zero(d);  // elements 0 and 2 of each byte, four bits each
      WordVector odd = hn::Zero(d);   // elements 1 and 3
      // Seven counts of at most 2 fit four bits. Then they are widened to bytes, which hold kMaxByteWays of
      // them.
      for (const std::size_t stop = HWY_MIN(way + kNibbleWays, codes.ways()); way < stop; ++way) {
        const WordVector count = CountsOfCodes(LoadCodes(codes.packed(way) + begin + b, bytes - b));
        even = hn::Add(even, hn::And(hn::ShiftRight<2>(count), pairs));
        odd = hn::Add(odd, hn::And(count, pairs));
      }
      sum0 = hn::Add(sum0, hn::And(hn::ShiftRight<4>(even), nibble));
      sum1 = hn::Add(sum1, hn::And(hn::ShiftRight<4>(odd), nibble));
      sum2 = hn::Add(sum2, hn::And(even, nibble));
      sum3 = hn::Add(sum3, hn::And(odd, nibble));
    }
    const Bytes bytes_tag;
    hn::StoreInterleaved4(hn::BitCast(bytes_tag, sum0), hn::BitCast(bytes_tag, sum1),
                          hn::BitCast(bytes_tag, sum2), hn::BitCast(bytes_tag, sum3), bytes_tag, counts);
  }
}

template <bool kStream>
void CountsToFloats(const std::uint8_t* HWY_RESTRICT counts, std::size_t elements, std::size_t ways,
                    float level, float* HWY_RESTRICT out) {
  const Floats d;
  const Ints di;
  const hn::Rebind<std::uint8_t, Floats> quarter;
  const auto zero = hn::Set(di, static_cast<std::int32_t>(ways));
  const FloatVector scale = hn::Set(d, level);
  const auto one = [&](std::size_t i) {
    out[i] = static_cast<float>(counts[i] - static_cast<int>(ways)) * level;
  };
  std::size_t i = 0;
  for (const std::size_t head = kStream ? ElementsToAlign(out, elements) : 0; i < head; ++i) one(i);
  for (; i + kLanes <= elements; i += kLanes) {
    const auto sum = hn::Sub(hn::PromoteTo(di, hn::LoadU(quarter, counts + i)), zero);
    StoreFloats<kStream>(hn::Mul(hn::ConvertTo(d, sum), scale), out + i);
  }
  for (; i < elements; ++i) one(i);
}

/// Fills tile after tile of counts by fill(first, length, counts) and writes
/// them as floats.
template <bool kStream, class Fill>
HWY_INLINE void TilesToFloats(std::size_t elements, std::size_t ways, float level, float* out,
                              const Fill& fill) {
  alignas(64) std::uint8_t counts[kTile];
  for (std::size_t i = 0; i < elements; i += kTile) {
    const std::size_t length = HWY_MIN(kTile, elements - i);
    fill(i, length, counts);
    CountsToFloats<kStream>(counts, length, ways, level, out + i);
  }
  if constexpr (kStream) hwy::FlushStream();
}

void SumToFloats(const Codes& codes, std::size_t elements, float level, float* out) {
  if (codes.ways() == 1) return DecodeOne(codes.packed(0), elements, level, out);
  // A count, k + ways, must fit a byte. Beyond that the scalar rule gives the same bits, more slowly.
  if (codes.ways() > kMaxByteWays) return sum_to_floats_scalar(codes, elements, level, out);
  const auto fill = [&](std::size_t first, std::size_t length, std::uint8_t* counts)
                        HWY_ATTR { SumToCounts(codes, first / 4, packed_bytes(length), counts); };
  if (elements < kStreamElements) return TilesToFloats<false>(elements, codes.ways(), level, out, fill);
  TilesToFloats<true>(elements, codes.ways(), level, out, fill);
}

/// Writes the planes of whole groups of counts.
void GroupsToPlanes(const std::uint8_t* HWY_RESTRICT counts, std::size_t groups, std::size_t bits,
                    std::byte* HWY_RESTRICT out) {
  const Bytes d;
  for (const std::uint8_t* group = counts; group != counts + groups * kPlaneGroup; group += kPlaneGroup) {
    for (std::size_t j = 0; j < bits; ++j, out += 8) {
      const ByteVector bit = hn::Set(d, static_cast<std::uint8_t>(1u << j));
      std::uint64_t plane = 0;
      for (std::size_t e = 0; e < kPlaneGroup; e += kByteLanes) {
        plane |= MaskBits(d, hn::TestBit(hn::LoadU(d, group + e), bit)) << e;
      }
      store(plane, out);
    }
  }
}

void CountsToPlanes(const std::uint8_t* counts, std::size_t elements, std::size_t ways, std::byte* out) {
  const std::size_t bits = count_bits(ways);
  const std::size_t whole = elements / kPlaneGroup;
  GroupsToPlanes(counts, whole, bits, out);
  if (elements % kPlaneGroup == 0) return;
  // Absent elements of the last group count as 0, and their bits are part of the format.
  alignas(64) std::uint8_t last[kPlaneGroup] = {};
  std::memcpy(last, counts + whole * kPlaneGroup, elements % kPlaneGroup);
  GroupsToPlanes(last, 1, bits, out + whole * 8 * bits);
}

void SumToPlanes(const Codes& codes, std::size_t elements, std::byte* out) {
  if (codes.ways() > kMaxByteWays) return sum_to_planes_scalar(codes, elements, out);
  alignas(64) std::uint8_t counts[kTile];
  for (std::size_t i = 0; i < elements; i += kTile) {
    const std::size_t length = HWY_MIN(kTile, elements - i);
    SumToCounts(codes, i / 4, packed_bytes(length), counts);
    CountsToPlanes(counts, length, codes.ways(), out);
    out += plane_bytes(length, codes.ways());
  }
}

std::uint32_t PlanesToFloats(const std::byte* planes, std::size_t ways, std::size_t elements, float level,
                             float* out) {
  if (ways > kMaxByteWays) return planes_to_floats_scalar(planes, ways, elements, level, out);
  const Bytes d;
  const std::size_t bits = count_bits(ways);
  ByteVector largest = hn::Zero(d);
  const auto fill = [&](std::size_t first, std::size_t length, std::uint8_t* counts) HWY_ATTR {
    const std::byte* group = planes + first / kPlaneGroup * 8 * bits;
    for (std::size_t e = 0; e < length; e += kPlaneGroup, group += 8 * bits) {
      for (std::size_t lane = 0; lane < kPlaneGroup; lane += kByteLanes) {
        ByteVector count = hn::Zero(d);
        for (std::size_t j = 0; j < bits; ++j) {
          const std::uint64_t plane = load<std::uint64_t>(group + 8 * j) >> lane;
          const auto set = hn::LoadMaskBits(d, reinterpret_cast<const std::uint8_t*>(&plane));
          count = hn::Or(count, hn::IfThenElseZero(set, hn::Set(d, static_cast<std::uint8_t>(1u << j))));
        }
        largest = hn::Max(largest, count);
        hn::Store(count, d, counts + e + lane);
      }
    }
  };
  if (elements < kStreamElements) {
    TilesToFloats<false>(elements, ways, level, out, fill);
  } else {
    TilesToFloats<true>(elements, ways, level, out, fill);
  }
  alignas(64) std::uint8_t lanes[kByteLanes];
  hn::Store(largest, d, lanes);
  // The caller refuses a count beyond 2 * ways, after the pass: checking first would read the planes twice.
  return *std::max_element(lanes, lanes + kByteLanes);
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace gradwire::compress::two_bit
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradwire::compress::two_bit {

HWY_EXPORT(SumToFloats);
HWY_EXPORT(AddToFloats);
HWY_EXPORT(SumToPlanes);
HWY_EXPORT(CountsToPlanes);
HWY_EXPORT(PlanesToFloats);

void sum_to_floats(const Codes& codes, std::size_t elements, float level, float* out) noexcept {
  HWY_DYNAMIC_DISPATCH(SumToFloats)(codes, elements, level, out);
}

void add_to_floats(const std::byte* packed, std::size_t elements, float level, float* out) noexcept {
  HWY_DYNAMIC_DISPATCH(AddToFloats)(packed, elements, level, out);
}

void sum_to_planes(const Codes& codes, std::size_t elements, std::byte* out) noexcept {
  HWY_DYNAMIC_DISPATCH(SumToPlanes)(codes, elements, out);
}

void counts_to_planes(const std::uint8_t* counts, std::size_t elements, std::size_t ways,
                      std::byte* out) noexcept {
  HWY_DYNAMIC_DISPATCH(CountsToPlanes)(counts, elements, ways, out);
}

std::uint32_t planes_to_floats(const std::byte* planes, std::size_t ways, std::size_t elements, float level,
                               float* out) noexcept {
  return HWY_DYNAMIC_DISPATCH(PlanesToFloats)(planes, ways, elements, level, out);
}

}  // namespace gradwire::compress::two_bit
#endif
