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
  kRows = 3,       ///< kRowInit, kRowPush or kRowPull: of a table of rows; final
};

}  // namespace gradwire::kvstore
