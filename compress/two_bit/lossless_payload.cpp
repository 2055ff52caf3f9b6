#include "compress/two_bit/lossless_payload.h"

#include <algorithm>
#include <string>

#include "compress/payload/integer_sums.h"
#include "compress/two_bit/two_bit_scalar.h"

namespace gradwire::compress::lossless {
namespace {

/// The codes of codecs whose payload is a head and then one run of 2-bit codes.
const IntegerSums* two_bit_codes(const Codec& codec, std::size_t payload_bytes, std::size_t elements) {
  const IntegerSums* const sums = codec.integer_sums();
  if (sums == nullptr || sums->code_bits() != two_bit::kCodeBits) return nullptr;
  return payload_bytes == sums->head_bytes(elements) + two_bit::packed_bytes(elements) ? sums : nullptr;
}

std::size_t head_bytes(const Codec& codec, std::size_t elements) {
  const IntegerSums* const sums = codec.integer_sums();
  if (sums == nullptr || sums->code_bits() != two_bit::kCodeBits) {
    throw DecodeError("lossless: a payload of codec " + std::string(codec.name()) +
                      " is said to be shortened, but it holds no 2-bit codes");
  }
  return sums->head_bytes(elements);
}

}  // namespace

std::size_t shorten(const Codec& codec, Payload payload, std::size_t elements, std::span<std::byte> out) {
  const IntegerSums* const sums = two_bit_codes(codec, payload.size(), elements);
  if (sums == nullptr || !sums->holds_codes(payload)) return 0;
  const std::size_t head = sums->head_bytes(elements);
  std::copy_n(payload.begin(), head, out.begin());
  const std::size_t bytes = head + encode(payload.subspan(head), elements, out.subspan(head));
  return bytes < payload.size() ? bytes : 0;
}

std::size_t restored_bytes(const Codec& codec, Payload shortened, std::size_t elements) {
  const std::size_t head = head_bytes(codec, elements);
  if (shortened.size() < head + kUnitHeadBytes * unit_count(elements)) {
    throw DecodeError("lossless: " + std::to_string(shortened.size()) + " bytes cannot hold " +
                      std::to_string(elements) + " elements");
  }
  return head + two_bit::packed_bytes(elements);
}

void restore(const Codec& codec, Payload shortened, std::size_t elements, std::span<std::byte> out) {
  const std::size_t bytes = restored_bytes(codec, shortened, elements);
  const std::size_t head = head_bytes(codec, elements);
  std::copy_n(shortened.begin(), head, out.begin());
  decode(shortened.subspan(head), elements, out.subspan(head, bytes - head));
}

}  // namespace gradwire::compress::lossless
