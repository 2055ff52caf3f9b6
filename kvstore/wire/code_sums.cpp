#include "kvstore/wire/code_sums.h"

#include <fmt/format.h>

#include <stdexcept>

namespace gradwire::kvstore {
namespace {

constexpr std::pair<std::string_view, CodeSums> kWords[] = {
    {"auto", CodeSums::kFewestBits}, {"gather", CodeSums::kGather}, {"integers", CodeSums::kIntegers}};

}  // namespace

std::string_view to_string(CodeSums code_sums) noexcept {
  for (const auto& [word, value] : kWords) {
    if (value == code_sums) return word;
  }
  return "";
}

CodeSums parse_code_sums(std::string_view text) {
  for (const auto& [word, value] : kWords) {
    if (word == text) return value;
  }
  throw std::invalid_argument(fmt::format("code_sums='{}', expected auto, gather or integers", text));
}

double gathered_bits(std::uint32_t ranks, std::size_t code_bits) noexcept {
  return static_cast<double>(ranks - 1) * static_cast<double>(code_bits);
}

double summed_bits(std::uint32_t ranks, compress::IntegerWidth width) noexcept {
  const auto bits = static_cast<double>(8 * compress::bytes_of(width));
  return 2 * bits * (ranks - 1) / ranks;
}

std::optional<compress::IntegerWidth> integers_for(CodeSums code_sums, std::uint32_t ranks,
                                                   std::size_t code_bits) noexcept {
  const auto width = compress::integer_width(ranks);
  if (!width || code_sums == CodeSums::kGather) return std::nullopt;
  if (code_sums == CodeSums::kIntegers) return width;
  return summed_bits(ranks, *width) < gathered_bits(ranks, code_bits) ? width : std::nullopt;
}

}  // namespace gradwire::kvstore
