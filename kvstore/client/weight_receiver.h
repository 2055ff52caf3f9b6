// WeightReceiver requests weights in the servers' current format (weight_replies.h), and decodes them: a
// rounded weight, or a difference to the weight that this worker holds.
//
// Threading: take() on any thread of the pool, each with another part; the rest on the RoundThread's own.
#pragma once

#include "kvstore/client/tensor.h"
#include "transport/buffer.h"
#include "transport/frame.h"

namespace gradwire::kvstore {

class WeightReceiver {
 public:
  /// async: whether servers apply each push by itself. buffers outlives this.
  WeightReceiver(bool async, transport::BufferPool& buffers) : async_workers_(async), buffers_(buffers) {}

  /// What a part's request says of the weight that it wants (PROTOCOL.md).
  Content content_of_request(const Tensor& tensor, const TensorPart& part) const;
  /// Makes room for a weight that is to be held; jobs in the pool then write to it.
  void expect(Tensor& tensor, const TensorPart& part, const transport::FrameHeader& answer) const;
  /// Makes of an answer that is a weight one of floats, and holds them where deltas are to come. Throws
  /// compress::DecodeError for one that was not asked for.
  void take(Tensor& tensor, std::size_t part, transport::Frame& answer) const;

 private:
  bool is_held(const Tensor& tensor, const TensorPart& part) const;

  const bool async_workers_;
  transport::BufferPool& buffers_;
};

}  // namespace gradwire::kvstore
