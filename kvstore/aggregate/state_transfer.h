// StateTransfer reads what a server keeps of a partition between rounds (partition_state.h), and restores it
// in a job that begins.
//
// Threading: one owner. Pure.
// Failure: std::invalid_argument for a request that must be refused; nothing has changed then.
#pragma once

#include <string>

#include "kvstore/aggregate/partition.h"
#include "kvstore/aggregate/push_clocks.h"
#include "kvstore/aggregate/servers_updater.h"
#include "transport/frame.h"

namespace gradwire::kvstore {

class StateTransfer {
 public:
  /// All outlive this.
  StateTransfer(Partitions& partitions, const ServersUpdater& updater, const AsyncWorkers& async)
      : partitions_(partitions), updater_(updater), async_workers_(async) {}

  /// The answer to a kReadState.
  transport::Frame read(const transport::FrameHeader& request) const;
  /// The answer to a worker's kWriteState, once it is written. One that comes again changes nothing.
  transport::Frame write(std::uint32_t worker, const transport::Frame& request);

 private:
  transport::Frame read_optimizer(const transport::FrameHeader& request) const;
  transport::Frame write_optimizer(const transport::Frame& request);
  void require_own_moments(const OptimizerState& state, const transport::FrameHeader& request) const;

  Partitions& partitions_;
  const ServersUpdater& updater_;
  const AsyncWorkers& async_workers_;
};

}  // namespace gradwire::kvstore
