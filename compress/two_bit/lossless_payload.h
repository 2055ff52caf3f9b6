// The lossless stage (lossless.h) around whole payloads and own-name replies of 2bit. The bytes before the
// codes stay, the codes are rewritten. The sender marks such payloads: a frame has a flag for it.
//
// Threading: all functions are pure; they allocate nothing.
#pragma once

#include <cstddef>
#include <span>

#include "compress/codec.h"
#include "compress/two_bit/lossless.h"

namespace gradwire::compress::lossless {

/// Writes payload, of `elements` elements, with its codes rewritten and returns its new length; 0 where
/// nothing is gained: it would not be shorter, or holds no 2-bit codes. Requires a payload, or own-name
/// reply, of this codec, which is not Segmented, and out.size() >= payload.size() + kUnitHeadBytes *
/// unit_count(elements).
std::size_t shorten(const Codec& codec, Payload payload, std::size_t elements, std::span<std::byte> out);

/// Bytes that restore() writes. Throws DecodeError where no shorten() makes such a payload of this codec:
/// called before memory is taken for them.
std::size_t restored_bytes(const Codec& codec, Payload shortened, std::size_t elements);

/// Writes the payload that was shortened to the first restored_bytes() bytes of out. Throws DecodeError. What
/// is written still has to be validated, as every payload.
void restore(const Codec& codec, Payload shortened, std::size_t elements, std::span<std::byte> out);

}  // namespace gradwire::compress::lossless
