// The table of codecs, and the two ways to get one: from a user's text, or from a frame header.
//
// Threading: all functions are pure.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "compress/codec.h"
#include "compress/payload/codec_entry.h"

namespace gradwire::compress {

/// Every codec, in the order users should read about them.
std::span<const CodecEntry> codecs() noexcept;

/// Makes the codec that spec names. Throws std::invalid_argument that names the nearest valid codec or
/// parameter.
std::unique_ptr<Codec> make(const CodecSpec& spec);

/// Makes the codec that a frame names, for decoding. Throws DecodeError for an unknown id or parameters.
std::unique_ptr<Codec> from_wire(WireId id, const WireParameters& parameters);

/// Reads "2bit:threshold=auto,nonfinite=mxnet". Throws std::invalid_argument.
CodecSpec parse_spec(std::string_view text);

/// Writes what parse_spec reads, every parameter that applies present, in the table's order (but
/// lossless=off, as if it were not there): equal codecs give equal text. Throws as make().
std::string canonical_spec(const CodecSpec& spec);

/// True where NaN and infinity may stay in a residual: nonfinite=mxnet, as MXNet has it.
bool keeps_nonfinite(const Codec& codec);

/// Maps "exact", "fp32" or the codec's own name. Throws std::invalid_argument naming the replies this codec
/// has.
ReplyKind reply_kind(const Codec& codec, std::string_view reply);

}  // namespace gradwire::compress
