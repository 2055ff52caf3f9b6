// The checks that payloads and replies with agreed scales pass before anything reads their bodies.
//
// Threading: all functions are pure.
#pragma once

#include <cstddef>
#include <span>

#include "compress/codec.h"
#include "compress/two_bit/two_bit_auto_layout.h"

namespace gradwire::compress::two_bit {

/// What the payloads of a round are.
struct RoundForms {
  std::size_t dense_count = 0;
  std::size_t levels_from = 0;  ///< a payload of codes, if there is one
};

/// Throws DecodeError unless payload is one of `elements` elements.
void check_payload(Payload payload, std::size_t elements);

/// Checks each payload, and that those of codes carry the same levels. Throws DecodeError naming the payload
/// at fault, std::invalid_argument for a number of payloads that cannot be summed.
RoundForms check_round(std::span<const Payload> payloads, std::size_t elements);

/// As check_round(), for payloads of codes of which only what stands before the codes is here.
RoundForms check_heads(std::span<const Payload> heads, std::size_t elements);

/// Throws DecodeError unless reply answers `ways` payloads of `elements` elements in this kind. The counts in
/// bit planes are not looked at.
Form check_reply(Payload reply, std::size_t elements, std::size_t ways, ReplyKind kind);

/// Throws std::invalid_argument unless scales is empty or holds one entry per unit.
void expect_scales(std::size_t scales, std::size_t elements);

}  // namespace gradwire::compress::two_bit
