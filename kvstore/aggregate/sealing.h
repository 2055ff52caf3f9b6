// Decides which answers get a checksum as soon as they are made (transport/buffer.h): while they are in the
// cache, and once for all workers.
#pragma once

#include <cstdint>

#include "compress/codec.h"

namespace gradwire::kvstore {

enum class Sealing : std::uint8_t { kLossy, kAll };

/// Those of a lossy codec always are.
inline bool seals(Sealing sealing, const compress::Codec& codec) {
  return sealing == Sealing::kAll || codec.lossy();
}

}  // namespace gradwire::kvstore
