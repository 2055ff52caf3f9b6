// What the kvstore's fields of a frame header mean, for both ends. The rest of the data plane is in
// README.md.
#pragma once

#include <cstdint>

namespace gradwire::kvstore {

/// What a value in a reply is. Part of the wire format, never renumber.
enum class Content : std::uint8_t { kSum = 0, kWeight = 1, kWeightDelta = 2 };

/// How final a kError is (in header.content). Part of the wire format, never renumber.
enum class Refusal : std::uint8_t {
  kFinal = 0,      ///< the request is wrong; the text says why
  kSendAgain = 1,  ///< the payload did not arrive whole
  kLetter = 2,     ///< kPost, kFetch or kReceipt: nothing to do with a key; final
};

/// The upper half of a reply's flags: how many of the workers its sum has nothing of, since they have joined.
/// Part of the wire format.
inline constexpr unsigned kAbsentShift = 16;

constexpr std::uint32_t with_absent(std::uint32_t flags, std::uint32_t absent) {
  return flags | absent << kAbsentShift;
}
constexpr std::uint32_t absent_of(std::uint32_t flags) { return flags >> kAbsentShift; }

}  // namespace gradwire::kvstore
