// The checks of payloads and spans that every codec makes.
//
// Threading: all functions are pure.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "compress/codec.h"

namespace gradwire::compress {

/// Ways above this would let an integer sum leave the 16 bits that keep k * level exact.
inline constexpr std::size_t kMaxWays = 65535;

/// Throws DecodeError unless bytes == expected. `what` is the thing measured: "the reply".
void expect_bytes(std::string_view codec, std::string_view what, std::size_t bytes, std::size_t expected,
                  std::size_t elements);

/// Throws DecodeError naming the first payload that does not have `expected` bytes.
void expect_payload_bytes(std::string_view codec, std::span<const Payload> payloads, std::size_t expected,
                          std::size_t elements);

/// "payload 3 of 8", the way an error names the payload at fault.
std::string payload_name(std::size_t index, std::size_t ways);

/// Throws std::invalid_argument unless ways is in [1, kMaxWays].
void expect_ways(std::string_view codec, std::size_t ways);

/// Throws DecodeError unless the largest count of an exact reply is in [0, 2 * ways].
void expect_counts(std::string_view codec, std::size_t largest, std::size_t ways);

/// Throws std::invalid_argument when a caller broke what encode() requires: out and residual long enough.
void expect_encode_spans(std::string_view codec, std::size_t elements, std::size_t residual_elements,
                         std::size_t out_bytes, std::size_t needed_bytes);

/// The same with a residual in bfloat16 of residual_bytes bytes.
void expect_bf16_spans(std::string_view codec, std::size_t elements, std::size_t residual_bytes,
                       std::size_t out_bytes, std::size_t needed_bytes);

/// Throws std::invalid_argument when a threshold or level is negative or not finite.
void expect_usable_scales(std::string_view codec, std::span<const UnitScale> scales);

/// Where a residual lies; nullptr for an empty span, which stands for no residual.
inline float* data_or_null(std::span<float> residual) { return residual.empty() ? nullptr : residual.data(); }

}  // namespace gradwire::compress
