// Contributions are the input of a round's answer: the workers' payloads, or their codes as a library has
// added them.
//
// Threading: one owner. Lifetime: views of payloads that outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "compress/codec.h"
#include "compress/payload/integer_sums.h"
#include "transport/buffer.h"

namespace gradwire::kvstore {

/// A round of codes that a library has added.
struct IntegerContributions {
  transport::Buffer sums;   ///< one integer an element
  transport::Buffer heads;  ///< of all payloads in rank order, of equal lengths; empty where they have none
  compress::IntegerWidth width = compress::IntegerWidth::kInt8;
};

class Contributions {
 public:
  /// Of the payloads that are there, in rank order.
  explicit Contributions(std::span<const std::optional<transport::Buffer>> payloads);
  /// Of this many workers.
  Contributions(const IntegerContributions& integers, std::uint32_t workers);
  Contributions(const Contributions&) = delete;
  Contributions& operator=(const Contributions&) = delete;

  std::size_t ways() const { return integers_ ? integers_->ways : payloads_.size(); }
  /// The first payload, or head; nothing where payloads of this codec have no head.
  compress::Payload front() const { return payloads_.empty() ? compress::Payload() : payloads_.front(); }

  /// As those of compress::Codec.
  void decode_sum(const compress::Codec& codec, std::span<float> out) const;
  compress::Encoded encode_reply(const compress::Codec& codec, std::size_t elements, compress::ReplyKind kind,
                                 std::span<float> residual, std::span<std::byte> out) const;

 private:
  std::vector<compress::Payload> payloads_;  ///< or heads
  std::optional<compress::SummedRound> integers_;
};

}  // namespace gradwire::kvstore
