#include "compress/two_bit/lossless.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>

#include "compress/payload/bit_stream.h"
#include "compress/payload/little_endian.h"
#include "compress/two_bit/two_bit_scalar.h"

namespace gradwire::compress::lossless {
namespace {

using two_bit::packed_bytes;

constexpr unsigned kFormShift = 30;  // a head is form << kFormShift | sent elements
constexpr std::uint32_t kSentMask = (std::uint32_t{1} << kFormShift) - 1;
constexpr std::uint64_t kUpper = 0xaaaaaaaaaaaaaaaa;  // of every code the bit that says "sent"

std::size_t upper_bytes(std::size_t elements, std::size_t sent, std::uint32_t low_bits) noexcept {
  return sent == 0 ? 0 : bytes_for_bits(sent + ((elements - 1) >> low_bits));
}

// ------------------------------------------------------------------------------------- four codes a byte

// A byte of codes has four elements. Tables of 256 entries turn it into signs and places and back, without a
// branch on what is sent.
struct FourCodes {
  std::uint8_t sent = 0;   ///< bit j: element j is sent
  std::uint8_t signs = 0;  ///< bit i: the i-th sent one is -
  std::uint8_t count = 0;
};

constexpr std::array<FourCodes, 256> kFourCodes = [] {
  std::array<FourCodes, 256> table;
  for (unsigned four = 0; four < 256; ++four) {
    FourCodes& entry = table[four];
    for (unsigned j = 0; j < 4; ++j) {
      const unsigned code = four >> two_bit::code_shift(j) & 3;
      // 00 and 01. Units with a 01 are never coded by this table (Census::regular).
      if (code < 2) continue;
      entry.sent |= static_cast<std::uint8_t>(1u << j);
      entry.signs |= static_cast<std::uint8_t>((code == 2 ? 1u : 0u) << entry.count++);
    }
  }
  return table;
}();

/// The byte of codes of signs << 4 | sent.
constexpr std::array<std::uint8_t, 256> kByteOfFour = [] {
  std::array<std::uint8_t, 256> table{};
  for (unsigned index = 0; index < 256; ++index) {
    unsigned signs = index >> 4;
    for (unsigned j = 0; j < 4; ++j) {
      if ((index >> j & 1) == 0) continue;
      table[index] |= static_cast<std::uint8_t>((3 - (signs & 1)) << two_bit::code_shift(j));
      signs >>= 1;
    }
  }
  return table;
}();

constexpr std::array<std::uint8_t, 16> kOnes = [] {
  std::array<std::uint8_t, 16> table{};
  for (unsigned nibble = 0; nibble < 16; ++nibble) {
    table[nibble] = static_cast<std::uint8_t>(std::popcount(nibble));
  }
  return table;
}();

// ------------------------------------------------------------------------------------- one unit's codes

struct Census {
  std::size_t sent = 0;
  bool regular = true;  ///< no code 01, nothing beyond the last element
};

bool has_absent_codes(const std::byte* codes, std::size_t elements) noexcept {
  for (std::size_t i = elements; i < 4 * packed_bytes(elements); ++i) {
    if ((std::to_integer<unsigned>(codes[i / 4]) >> two_bit::code_shift(i) & 3) != 0) return true;
  }
  return false;
}

Census count_sent(const std::byte* codes, std::size_t elements) noexcept {
  constexpr std::size_t kBlock = 8 * 63;  // as many words as counts of up to 4 a byte can be added for
  constexpr std::uint64_t kPairs = 0x3333333333333333;
  constexpr std::uint64_t kNibbles = 0x0f0f0f0f0f0f0f0f;
  constexpr std::uint64_t kBytePairs = 0x00ff00ff00ff00ff;
  const std::size_t bytes = packed_bytes(elements);
  Census census;
  std::uint64_t irregular = 0;
  for (std::size_t block = 0; block < bytes; block += kBlock) {
    const std::size_t end = std::min(bytes, block + kBlock);
    std::uint64_t counts = 0;  // a byte each
    for (std::size_t b = block; b < end; b += 8) {
      const std::uint64_t word = load_word(codes + b, end - b);
      // A code has its lower bit only together with its upper one, except 01.
      const std::uint64_t sent = (word & kUpper) >> 1;
      irregular |= word & ~kUpper & ~sent;
      const std::uint64_t pairs = (sent & kPairs) + (sent >> 2 & kPairs);
      counts += (pairs & kNibbles) + (pairs >> 4 & kNibbles);
    }
    // Adds the counts of eight bytes by a multiplication, in 16 bits each so that none overflows.
    census.sent += ((counts & kBytePairs) + (counts >> 8 & kBytePairs)) * 0x0001000100010001 >> 48;
  }
  census.regular = irregular == 0 && !has_absent_codes(codes, elements);
  return census;
}

void encode_bitmap(const std::byte* codes, std::size_t elements, std::byte* out) noexcept {
  const std::size_t bitmap_bytes = bytes_for_bits(elements);
  BitWriter signs(out + bitmap_bytes);
  for (std::size_t b = 0; b < bitmap_bytes; ++b) {
    const FourCodes& first = kFourCodes[std::to_integer<std::size_t>(codes[2 * b])];
    const FourCodes& second = kFourCodes[std::to_integer<std::size_t>(codes[2 * b + 1])];
    out[b] = static_cast<std::byte>(first.sent | second.sent << 4);
    signs.put(static_cast<std::uint32_t>(first.signs | second.signs << first.count),
              first.count + static_cast<unsigned>(second.count));
  }
  signs.finish();
}

/// Turns the four codes of every byte round, so that element e is in bits 2e and 2e + 1.
constexpr std::uint64_t in_order(std::uint64_t codes) {
  codes = (codes >> 4 & 0x0f0f0f0f0f0f0f0f) | (codes & 0x0f0f0f0f0f0f0f0f) << 4;
  return (codes >> 2 & 0x3333333333333333) | (codes & 0x3333333333333333) << 2;
}

void encode_positions(const std::byte* codes, std::size_t elements, std::size_t sent, std::uint32_t low_bits,
                      std::byte* out) noexcept {
  const std::size_t first_part = upper_bytes(elements, sent, low_bits);
  const std::size_t bytes = packed_bytes(elements);
  const std::uint32_t low_mask = (std::uint32_t{1} << low_bits) - 1;
  // The loop stores words only where it has passed them.
  std::memset(out, 0, first_part);
  BitWriter fields(out + first_part);
  std::uint64_t unary = 0;  // bits from unary_at on
  std::size_t unary_at = 0;
  std::size_t index = 0;
  for (std::size_t b = 0; b < bytes; b += 8) {
    const std::uint64_t word = in_order(load_word(codes + b, bytes - b));
    for (std::uint64_t left = word & kUpper; left != 0; left &= left - 1, ++index) {
      const auto bit = static_cast<unsigned>(std::countr_zero(left));
      const auto position = static_cast<std::uint32_t>(4 * b + bit / 2);
      // 11 is +, 10 is -.
      const auto negative = static_cast<std::uint32_t>(~(word >> (bit - 1)) & 1);
      // Elias-Fano: one 1 for each position, after as many 0 as the upper part has grown.
      const std::size_t at = (position >> low_bits) + index;
      for (; at - unary_at >= 64; unary_at += 64) {
        store(unary, out + unary_at / 8);
        unary = 0;
      }
      unary |= std::uint64_t{1} << (at - unary_at);
      fields.put((position & low_mask) << 1 | negative, low_bits + 1);
    }
  }
  // The last word may be longer than the room: the fields begin behind it.
  std::memcpy(out + unary_at / 8, &unary, std::min(sizeof unary, first_part - unary_at / 8));
  fields.finish();
}

// ------------------------------------------------------------------------------------- and back

[[noreturn]] void refuse(const char* what) { throw DecodeError(std::string("lossless: ") + what); }

/// Throws where a part of so many bits has others set in its last byte: there is one coded form of any codes.
void expect_clear_beyond(const std::byte* part, std::size_t bits, const char* what) {
  if (bits % 8 != 0 && std::to_integer<unsigned>(part[bits / 8]) >> (bits % 8) != 0) refuse(what);
}

/// Copies a unit that stays as it is.
void decode_raw(const std::byte* body, std::size_t elements, std::byte* codes) {
  std::memcpy(codes, body, packed_bytes(elements));
  const Census census = count_sent(codes, elements);
  // There is one coded form of any codes, so equal gradients have equal bytes, and fuzzing finds a second
  // one.
  if (census.regular && plan_unit(elements, census.sent).form != Form::kRaw) {
    refuse("a unit is raw though its density asks for another form");
  }
}

/// Writes `codes` from a bitmap, of which all bytes are there, and the signs after it.
void decode_bitmap(const std::byte* bitmap, std::size_t available, std::size_t elements, std::size_t sent,
                   std::byte* codes) {
  const std::size_t bitmap_bytes = bytes_for_bits(elements);
  const BitReader signs(bitmap + bitmap_bytes, available - bitmap_bytes);
  std::size_t taken = 0;
  std::memset(codes, 0, packed_bytes(elements));
  for (std::size_t b = 0; b < bitmap_bytes; ++b) {
    // Before the next signs are read: BitReader must not be asked beyond its bytes.
    if (taken > sent) refuse("a bitmap has more ones than its unit has sent elements");
    const auto both = std::to_integer<std::size_t>(bitmap[b]);
    const std::size_t first = both & 15;
    const std::size_t second = both >> 4;
    const std::uint64_t window = signs.at(taken);
    codes[2 * b] = std::byte{kByteOfFour[first | (window & 15) << 4]};
    codes[2 * b + 1] = std::byte{kByteOfFour[second | (window >> kOnes[first] & 15) << 4]};
    taken += std::size_t{kOnes[first]} + kOnes[second];
  }
  if (taken != sent) refuse("a bitmap has not as many ones as its unit has sent elements");
  expect_clear_beyond(bitmap, elements, "a bitmap has ones beyond its last element");
  expect_clear_beyond(bitmap + bitmap_bytes, sent, "a bitmap has signs beyond its last sent element");
}

void decode_positions(const std::byte* upper, std::size_t available, std::size_t elements, std::size_t sent,
                      std::uint32_t low_bits, std::byte* codes) {
  const std::size_t first_part = upper_bytes(elements, sent, low_bits);
  const BitReader fields(upper + first_part, available - first_part);
  const std::uint32_t width = low_bits + 1;
  const std::uint64_t mask = (std::uint64_t{1} << width) - 1;
  std::size_t index = 0;
  std::size_t least = 0;  // that the next position may be
  std::memset(codes, 0, packed_bytes(elements));
  for (std::size_t b = 0; b < first_part; b += 8) {
    for (std::uint64_t left = load_word(upper + b, first_part - b); left != 0; left &= left - 1, ++index) {
      if (index == sent) refuse("a unit has more positions than sent elements");
      const std::size_t high = 8 * b + static_cast<std::size_t>(std::countr_zero(left)) - index;
      const std::uint64_t field = fields.at(index * width) & mask;
      const std::size_t position = high << low_bits | field >> 1;
      // Ascending positions set every code once. Twice would make another code by the `or` below.
      if (position < least || position >= elements) refuse("positions do not ascend, or leave their unit");
      least = position + 1;
      codes[position / 4] |= static_cast<std::byte>((3 - (field & 1)) << two_bit::code_shift(position));
    }
  }
  if (index != sent) refuse("a unit has fewer positions than sent elements");
  expect_clear_beyond(upper + first_part, sent * width, "a unit has bits beyond its last position");
}

void expect_size(const char* what, std::size_t given, std::size_t needed, bool enough) {
  if (enough) return;
  throw std::invalid_argument("lossless: " + std::string(what) + " has " + std::to_string(given) +
                              " bytes, expected " + std::to_string(needed));
}

/// Writes the head and body of one unit; returns its bytes.
std::size_t encode_unit(const std::byte* codes, std::size_t elements, std::byte* out) noexcept {
  const Census census = count_sent(codes, elements);
  const UnitPlan plan =
      census.regular ? plan_unit(elements, census.sent) : UnitPlan{Form::kRaw, 0, packed_bytes(elements)};
  // A raw unit may have any codes, so a count of it would say nothing that a decoder could check.
  const std::size_t told = plan.form == Form::kRaw ? 0 : census.sent;
  store(static_cast<std::uint32_t>(plan.form) << kFormShift | static_cast<std::uint32_t>(told), out);
  std::byte* const body = out + kUnitHeadBytes;
  switch (plan.form) {
    case Form::kRaw:
      std::memcpy(body, codes, plan.bytes);
      break;
    case Form::kBitmap:
      encode_bitmap(codes, elements, body);
      break;
    case Form::kPositions:
      encode_positions(codes, elements, census.sent, plan.low_bits, body);
      break;
  }
  return kUnitHeadBytes + plan.bytes;
}

/// What the head of a unit says. Throws DecodeError for what no encoder says.
UnitPlan read_head(std::uint32_t head, std::size_t elements) {
  const auto form = static_cast<Form>(head >> kFormShift);
  const std::size_t sent = head & kSentMask;
  if (form == Form::kRaw && sent == 0) return {Form::kRaw, 0, packed_bytes(elements)};
  if (sent > elements) refuse("a unit has more sent elements than elements");
  const UnitPlan plan = plan_unit(elements, sent);
  if (form == Form::kRaw || plan.form != form) refuse("a unit has not the form that its density asks for");
  return plan;
}

/// Reads one unit from the front of `coded`; returns its bytes.
std::size_t decode_unit(Payload coded, std::size_t elements, std::byte* codes) {
  if (coded.size() < kUnitHeadBytes) refuse("the coded form ends before a unit");
  const auto head = load<std::uint32_t>(coded.data());
  const UnitPlan plan = read_head(head, elements);
  const std::size_t available = coded.size() - kUnitHeadBytes;
  if (available < plan.bytes) refuse("the coded form ends within a unit");
  const std::byte* const body = coded.data() + kUnitHeadBytes;
  switch (plan.form) {
    case Form::kRaw:
      decode_raw(body, elements, codes);
      break;
    case Form::kBitmap:
      decode_bitmap(body, available, elements, head & kSentMask, codes);
      break;
    case Form::kPositions:
      decode_positions(body, available, elements, head & kSentMask, plan.low_bits, codes);
      break;
  }
  return kUnitHeadBytes + plan.bytes;
}

}  // namespace

UnitPlan plan_unit(std::size_t elements, std::size_t sent) noexcept {
  UnitPlan best{Form::kRaw, 0, packed_bytes(elements)};
  const auto offer = [&](const UnitPlan& plan) {
    // Of equal ones the first stays: encoder and decoder must come to the same plan from the count alone.
    if (plan.bytes < best.bytes) best = plan;
  };
  offer({Form::kBitmap, 0, bytes_for_bits(elements) + bytes_for_bits(sent)});
  for (std::uint32_t low_bits = 0; elements >> low_bits != 0; ++low_bits) {
    offer({Form::kPositions, low_bits,
           upper_bytes(elements, sent, low_bits) + bytes_for_bits(sent * (low_bits + 1))});
  }
  return best;
}

std::size_t max_coded_bytes(std::size_t elements) noexcept {
  return kUnitHeadBytes * unit_count(elements) + packed_bytes(elements);
}

std::size_t encode(std::span<const std::byte> codes, std::size_t elements, std::span<std::byte> out) {
  const std::size_t needed = max_coded_bytes(elements);
  expect_size("the run of codes", codes.size(), packed_bytes(elements),
              codes.size() == packed_bytes(elements));
  expect_size("the output", out.size(), needed, out.size() >= needed);
  std::size_t written = 0;
  for (std::size_t first = 0; first < elements; first += kUnitElements) {
    const std::size_t count = std::min(kUnitElements, elements - first);
    written += encode_unit(codes.data() + first / 4, count, out.data() + written);
  }
  return written;
}

void require_room_for(Payload coded, std::size_t elements) {
  // By division: the product could wrap for a hostile number of elements.
  if (elements / kUnitElements > coded.size() / kUnitHeadBytes) refuse("there are fewer bytes than units");
}

void decode(Payload coded, std::size_t elements, std::span<std::byte> codes) {
  require_room_for(coded, elements);
  expect_size("the run of codes", codes.size(), packed_bytes(elements),
              codes.size() == packed_bytes(elements));
  std::size_t read = 0;
  for (std::size_t first = 0; first < elements; first += kUnitElements) {
    const std::size_t count = std::min(kUnitElements, elements - first);
    read += decode_unit(coded.subspan(read), count, codes.data() + first / 4);
  }
  if (read != coded.size()) refuse("the coded form goes on after its last unit");
}

}  // namespace gradwire::compress::lossless
