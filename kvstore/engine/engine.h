// Engine is the worker's interface: it declares keys, and turns push, pull and push_pull into tickets. Its
// parts do the rest: slots, codecs, residuals, checkpoints, numbers.
//
// Threading: any thread may call every method; collectives (declare, set_compression, ...) by one thread at
// a time and in the same order on every worker. mark_ready() never blocks.
// Lifetime: spans given to push_pull and pull stay alive and untouched until the ticket is done, or, when it
// failed, until close(). push() has taken its span when it returns.
// Failure: the first failure is final. Every ticket and every later call rethrows it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvstore/array_view.h"
#include "kvstore/client/operation.h"
#include "kvstore/engine/checkpointing.h"
#include "kvstore/engine/compression_settings.h"
#include "kvstore/engine/engine_metrics.h"
#include "kvstore/engine/meeting.h"
#include "kvstore/engine/optimizer_states.h"
#include "kvstore/engine/residual_access.h"
#include "kvstore/engine/server_states.h"
#include "kvstore/engine/slot_buckets.h"
#include "kvstore/options.h"
#include "kvstore/runtime/callers.h"
#include "kvstore/runtime/ticket.h"
#include "kvstore/server/server.h"
#include "kvstore/wire/key.h"
#include "transport/collective.h"
#include "transport/decorators/host_link.h"
#include "transport/messenger.h"

namespace gradwire::kvstore {

class Collectives;
class SparseRows;
struct EngineContext;

/// Connects the workers of one host, once all ranks have agreed to sum there first (hierarchy.h). A
/// collective of job's workers.
using ConnectHost = std::function<transport::HostLink(transport::Messenger& job)>;

class Engine {
 public:
  /// Joins with the other workers: throws std::invalid_argument naming a setting that differs between ranks,
  /// or for pushes applied at once where a library or a host's workers sum.
  /// `hosted` is the Server that lives in this process (placements local and peers), the other node of the
  /// Messenger's pair; with dedicated servers it is empty. `connect_host`: workers of one host sum first.
  Engine(std::unique_ptr<transport::Messenger> messenger, const EngineOptions& options,
         std::unique_ptr<Server> hosted = nullptr, const ConnectHost& connect_host = {});
  /// Placement native: collective sums, control carries the rest. Every rank must push the same keys in the
  /// same order.
  Engine(std::unique_ptr<transport::Messenger> control, std::unique_ptr<transport::Collective> collective,
         const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  std::uint32_t rank() const;
  std::uint32_t num_workers() const;
  std::uint32_t num_servers() const;
  /// The job's generation, from 1 (transport/PROTOCOL.md, "Generations").
  std::uint32_t generation() const;
  /// How many workers wait to be admitted, by the last heartbeat.
  std::uint32_t newcomers() const;
  /// As Messenger::regroup().
  void regroup(const std::string& why, transport::Parting parting);

  // Collectives of the workers. They block, at most slow_abort.

  /// Where pushes are applied at once, what all workers pushed before it is in the weights behind it.
  void barrier();
  /// Says that this worker has run out of data: the others' rounds go on without it, as sums of what they
  /// push. Returns when all have joined, with the rank that joined last; then all push again, from the same
  /// round on. Waits first for this worker's own rounds. What a codec has not sent yet stays, for the next
  /// push. Meanwhile no other collective may be called. Throws std::invalid_argument where a library or a
  /// host's workers sum, TimeoutError naming the ranks that did not join within slow_abort.
  std::uint32_t join();
  /// Waits until this worker's own rounds are over. It is no collective, but others have to push. what: the
  /// waiting caller, for people.
  void await_rounds(const char* what);
  /// Exchanges of the workers.
  Meeting& meeting();
  /// Exact collectives on arrays of many types. Lives until close(); throws std::logic_error after it.
  Collectives& collectives();
  /// The threads that drive this Engine and wait (callers.h). A wait with a timeout that is repeated until
  /// it ends must be within an Endless of these.
  const std::shared_ptr<Callers>& callers() const;
  /// Whether there are tables of rows: wherever there are servers.
  bool has_sparse() const;
  /// Tables of rows. Lives until close(); throws std::logic_error after it, and std::invalid_argument where a
  /// library sums.
  SparseRows& sparse();
  /// Agrees on new keys. Throws std::invalid_argument naming the first difference between ranks.
  std::vector<KeyId> declare(std::span<const KeySpec> keys);
  /// Stores root's values (others' are ignored) as the first values of keys; ranks then pull them. All ranks
  /// give the same keys in the same order. One exchange, and one wait for servers for every 4 MiB, however
  /// many keys there are (wire/PROTOCOL.md, "Keys"). Of a key of float64 all ranks may give float64, which is
  /// kept to the bit until a round, or an optimizer, takes its place.
  void init(std::span<const FirstValue> values, std::uint32_t root = 0);
  /// The same of one key.
  void init(KeyId key, ConstArrayView value, std::uint32_t root = 0);
  /// Sets the servers' optimizer ("sgd learning_rate=0.1"); replies are weights from then on, and slots that
  /// shared a bucket go alone. A key that was pushed before begins with the sum of its last round. Throws
  /// std::logic_error for the first one during a step, and std::invalid_argument for a bad one, in a job that
  /// goes on, with a codec that agrees scales, and where a key has no value, since a checkpoint of sums has
  /// none and it was not pushed since.
  void set_optimizer(const std::string& text);

  // One key. Arrays hold exactly the key's elements, all of a call's at one place. Where pushes are applied
  // at once, the answer is the weight, a push without an optimizer throws std::invalid_argument, and pull()
  // brings the weight as it is then.
  // Arrays of float64 are for keys that were declared as float64, and throw std::invalid_argument for others.
  // With codec none their sums are of float64, in rank order; other codecs, and servers that keep weights,
  // work in float32. Arrays of float16 and bfloat16 are widened part by part as they are encoded, and rounded
  // as answers are decoded, on a device, too: no copy of the whole array in float32 is made. Arrays on a
  // device are not of float64.

  /// Adds grad to this round's sum. Returns when grad has been taken: at once, or, where push_ahead_bytes are
  /// taken already, when the rounds of the key before it are over.
  Ticket push(KeyId key, ConstArrayView grad, std::int32_t priority, const OnDevice& place = {});
  /// The same without the wait: grad stays alive and untouched until it is taken.
  BegunPush begin_push(KeyId key, ConstArrayView grad, std::int32_t priority, const OnDevice& place = {});
  /// Copies the answer to this worker's last push (or, before any, the stored value) to out.
  Ticket pull(KeyId key, ArrayView out, std::int32_t priority, const OnDevice& place = {});
  /// Both in one; in and out may be the same memory, of one type then. The answer is multiplied by scale,
  /// which is rounded to float32 unless out is of float64. program_step: the step of the worker's program
  /// that this is of: where workers' differ, the job fails and says so; 0: not compared.
  Ticket push_pull(KeyId key, ConstArrayView in, ArrayView out, std::int32_t priority, double scale = 1,
                   const OnDevice& place = {}, std::uint32_t program_step = 0);

  // Its parts, of keys that were declared. They live as it does.

  SlotBuckets& slots() { return slots_; }
  CompressionSettings& compression() { return compression_; }
  ResidualAccess& residuals() { return residuals_; }
  Checkpointing& checkpoints() { return checkpoints_; }
  OptimizerStates& optimizer_states() { return optimizer_states_; }
  const EngineMetrics& metrics() const { return metrics_; }

  /// Waits for pushes still out, says goodbye, ends the threads. Idempotent; the destructor calls it. A
  /// Server that lives here serves the other workers until they have left, too, or until retire(); in a job
  /// that has failed it ends here. error: what ends this worker, for them; empty: it has come to its end.
  void close(const std::string& error = {});
  /// After close(): waits until the process may end without harm to other ranks, for at most timeout; returns
  /// false when that passed first. Where a Server lives here, that is when all workers have left.
  bool outlast_for(std::chrono::milliseconds timeout);
  /// After close(): ends what is served here for the other workers, for a process that ends by an error. What
  /// they need of it then fails and names this worker. Idempotent; the destructor calls it.
  void retire();

 private:
  Engine(std::unique_ptr<transport::Messenger> messenger, const EngineOptions& options,
         std::unique_ptr<Server> hosted, const ConnectHost& connect_host, bool in_order);
  void require_optional_workers() const;
  Operation operation_on(const char* verb, KeyId key, const OnDevice& place,
                         std::initializer_list<ConstArrayView> arrays) const;

  const std::unique_ptr<EngineContext> context_;
  CompressionSettings compression_;
  ServerStates servers_;
  ResidualAccess residuals_;
  SlotBuckets slots_;
  Checkpointing checkpoints_;
  OptimizerStates optimizer_states_;
  EngineMetrics metrics_;
};

}  // namespace gradwire::kvstore
