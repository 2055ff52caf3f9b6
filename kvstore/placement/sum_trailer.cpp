#include "kvstore/placement/sum_trailer.h"

#include <bit>
#include <cstring>
#include <limits>

#include "compress/dense/dense_scalar.h"

namespace gradwire::kvstore {
namespace {

using transport::ElementType;
using transport::FrameHeader;

/// An element that holds a small whole number. Little endian: its first bytes are a narrower element.
std::uint64_t bits_of(ElementType type, std::uint32_t number) {
  const auto value = static_cast<float>(number);
  switch (type) {
    case ElementType::kFloat64:
      return std::bit_cast<std::uint64_t>(double{value});
    case ElementType::kFloat32:
      return std::bit_cast<std::uint32_t>(value);
    case ElementType::kFloat16:
      return compress::dense::f16_from_float(value);
    case ElementType::kBfloat16:
      return compress::dense::bf16_from_float(value);
    default:
      return number;
  }
}

std::uint32_t hash_of(const FrameHeader& header) {
  std::uint64_t mix = 0;
  const auto add = [&](std::uint64_t value) {
    // It finds mistakes, and need not resist anybody: ranks that sum trust each other.
    mix = (mix ^ value) * 0x9E3779B97F4A7C15U;
    mix ^= mix >> 29;
  };
  for (const std::uint64_t value : {header.key, header.offset, header.step, header.count}) add(value);
  add(header.program_step);
  // Of the flags only the layout: whether a rank found a NaN may differ.
  add(std::uint64_t{header.dtype} << 48 | std::uint64_t{header.flags & transport::kFlagSegments} << 16 |
      std::uint64_t{header.codec} << 8 | header.reply);
  for (const std::uint32_t parameter : header.codec_parameters) add(parameter);
  return static_cast<std::uint32_t>(mix >> 32);
}

}  // namespace

void SumTrailer::write(const FrameHeader& header, ElementType type, std::span<std::byte> out) {
  const std::size_t width = transport::bytes_of(type);
  const auto set = [&](std::size_t i, std::uint32_t number) {
    const std::uint64_t bits = bits_of(type, number);
    std::memcpy(out.data() + i * width, &bits, width);
  };
  const std::uint32_t hash = hash_of(header);
  for (std::size_t i = 0; i < kHashElements; ++i) set(i, hash >> i & 1U);
  // Not in the hash, because ranks may differ in it.
  set(kHashElements, (header.flags & transport::kFlagNonfinite) != 0 ? 1 : 0);
}

std::uint32_t SumTrailer::most_ranks(ElementType type) {
  switch (type) {
    case ElementType::kInt8:
      return std::numeric_limits<std::int8_t>::max();
    case ElementType::kInt16:
      return std::numeric_limits<std::int16_t>::max();
    case ElementType::kBfloat16:
      return 1U << 8;
    case ElementType::kFloat16:
      return 1U << 11;
    case ElementType::kFloat32:
      return 1U << 24;
    default:
      return std::numeric_limits<std::int32_t>::max();
  }
}

SumTrailer SumTrailer::read(std::span<const std::byte> tail, ElementType type, const FrameHeader& header,
                            std::uint32_t ranks) {
  const std::size_t width = transport::bytes_of(type);
  const auto element = [&](std::size_t i) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, tail.data() + i * width, width);
    return bits;
  };
  const std::uint32_t hash = hash_of(header);
  SumTrailer read;
  // Small whole numbers are exact in every type, so a sum of ones is compared by its bits.
  for (std::size_t i = 0; i < kHashElements; ++i)
    read.same = read.same && element(i) == bits_of(type, (hash >> i & 1U) * ranks);
  read.nonfinite = element(kHashElements) != 0;
  return read;
}

}  // namespace gradwire::kvstore
