// PushEncoder makes the payload of a part's push from the caller's values and the residual.
//
// Threading: any thread of the pool, each with another part.
// Failure: what it throws ends the round, which others share.
#pragma once

#include <mutex>
#include <set>

#include "kvstore/client/tensor.h"
#include "kvstore/runtime/notices.h"
#include "transport/messenger.h"

namespace gradwire::kvstore {

/// What a push sends of a part.
struct PushPayload {
  transport::Buffer bytes;
  std::uint32_t flags = 0;
};

class PushEncoder {
 public:
  /// shortens: whether codecs' payloads may take a lossless stage (lossless_payload.h). All outlive this.
  PushEncoder(const transport::Messenger& messenger, transport::BufferPool& buffers, Notices& notices,
              bool shortens)
      : messenger_(messenger), buffers_(buffers), notices_(notices), shortens_(shortens) {}

  /// What codecs draw by in the tensor's round in flight, from its first element on.
  compress::Position position_of(const Tensor& tensor) const;
  /// Encodes the part for its tensor's round in flight; what is not sent is in its residual then.
  PushPayload encode(Tensor& tensor, std::size_t part);
  /// Does what is done to a payload wherever it was encoded.
  void finish(const Tensor& tensor, std::size_t part, PushPayload& payload);

 private:
  bool copy_float64(Tensor& tensor, const Part& part, std::span<std::byte> bytes);
  compress::Encoded encode_floats(Tensor& tensor, std::size_t part, std::span<std::byte> out);
  compress::Encoded encode_widened(Tensor& tensor, std::size_t part, std::span<const float> grad,
                                   std::span<std::byte> out);
  void note_overflow(const Tensor& tensor);

  const transport::Messenger& messenger_;
  transport::BufferPool& buffers_;
  Notices& notices_;
  const bool shortens_;
  std::mutex mutex_;
  std::set<KeyId> overflowed_;  ///< keys of which a notice was given; guarded by mutex_
};

}  // namespace gradwire::kvstore
