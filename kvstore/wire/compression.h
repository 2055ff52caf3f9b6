// Compression is a codec and the form in which sums come back: what all ranks agree on for a key.
//
// Threading: immutable once shared.
#pragma once

#include <memory>
#include <string>

#include "compress/codec.h"

namespace gradwire::kvstore {

struct Compression {
  std::unique_ptr<compress::Codec> codec;
  compress::ReplyKind reply = compress::ReplyKind::kFp32;
};

/// Tells compressions apart whose agreed scales mean different things. Part of a checkpoint's format.
std::string name_of(const Compression& compression);

}  // namespace gradwire::kvstore
