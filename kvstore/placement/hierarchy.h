// Hierarchy lets the workers of one host sum first, uncompressed, so that one compressed flow leaves each
// host.
//
// A worker's rounds then run on two RoundThreads. The host's sends them over the host's link to a Server in
// the process of the host's leader, its lowest rank. When a round is complete there, the leader's uplink,
// the RoundThread of the main job, pushes the sum, with the codec and its residual. The answer becomes the
// Server's. Each partition of the host's Server is a tensor of its own to the uplink, so that summing,
// encoding and sending overlap. The main job's servers wait for the leaders alone.
//
// Threading: as Engine.
// Lifetime: between the main job's Messenger, which outlives it, and the uplink, which is destroyed after
// stop() and before this.
// Failure: a failure of the main job fails the host's rounds, and vice versa. If an uplink fails, its
// leader's Server reports that to the workers of its host.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "kvstore/client/round_thread.h"
#include "kvstore/server/server.h"
#include "kvstore/wire/key.h"
#include "transport/decorators/host_link.h"

namespace gradwire::kvstore {

class HostRelay;

class Hierarchy {
 public:
  /// Requires link.worker.
  Hierarchy(transport::HostLink link, const EngineOptions& options);
  ~Hierarchy();

  /// How the uplink runs its rounds.
  RoundThread::Rounds uplink_rounds(bool servers_in_workers);
  /// Its options: it waits longer than the host's rounds, so that a rank that is missing on a host is named
  /// there.
  static EngineOptions uplink_options(EngineOptions options);
  /// The ranks that push to the main job's servers, ascending.
  std::vector<std::uint32_t> leaders() const { return transport::leaders_of(link_.hosts); }
  /// The command that names to the main job's servers the ranks to wait for.
  std::string command() const;
  /// Begins to take rounds, once the servers know.
  void start(RoundThread& uplink);

  bool leads() const { return leads_; }
  /// Workers of this host.
  std::size_t workers_here() const { return transport::host_of(link_.hosts, leader_).size(); }
  /// Where this worker's rounds run.
  RoundThread& rounds() { return *rounds_; }

  /// Places the keys on the host's Server and that one's partitions on the main job's `load.size()` servers.
  void add_keys(const std::vector<KeySpec>& keys, const fusion::OwnedCut& cut,
                std::vector<std::uint64_t>& load);
  /// Adds a key for several tensors that travel as one; home is theirs at the main job's servers.
  void add_bucket(const KeySpec& spec, const Part& home, const std::vector<std::uint32_t>& segment_elements);
  /// Stores keys' first values at the main job's servers. Blocks.
  void store_upstream(std::span<const FirstValue> values);
  /// Brings first values to the host's Server. Blocks; leaders only.
  void fetch_first_values(std::span<const KeyId> keys);

  /// Brings a weight as the main job's servers have it to a pull's memory, whichever the host has; behind all
  /// that this worker has submitted of the key. device: whose memory that is; null: the host's.
  Ticket pull_upstream(KeyId key, Operation pull, std::shared_ptr<compress::Device> device);

  /// Where the uplink has a key.
  struct Run {
    Part part;           ///< of the key, on the host's Server
    KeyId upstream = 0;  ///< what the uplink calls it
  };
  std::span<const Run> runs_of(KeyId key) const { return runs_[key]; }

  void note_error(const std::string& error) { link_.worker->note_error(error); }
  /// Leaves the host's job, for at most timeout. The leader's Server serves the others until they have left,
  /// too, or until retire().
  void leave(std::chrono::milliseconds timeout);
  /// Ends that Server, after Server::retire(). Requires stop().
  void retire(std::chrono::milliseconds timeout);
  /// Ends all use of the uplink.
  void stop();
  /// After leave(): waits until no worker of the host needs this process, for at most timeout; returns false
  /// when that passed first.
  bool outlast(std::chrono::milliseconds timeout);

 private:
  /// Where a weight is wanted.
  struct Upstream {
    ArrayView out;
    std::int32_t priority = 0;
    std::shared_ptr<compress::Device> device;
    Ticket done;
  };
  void fetch_upstream(KeyId key, const Upstream& wanted);
  struct Fetched;
  void fetch_together(std::span<const KeyId> keys);
  std::uint64_t elements_of(KeyId key) const;
  ElementType type_of(KeyId key) const;
  Submission on_run(const Run& run, Operation::Verb verb) const;
  void fail_job(const std::exception_ptr& error);
  void fail_rounds(const std::exception_ptr& error);

  transport::HostLink link_;
  const EngineOptions options_;
  const std::uint32_t leader_;
  const bool leads_;
  std::vector<std::uint64_t> host_load_{0};
  std::vector<std::vector<Run>> runs_;  ///< by key
  std::vector<bool> is_float64_;        ///< by key
  KeyId upstream_keys_ = 0;
  /// Of pulls that failed: jobs of the uplink may still write there.
  std::vector<std::unique_ptr<Fetched>> abandoned_;
  std::mutex mutex_;                  ///< guards uplink_, early_failure_ and the pointer rounds_
  RoundThread* uplink_ = nullptr;     ///< from start() to stop()
  std::exception_ptr early_failure_;  ///< of the uplink, before start()
  std::unique_ptr<HostRelay> relay_;  ///< the leader's; before server_, which calls it
  std::unique_ptr<Server> server_;    ///< the leader's
  std::unique_ptr<RoundThread> rounds_;
};

}  // namespace gradwire::kvstore
