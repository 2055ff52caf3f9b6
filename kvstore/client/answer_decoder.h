// AnswerDecoder decodes a server's answer into the memory of the operation in flight.
//
// Threading: any thread of the pool, each with another part.
// Failure: throws compress::DecodeError for bytes that are not an answer to that operation.
#pragma once

#include <cstdint>
#include <span>

#include "kvstore/client/tensor.h"
#include "transport/frame.h"

namespace gradwire::kvstore {

class AnswerDecoder {
 public:
  /// contributors: payloads in a sum.
  explicit AnswerDecoder(std::uint32_t contributors) : contributors_(contributors) {}

  /// Decodes a reply or a value, times the operation's scale, and copies it to the tensors that travel as
  /// one. Scales that were agreed for the next round are the tensor's then.
  void decode(Tensor& tensor, std::size_t part, const transport::Frame& answer) const;
  /// Throws where the operation has no memory for a part's answer: where pushes are applied at once, a push
  /// has none. A server must not make this worker write there.
  static void expect_room(const Operation& operation, const Part& part);
  /// Payloads in the sum that a reply is made of: those of workers that have joined are not.
  std::uint32_t ways_of(const transport::FrameHeader& reply) const;

 private:
  void decode_floats(Tensor& tensor, std::size_t part, const transport::Frame& answer, float scale,
                     std::span<float> out) const;

  const std::uint32_t contributors_;
};

}  // namespace gradwire::kvstore
