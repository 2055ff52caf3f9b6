// RoundWaits describes what a caller's wait needs from other workers, in words that are the same on all of
// them (standstill.h).
//
// Threading: the RoundThread's own.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "kvstore/client/tensor_table.h"
#include "kvstore/runtime/callers.h"
#include "kvstore/wire/async_policy.h"
#include "transport/messenger.h"

namespace gradwire::kvstore {

class RoundWaits {
 public:
  /// active: the tensors with an operation in flight. Both outlive this.
  RoundWaits(const TensorTable& tensors, const std::set<Tensor*>& active, std::optional<AsyncPolicy> async)
      : tensors_(tensors), active_(active), async_workers_(async) {}

  /// Adds to the report what a caller's wait needs.
  void describe(const Callers::Wait& wait, transport::WaitReport& report) const;
  /// Whether this worker, which stands still, holds nobody up in a round, in the words of describe(): it has
  /// begun it, or is not awaited there.
  bool has_begun(const std::string& round, const Callers::Standstill& standing) const;

 private:
  std::optional<std::uint64_t> round_needed(const Tensor& tensor) const;

  const TensorTable& tensors_;
  const std::set<Tensor*>& active_;
  const std::optional<AsyncPolicy> async_workers_;
};

}  // namespace gradwire::kvstore
