#include "compress/sparse/value_format.h"

#include <iterator>
#include <stdexcept>
#include <string>

#include "compress/payload/parameters.h"

namespace gradwire::compress {
namespace {

struct Row {
  std::string_view name;
  dense::Format format;
};

constexpr Row kFormats[] = {
    // by their number on the wire
    {"fp32", dense::Format::kF32},
    {"fp16", dense::Format::kF16},
    {"bf16", dense::Format::kBf16},
};

}  // namespace

float ratio_of(const CodecSpec& spec, float default_value) {
  const float ratio = positive_float(spec, "ratio", default_value, " of at most 1");
  if (ratio <= 1) return ratio;
  throw std::invalid_argument(spec.name + ": ratio=" + parameter_text(static_cast<double>(ratio)) +
                              " is outside (0, 1]; give the part of the elements to send, e.g. ratio=" +
                              parameter_text(static_cast<double>(default_value)));
}

float ratio_from_wire(std::string_view codec, std::uint32_t bits) {
  const float ratio = positive_float_from_wire(codec, "ratio", bits);
  if (ratio <= 1) return ratio;
  throw DecodeError(std::string(codec) + ": the frame's ratio is " +
                    parameter_text(static_cast<double>(ratio)) + ", expected at most 1");
}

dense::Format value_format(const CodecSpec& spec) {
  return kFormats[word_index(spec, "values", {kFormats[0].name, kFormats[1].name, kFormats[2].name})].format;
}

dense::Format value_format_from_wire(std::string_view codec, std::uint32_t number) {
  if (number < std::size(kFormats)) return kFormats[number].format;
  throw DecodeError(std::string(codec) + ": the frame's format of values is " + std::to_string(number) +
                    ", expected 0 (fp32), 1 (fp16) or 2 (bf16)");
}

std::uint32_t number_of(dense::Format values) noexcept {
  std::uint32_t number = 0;
  while (kFormats[number].format != values) ++number;
  return number;
}

std::string_view name_of(dense::Format values) noexcept { return kFormats[number_of(values)].name; }

}  // namespace gradwire::compress
