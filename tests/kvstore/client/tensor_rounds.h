// Tensors with a round in flight, without a thread around them.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "compress/codecs.h"
#include "kvstore/client/tensor_table.h"
#include "kvstore/runtime/pending_requests.h"
#include "kvstore/wire/compression.h"

namespace gradwire::kvstore {

/// "2bit:threshold=0.5", with replies in its own name.
inline std::shared_ptr<const Compression> compression(const std::string& spec) {
  return std::make_shared<const Compression>(
      Compression{compress::make(compress::parse_spec(spec)), compress::ReplyKind::kSame});
}

/// Two parts of 8 elements at the first of two servers, and one of 4 at the second.
inline std::vector<Part> three_parts() { return {{0, 0, 8}, {1, 16, 4}, {0, 8, 8}}; }

/// Begins an operation on a tensor as a RoundThread does.
inline void begin(Tensor& tensor, Operation operation, const TensorTable& tensors, PendingRequests& pending) {
  tensor.current = std::move(operation);
  tensor.weight_replies = std::make_shared<const WeightReplies>();
  tensor.pending = pending.begin([&tensor] { return "key '" + tensor.spec.name + "' has"; },
                                 PendingRequests::Clock::now());
  if (!tensor.current->pushes()) return;
  tensor.use(tensors.compression_in_round(tensor));
  if (tensor.codec().lossy() && tensor.residual.empty()) tensor.residual.assign_zeros(tensor.spec.elements());
  if (tensor.codec().agrees_scales()) tensor.scales.resize(tensor.unit_count());
  ++tensor.step;
}

inline void end(Tensor& tensor, PendingRequests& pending) {
  pending.end(tensor.pending);
  tensor.current.reset();
}

}  // namespace gradwire::kvstore
