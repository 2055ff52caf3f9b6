// The checksum of headers and payloads: CRC-32 as zlib's, so that any language has it at hand.
//
// Threading: a pure function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace gradwire::transport {

/// CRC-32 (reflected, polynomial 0xEDB88320) of bytes; 0 of none. Up to 60 GB/s on bytes in the cache, and as
/// fast as memory otherwise: compute it in the pass that reads or writes them anyway.
std::uint32_t checksum(std::span<const std::byte> bytes) noexcept;

/// Which payloads that a node sends have a checksum. Receivers need not agree: each frame says whether it has
/// one.
enum class PayloadChecksum : std::uint8_t {
  kAuto,  ///< all, except over local sockets of one user, where only those have one that came to send() with
          ///< it
  kAlways,  ///< all
  kOff,     ///< none
};

/// Reads auto, always or off. Throws std::invalid_argument.
PayloadChecksum parse_payload_checksum(std::string_view word);

}  // namespace gradwire::transport
