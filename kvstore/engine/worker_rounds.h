// WorkerRounds runs a worker's rounds: on the thread of the job, or, where a host's workers sum first, on
// that of the host, whose sums the leader's thread of the job then pushes.
//
// Threading: begin(), hand_over() and stop() by the Engine, once each; the rest from any thread.
// Failure: std::logic_error once it is stopped.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kvstore/client/operation.h"
#include "kvstore/client/round_thread.h"
#include "kvstore/options.h"
#include "kvstore/placement/hierarchy.h"
#include "kvstore/runtime/callers.h"
#include "kvstore/runtime/ticket.h"
#include "kvstore/wire/key.h"

namespace gradwire::kvstore {

/// Where a key's values travel when it is a slot.
struct Home {
  KeyId key = 0;             ///< its own, or that of its bucket
  std::uint64_t offset = 0;  ///< there, in elements
  bool operator==(const Home&) const = default;
};

/// A run of a key's elements as the thread of the job knows it, which encodes them.
struct KeyRange {
  KeyId tensor = 0;
  std::uint64_t tensor_offset = 0;  ///< elements
  std::uint64_t key_offset = 0;     ///< elements
  std::uint64_t count = 0;          ///< elements
};

class WorkerRounds {
 public:
  /// in_order: a library sums. All that is given by reference outlives this.
  WorkerRounds(transport::Messenger& messenger, const EngineOptions& options, bool in_order,
               std::shared_ptr<Callers> callers)
      : messenger_(messenger), options_(options), in_order_(in_order), callers_(std::move(callers)) {}

  /// Starts the threads, and has the servers know how this job pushes. hierarchy: null unless the workers of
  /// this host sum first. A collective.
  void begin(std::unique_ptr<Hierarchy> hierarchy, Standstill& standstill);
  bool is_open() const { return job_ != nullptr; }
  void require_open(const char* verb) const;
  /// The thread of the job, whose codecs and residuals are the ones that count.
  RoundThread& job() const;
  /// The thread to which this worker's own operations go.
  RoundThread& own() const;
  /// Null where each worker pushes to the job's servers itself.
  Hierarchy* hierarchy() const { return hierarchy_.get(); }

  /// Sends text to every server, and waits until all have carried it out; what they said, by rank.
  std::vector<Acknowledgement> command(std::string text) const;
  /// Waits until this worker's own rounds are over. what: the waiting caller, for people.
  void await(const char* what) const;
  /// Adds keys and places them on the servers, whose load this adds to.
  void add_keys(const std::vector<KeySpec>& keys, const fusion::OwnedCut& cut,
                std::vector<std::uint64_t>& load) const;
  void add_bucket(const KeySpec& spec, const Part& home, std::vector<std::uint32_t> segments) const;
  /// Where elements lie that travel at home. None on a worker that does not lead its host.
  std::vector<KeyRange> ranges(Home home, std::uint64_t elements) const;
  /// The ranks that push to the job's servers, ascending.
  std::vector<std::uint32_t> contributors() const;

  /// Of spans on a device; none: of the host's.
  std::optional<DeviceOperation> device_operation(const OnDevice& place) const;
  Ticket submit(const char* verb, KeyId key, Operation operation) const;
  /// Of a push that has what it sends.
  BegunPush push(KeyId key, Operation operation, std::int32_t priority);
  /// device: whose memory it is to bring the value to; null: the host's.
  Ticket pull(KeyId key, Operation operation, const std::shared_ptr<compress::Device>& device,
              bool has_optimizer);
  Ticket push_pull(KeyId key, Operation operation);
  /// Has servers send weights so, to operations that begin from now on. keys: that there are.
  void set_weight_replies(const std::shared_ptr<const WeightReplies>& replies, std::uint64_t keys);

  /// Waits until what was pushed needs this worker no more, and fails the job where that takes too long.
  /// is_well: no error ends the worker.
  void hand_over(bool is_well) const;
  /// Ends the threads. What is served for the host's other workers goes on, until Hierarchy::retire().
  void stop();

 private:
  void agree_on_async() const;
  void finish_own() const;
  void fail_late(const char* what) const;
  void fail(const std::string& why) const;
  bool takes_servers_own(KeyId key, bool has_optimizer);
  void note_round(KeyId key, bool is_shown);

  transport::Messenger& messenger_;
  const EngineOptions& options_;
  const bool in_order_;
  const std::shared_ptr<Callers> callers_;  // owners: Engine, this, rows and tickets
  std::atomic<bool> has_lost_worker_{false};
  std::unique_ptr<Hierarchy> hierarchy_;  // before job_: outlives it
  std::mutex shown_mutex_;                ///< guards what follows
  bool sends_deltas_ = false;             ///< servers, of weights
  std::set<KeyId> shown_;  ///< where a host sums: keys of which it has no other weight than it has shown
  std::unique_ptr<RoundThread> job_;
};

}  // namespace gradwire::kvstore
