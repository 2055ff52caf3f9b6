#include "kvstore/aggregate/state_transfer.h"

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

#include "kvstore/aggregate/partition_state.h"
#include "kvstore/wire/answer.h"

namespace gradwire::kvstore {
namespace {

using transport::Buffer;
using transport::Frame;
using transport::FrameHeader;
using transport::Kind;

std::string name_of(const FrameHeader& header) {
  return fmt::format("state of key {} offset {} count {}", header.key, header.offset, header.count);
}

bool is_of_optimizer(const FrameHeader& header) {
  const auto kept = static_cast<StateScope>(header.content);
  if (kept == StateScope::kAll || kept == StateScope::kOptimizer) return kept == StateScope::kOptimizer;
  throw std::invalid_argument(fmt::format(
      "{}: content {} given, expected 0, all of it, or 1, the optimizer's", name_of(header), header.content));
}

}  // namespace

Frame StateTransfer::read(const FrameHeader& header) const {
  if (is_of_optimizer(header)) return read_optimizer(header);
  PartitionState state;  // what is not held yet has one, too
  if (const auto found = partitions_.find({header.key, header.offset}); found != partitions_.end()) {
    const Partition& partition = found->second;
    if (partition.count != header.count)
      throw std::invalid_argument(fmt::format("{}: {} elements are held", name_of(header), partition.count));
    if (!partition.rounds.empty()) {
      throw std::invalid_argument(fmt::format("{}: step {} is under way; end the rounds on all ranks before",
                                              name_of(header), partition.rounds.begin()->first));
    }
    state = {partition.next_step,       partition.value,           partition.residual,
             partition.optimizer_state, partition.held_by_workers, partition.first64};
  }
  return answer_to(header, Kind::kState, encode_state(state));
}

Frame StateTransfer::write(std::uint32_t worker, const Frame& frame) {
  const FrameHeader& header = frame.header;
  if (is_of_optimizer(header)) return write_optimizer(frame);
  if (header.count == 0) throw std::invalid_argument(fmt::format("{}: no element", name_of(header)));
  const Buffer& payload = frame.payload;
  PartitionState state = decode_partition_state(payload.bytes(), header.count);
  require_own_moments(state.optimizer, header);
  const auto known = partitions_.find({header.key, header.offset});
  if (known != partitions_.end()) {
    const Partition& partition = known->second;
    // Before the refusals below: rounds may have begun since the first copy was acknowledged.
    if (partition.came_before(worker, header.step)) return answer_to(header, Kind::kAck);
    // Where rounds were answered here, a state of another step would turn their count back, or make it jump.
    // At once it is the clocks that show whether a push was applied, because next_step may be a checkpoint's.
    const bool has_gone_on = (partition.answer && partition.next_step != state.next_step) ||
                             (partition.clocks && partition.clocks->has_begun());
    if (partition.count != header.count || !partition.rounds.empty() || has_gone_on) {
      throw std::invalid_argument(fmt::format(
          "{}: {} elements are held here, at step {}; load a checkpoint into a job that has not pushed "
          "yet, of the same keys",
          name_of(header), partition.count, partition.next_step));
    }
  }
  Partition& partition = partitions_[{header.key, header.offset}];
  partition.given[worker] = header.step;
  partition.count = header.count;
  partition.value = std::move(state.value);
  partition.first64 = std::move(state.first64);
  partition.residual = std::move(state.residual);
  // Where pushes are applied at once each worker gets deltas of its own, and first of all a whole weight.
  partition.held_by_workers =
      async_workers_.has_policy() ? std::vector<float>() : std::move(state.held_by_workers);
  partition.optimizer_state = std::move(state.optimizer);
  partition.next_step = state.next_step;
  partition.clocks.reset();  // all workers' go on from there
  return answer_to(header, Kind::kAck);
}

/// Whoever asks has not pushed the next round, so none of its keys' states changes meanwhile; other workers'
/// pushes may be here already, and wait. At once they change it, each by itself.
Frame StateTransfer::read_optimizer(const FrameHeader& header) const {
  OptimizerState state;  // what is not held yet has one, too
  if (const auto found = partitions_.find({header.key, header.offset}); found != partitions_.end()) {
    if (found->second.count != header.count) {
      throw std::invalid_argument(
          fmt::format("{}: {} elements are held", name_of(header), found->second.count));
    }
    state = found->second.optimizer_state;
  }
  return answer_to(header, Kind::kState, encode_state(state));
}

Frame StateTransfer::write_optimizer(const Frame& frame) {
  const FrameHeader& header = frame.header;
  OptimizerState state = decode_optimizer_state(frame.payload.bytes(), header.count);
  const auto found = partitions_.find({header.key, header.offset});
  if (found == partitions_.end() || found->second.count != header.count || found->second.value.empty()) {
    throw std::invalid_argument(
        fmt::format("{}: no weight of that size is held here; init the key first", name_of(header)));
  }
  Partition& partition = found->second;
  if (header.step > partition.optimizer_load) {  // else repeated: pushes may have changed it since
    if (!partition.rounds.empty()) {
      throw std::invalid_argument(fmt::format("{}: step {} is under way; load on all ranks between steps",
                                              name_of(header), partition.rounds.begin()->first));
    }
    require_own_moments(state, header);
    partition.optimizer_state = std::move(state);
    partition.optimizer_load = header.step;
  }
  return answer_to(header, Kind::kAck);
}

/// An optimizer that met another's moments would read what is not there.
void StateTransfer::require_own_moments(const OptimizerState& state, const FrameHeader& header) const {
  if (state.moments.empty()) return;
  const std::size_t kinds = updater_.is_set() ? updater_.updater->moment_kinds() : 0;
  if (state.moments.size() == kinds * header.count) return;
  throw std::invalid_argument(
      fmt::format("{}: {} moments an element given, but {}; set the optimizer that they are of first",
                  name_of(header), state.moments.size() / header.count,
                  updater_.is_set() ? fmt::format("{} keeps {}", updater_.name, kinds)
                                    : std::string("no optimizer is set")));
}

}  // namespace gradwire::kvstore
