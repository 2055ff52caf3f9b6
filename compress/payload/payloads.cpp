#include "compress/payload/payloads.h"

#include <stdexcept>

#include "compress/payload/float_bits.h"

namespace gradwire::compress {

std::string payload_name(std::size_t index, std::size_t ways) {
  return "payload " + std::to_string(index) + " of " + std::to_string(ways);
}

void expect_bytes(std::string_view codec, std::string_view what, std::size_t bytes, std::size_t expected,
                  std::size_t elements) {
  if (bytes == expected) return;
  throw DecodeError(std::string(codec) + ": " + std::string(what) + " has " + std::to_string(bytes) +
                    " bytes, " + std::to_string(elements) + " elements need " + std::to_string(expected));
}

void expect_payload_bytes(std::string_view codec, std::span<const Payload> payloads, std::size_t expected,
                          std::size_t elements) {
  for (std::size_t i = 0; i < payloads.size(); ++i) {
    if (payloads[i].size() == expected) continue;
    expect_bytes(codec, payload_name(i, payloads.size()), payloads[i].size(), expected, elements);
  }
}

void expect_ways(std::string_view codec, std::size_t ways) {
  if (ways >= 1 && ways <= kMaxWays) return;
  throw std::invalid_argument(std::string(codec) + ": " + std::to_string(ways) +
                              " payloads cannot be summed, expected 1 to " + std::to_string(kMaxWays));
}

void expect_counts(std::string_view codec, std::size_t largest, std::size_t ways) {
  if (largest <= 2 * ways) return;
  throw DecodeError(std::string(codec) + ": the reply holds a count of " + std::to_string(largest) + ", " +
                    std::to_string(ways) + " payloads give at most " + std::to_string(2 * ways));
}

void expect_encode_spans(std::string_view codec, std::size_t elements, std::size_t residual_elements,
                         std::size_t out_bytes, std::size_t needed_bytes) {
  if (residual_elements != 0 && residual_elements != elements) {
    throw std::invalid_argument(std::string(codec) + ": the residual has " +
                                std::to_string(residual_elements) + " elements, expected " +
                                std::to_string(elements) + " or none");
  }
  if (out_bytes < needed_bytes) {
    throw std::invalid_argument(std::string(codec) + ": the output has " + std::to_string(out_bytes) +
                                " bytes, " + std::to_string(elements) + " elements may need " +
                                std::to_string(needed_bytes));
  }
}

void expect_bf16_spans(std::string_view codec, std::size_t elements, std::size_t residual_bytes,
                       std::size_t out_bytes, std::size_t needed_bytes) {
  expect_encode_spans(codec, elements, 0, out_bytes, needed_bytes);
  if (residual_bytes != 2 * elements) {
    throw std::invalid_argument(std::string(codec) + ": the residual in bf16 has " +
                                std::to_string(residual_bytes) + " bytes, expected " +
                                std::to_string(2 * elements));
  }
}

void expect_usable_scales(std::string_view codec, std::span<const UnitScale> scales) {
  const auto usable = [](float value) { return is_finite(value) && value >= 0; };
  for (std::size_t unit = 0; unit < scales.size(); ++unit) {
    if (usable(scales[unit].threshold) && usable(scales[unit].level)) continue;
    throw std::invalid_argument(std::string(codec) + ": the scale of unit " + std::to_string(unit) +
                                " is negative or not finite; hand over what decode_reply() gave");
  }
}

}  // namespace gradwire::compress
