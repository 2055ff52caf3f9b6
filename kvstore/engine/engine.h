// Engine is what a worker drives: it owns keys, residuals, agreed scales and the codec pool, and turns push,
// pull and push_pull into frames and tickets.
//
// Threading: every method may be called from any thread; collectives (declare, set_compression, ...) by one
// thread at a
//   time and in the same order on every worker. mark_ready() never blocks.
// Lifetime: spans given to push_pull and pull stay alive and untouched until the ticket is done, or, when it
// failed,
//   until close(). push() has taken its span when it returns.
// Failure: the first failure is final and is rethrown by every ticket and every later call.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "compress/codecs.h"
#include "compress/device/device.h"
#include "kvstore/options.h"
#include "kvstore/runtime/ticket.h"
#include "kvstore/server/server.h"
#include "kvstore/wire/compression.h"
#include "kvstore/wire/key.h"
#include "kvstore/wire/protocol.h"
#include "transport/collective.h"
#include "transport/decorators/host_link.h"
#include "transport/messenger.h"

namespace gradwire::kvstore {

/// Number of a set of slots, from 0.
using SlotSet = std::uint32_t;

/// What a step's slots wait for.
struct SlotSum {
  Ticket done;
  std::vector<std::uint32_t> slots;  ///< whose sums are there then: several where they travel as one
};

/// What load_checkpoint() leaves to whoever drives the Engine.
struct Restored {
  std::uint32_t workers = 0;  ///< that the checkpoint is of
  std::string optimizer;      ///< in force from now on, as in set_optimizer(); empty: none
};

/// A push that has begun.
struct BegunPush {
  Ticket taken;  ///< the gradient is no longer read
  Ticket done;   ///< its round is over
};

class CheckpointSource;
class CheckpointWriter;
class OptimizerFile;
enum class Dump : std::uint8_t;
class Collectives;
class RoundThread;
class SparseRows;
struct Rows;
class Standstill;
class WeightReplies;
struct DeviceOperation;
class Hierarchy;
struct FileSeal;
struct LayoutTensor;

/// Connects the workers of one host, once all ranks have agreed to sum there first (hierarchy.h). A
/// collective of job's workers.
using ConnectHost = std::function<transport::HostLink(transport::Messenger& job)>;

class Engine {
 public:
  /// Joins with the other workers: throws std::invalid_argument naming a setting that differs between ranks,
  /// or for at_once where a library or a host's workers sum.
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
  /// How often the job has met (transport/README.md, "Generations").
  std::uint32_t generation() const;
  /// Workers that wait to be taken in, as last heard.
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
  /// Waits until this worker's own rounds are over: not a collective, but others have to push. what: who
  /// waits, to people.
  void await_rounds(const char* what);
  /// Gives blob to all and returns every worker's in rank order.
  std::vector<std::string> all_gather(std::string_view name, std::string_view blob);
  /// Takes part in the exchange of that name, with which all begin the call that is wrong here: it throws
  /// std::invalid_argument with this text on all of them. A job that has changed its members goes on without
  /// this worker instead: no-op there.
  void refuse(std::string_view name, const std::string& text);
  /// Has all workers give the same text, of lines. Throws std::invalid_argument that names the first line in
  /// which one differs from worker 0, on all of them (agreement.h).
  void agree(const std::string& what, const std::string& text);
  /// Exact collectives on arrays of many types. Lives until close(); throws std::logic_error after it.
  Collectives& collectives();
  /// Who drives this Engine, and waits (callers.h). A wait with a timeout that is begun again until it ends
  /// is to be within an Endless of these.
  const std::shared_ptr<Callers>& callers() const { return callers_; }
  /// Whether there are tables of rows: wherever there are servers.
  bool has_sparse() const { return !in_order_; }
  /// Tables of rows. Lives until close(); throws std::logic_error after it, and std::invalid_argument where a
  /// library sums.
  SparseRows& sparse();
  /// Sets the codec and reply for all keys from the next push on, and how servers with an optimizer send
  /// weights back (weight_replies.h; tables of rows send them as float32). Waits first for this worker's own
  /// rounds. Scales that were agreed go on where it is the codec that agreed them, in the last round or in a
  /// checkpoint that was loaded. Throws std::invalid_argument (bad spec, ranks that differ, a codec that
  /// agrees scales where servers have an optimizer, or weights that no server sends since a library sums).
  void set_compression(const compress::CodecSpec& spec, const std::string& reply,
                       const std::string& weights = "fp32");
  /// Sets the codec and reply of some keys apart from what holds for all. Slots of other codecs do not share
  /// a bucket, so of keys that are bound already it takes all of a bucket or none. Throws as
  /// set_compression() does, and std::logic_error naming a key that was left out.
  void set_key_compression(std::span<const KeyId> keys, const compress::CodecSpec& spec,
                           const std::string& reply);
  /// Sets the codec and reply of some tables of rows apart from what holds for all. Throws as
  /// set_compression() does.
  void set_table_compression(std::span<const std::uint64_t> tables, const compress::CodecSpec& spec,
                             const std::string& reply);
  /// Agrees on new keys. Throws std::invalid_argument naming the first difference between ranks.
  std::vector<KeyId> declare(std::span<const KeySpec> keys);
  /// Stores root's values (others' are ignored) as the first values of keys; ranks then pull them. All ranks
  /// give the same keys in the same order. One exchange, and one wait for servers for every 4 MiB, however
  /// many keys there are (wire/PROTOCOL.md, "Keys"). Of a key of float64 all ranks may give float64, which is
  /// kept to the bit until a round, or an optimizer, takes its place.
  void init(std::span<const FirstValue> values, std::uint32_t root = 0);
  /// The same of one key.
  void init(KeyId key, std::span<const float> value, std::uint32_t root = 0);
  void init(KeyId key, std::span<const double> value, std::uint32_t root = 0);
  /// Sets the servers' optimizer ("sgd learning_rate=0.1"); replies are weights from then on, and slots that
  /// shared a bucket go alone. A key that was pushed before begins with the sum of its last round. Throws
  /// std::logic_error for the first one during a step, and std::invalid_argument for a bad one, in a job that
  /// goes on, with a codec that agrees scales, and where a key has no value, since a checkpoint of sums has
  /// none and it was not pushed since.
  void set_optimizer(const std::string& text);

  // One key. Spans hold exactly the key's elements, all of a call's at one place. Where pushes are applied at
  // once, the answer is the weight, a push without an optimizer throws std::invalid_argument, and pull()
  // brings the weight as it is then.
  // Spans of double are for keys that were declared as float64, and throw std::invalid_argument for others.
  // With codec none their sums are of float64, in rank order; other codecs, and servers that keep weights,
  // work in float32.

  /// Adds grad to this round's sum. Returns when grad has been taken: at once, or, where push_ahead_bytes are
  /// taken already, when the rounds of the key before it are over.
  Ticket push(KeyId key, std::span<const float> grad, std::int32_t priority, const OnDevice& place = {});
  Ticket push(KeyId key, std::span<const double> grad, std::int32_t priority);
  /// The same without the wait: grad stays alive and untouched until it is taken.
  BegunPush begin_push(KeyId key, std::span<const float> grad, std::int32_t priority,
                       const OnDevice& place = {});
  BegunPush begin_push(KeyId key, std::span<const double> grad, std::int32_t priority);
  /// Copies the answer to this worker's last push (or, before any, the stored value) to out.
  Ticket pull(KeyId key, std::span<float> out, std::int32_t priority, const OnDevice& place = {});
  Ticket pull(KeyId key, std::span<double> out, std::int32_t priority);
  /// Both in one; in and out may be the same memory. The answer is multiplied by scale. program_step: the
  /// step of the worker's program that this is of: where workers' differ, the job fails and says so; 0: not
  /// compared.
  Ticket push_pull(KeyId key, std::span<const float> in, std::span<float> out, std::int32_t priority,
                   float scale = 1, const OnDevice& place = {}, std::uint32_t program_step = 0);
  Ticket push_pull(KeyId key, std::span<const double> in, std::span<double> out, std::int32_t priority,
                   double scale = 1, std::uint32_t program_step = 0);

  // Slots: gradients that stay in place, exchanged every step as backward() produces them. Several sets of
  // them, each with steps of its own, are for several models or optimizers at one store; `set` is the set's
  // number.

  /// Binds slot i to keys[i] and values[i], front layers first, fuses neighbours into buckets. The memory
  /// stays alive until close(). Replaces an earlier binding of the set, in which no step may be in progress.
  /// A collective: small tensors of one bucket travel as one key that the ranks agree on here, and take their
  /// residuals along; where servers have an optimizer, each goes alone, since each is a weight.
  /// device: where all values lie; none: on the host. priorities: one for each slot, for where slots are some
  /// of the layers only; none: -i for slot i. A bucket has that of its most urgent slot. groups: one for each
  /// slot, for where codecs will change: slots of one group change together; none: all are of one.
  void bind_slots(std::span<const KeyId> keys, std::span<const std::span<float>> values,
                  std::shared_ptr<compress::Device> device = nullptr,
                  std::span<const std::int32_t> priorities = {}, SlotSet set = 0,
                  std::span<const std::uint32_t> groups = {});
  /// Says that slot's gradient is complete; on a device, once `stream` has done what it has been given so
  /// far. Throws std::logic_error when marked twice in a step.
  void mark_ready(std::uint32_t slot, void* stream = nullptr, SlotSet set = 0);
  /// Slots not yet marked in this step.
  std::vector<std::uint32_t> unmarked(SlotSet set = 0) const;
  /// Says what the step in progress waits for, so that each slot's sum can be used when it is there.
  /// Requires that every slot's mark_ready() has returned; drain_for() still ends the step.
  std::vector<SlotSum> slot_sums(SlotSet set = 0) const;
  /// Waits up to timeout for all slots' sums, then ends the step. Requires every slot marked. Returns false
  /// on timeout.
  bool drain_for(std::chrono::milliseconds timeout, SlotSet set = 0);
  /// Multiplies every slot's sum by scale from the next step on (1/num_workers for means).
  void set_slot_scale(float scale, SlotSet set = 0);
  /// Says which step of the worker's program the next step of the slots is of, as push_pull() has it.
  void set_program_step(std::uint32_t program_step, SlotSet set = 0);

  // Residuals: what a codec has not sent yet. They belong to keys, whatever bucket those travel in. No round
  // of the key may be in progress. Where a host's workers sum first, they are the leader's; others have none.

  /// Returns a key's residual; empty where there is none yet.
  std::vector<float> residual(KeyId key);
  /// The Euclidean norm of all of them together, and of those of rows, in one pass over their memory; nothing
  /// while a round is in progress, and after close().
  std::optional<double> residual_norm();
  /// How much of what codecs were given they have sent (share_sent.h), over all keys that are
  /// compressed now, with a residual on the host, and tables, each in the last of its rounds that was
  /// measured. Nothing where there is none, while a round is in progress, and after close().
  std::optional<double> share_sent();
  /// Replaces it. Throws std::invalid_argument naming the first value that is not finite, unless the key's
  /// codec keeps such values (nonfinite=mxnet); nothing has changed then.
  void set_residual(KeyId key, std::span<const float> values);
  /// Returns what servers have not sent yet of a key's replies in its codec's own name; empty where that is
  /// nothing. Throws std::invalid_argument while a round of the key is under way.
  std::vector<float> server_residual(KeyId key);
  /// Likewise of a table's rows.
  Rows server_residual_of_rows(std::uint64_t table);
  /// Takes what servers have not sent yet of replies in a codec's own name into the workers' residuals, so
  /// that nothing is lost with servers that end. A collective between steps, behind which nothing is pushed
  /// to them.
  void draw_residuals();
  /// Adds to it what a round brought and nobody used on any rank: all ranks call it with the same values,
  /// and each adds its part of their sum; where a host's workers sum first, the leader adds those of all.
  void add_to_residual(KeyId key, std::span<const float> values);
  /// Keeps, from the next round on, what roll_back() needs: a second copy of every residual.
  void keep_rollback(bool keep);
  /// Puts the residuals and agreed scales of keys back to what they were before their last round, whose
  /// result nobody uses on any rank; all ranks call it. A server's residual (reply of the codec) stays. No-op
  /// for keys that have not had a round since the last time, or since keep_rollback(true).
  void roll_back(std::span<const KeyId> keys);

  // Checkpoints. Collectives, on all ranks between the same steps. The folder is one that all ranks see.

  /// Writes what workers and servers keep from round to round: values, optimizer's states, residuals, agreed
  /// scales, numbers of rounds; and `front_end`, this worker's own, for read_front_end()
  /// (checkpoint_source.h). What was in the folder stays valid until all of it is on the disk. Throws
  /// std::runtime_error, the same on all ranks, where a file cannot be written, and std::logic_error during a
  /// step.
  void save_checkpoint(const std::string& folder, std::string_view front_end = {});
  /// Goes on from one, in a job that has declared the same keys, bound its slots and pushed nothing yet. It
  /// may have other numbers of workers and servers (checkpoint/FORMAT.md). Throws compress::DecodeError
  /// for what is damaged or no checkpoint, std::invalid_argument for one of other keys or another optimizer,
  /// or of one that set_optimizer() would not take, all before anything has changed, and std::runtime_error
  /// where a file cannot be read; the same on all ranks.
  Restored load_checkpoint(const std::string& folder);

  // The optimizer's states: what servers remember of each weight beside it (momentum, moments, steps), in one
  // file. Throw std::logic_error where no optimizer is set, and during a step; std::invalid_argument where
  // there are tables of rows.

  /// Writes them; with kStatesAndParameters the optimizer's parameters too. On any one rank, between its own
  /// steps (not a collective), or on several: each writes the file, whole or not at all. Where pushes are
  /// applied at once, each part's are as they are then. Throws std::runtime_error where it cannot be written.
  void save_optimizer_states(const std::string& path, Dump dump);
  /// Puts them back, and with them the parameters if the file has some, in a job of the same keys, whatever
  /// its workers and servers; weights stay as they are. A collective between steps; rank 0 reads the file
  /// (all ranks, where a library sums). Returns the optimizer that is set now, as in set_optimizer(), or
  /// nothing where it is the one before. Throws compress::DecodeError for what is damaged or another file,
  /// std::invalid_argument for other keys, another optimizer or ranks that read different files, all before
  /// anything has changed, and std::runtime_error where the file cannot be read; the same on all ranks.
  std::string load_optimizer_states(const std::string& path);

  // Numbers.

  /// Of the job's own sockets; what the workers of one host say to each other is not in them.
  std::vector<transport::PeerCounters> counters() const;
  DeviceTraffic device_traffic() const;
  PushedBytes pushed() const;
  /// What push() has taken ahead of rounds, of keys and of tables: see push_ahead_bytes.
  std::uint64_t ahead_bytes() const;
  /// Where pushes are applied at once: by staleness (PushClocks::staleness_of), how many parts this worker
  /// has pushed; of a table of rows, a part is what of it lies at one server.
  std::map<std::uint64_t, std::uint64_t> staleness() const;
  /// How often each worker's push was the last that a round of a partition needed; 0 where a library sums.
  /// Asks the servers that are still here, and waits for them at most slow_abort. Where workers host them
  /// that of a worker that an error has ended is gone, and its count with it.
  std::vector<std::uint64_t> waited_for();
  /// Payload bytes that servers have passed on to their mirrors; 0 without replicas. Asks the servers, as
  /// waited_for() does; what dead ones had passed on is not counted.
  std::uint64_t mirrored_bytes();
  /// Servers that have died, and who serves in their place.
  std::map<std::uint32_t, std::uint32_t> replaced_servers() const;
  /// Of the host's threads; of rows also those that call.
  double codec_seconds() const;
  /// Warnings for people since the last call ("waiting 60 s for worker 2 ...").
  std::vector<std::string> take_notices();
  /// The trace that it was opened with. Throws std::logic_error where there is none.
  Trace& trace() const;
  /// Adds to the trace how far the servers' clocks are from this one's: at its beginning, and at its end,
  /// since they drift. Blocks, at most timeout. No-op without a trace, after close(), and where a library
  /// sums, which has no clock.
  void read_clocks(std::chrono::milliseconds timeout);
  /// Writes what has been traced so far, by the server that lives here too, to folder; `store` names the
  /// store to people. Returns the file's path. Also after close(). Throws std::logic_error without a trace,
  /// else as write_trace().
  std::string write_trace(const std::string& folder, const std::string& store);

  /// Waits for pushes still out, says goodbye, ends the threads. Idempotent; the destructor calls it. A
  /// Server that lives here serves the other workers until they have left, too, or until retire(). error:
  /// what ends this worker, for them; empty: it has come to its end.
  void close(const std::string& error = {});
  /// After close(): waits until the process may end without harm to other ranks, for at most timeout; returns
  /// false when that passed first. Where a Server lives here, that is when all workers have left.
  bool outlast_for(std::chrono::milliseconds timeout);
  /// After close(): ends what is served here for the other workers, for a process that ends by an error. What
  /// they need of it then fails and names this worker. Idempotent; the destructor calls it.
  void retire();

 private:
  struct Slots;
  /// Keys that travel as one: the key that they have then, and their values, one behind the other.
  struct Together {
    KeyId key = 0;
    std::vector<float> values;  ///< on the host; what failed in them may be read until close()
  };
  /// Where a key's values travel when it is a slot.
  struct Home {
    KeyId key = 0;             ///< its own, or that of its bucket
    std::uint64_t offset = 0;  ///< there, in elements
    bool operator==(const Home&) const = default;
  };
  /// A run of a key's elements as the thread knows it that encodes them.
  struct Stretch {
    KeyId tensor = 0;
    std::uint64_t tensor_offset = 0;  ///< elements
    std::uint64_t key_offset = 0;     ///< elements
    std::uint64_t count = 0;          ///< elements
  };
  Engine(std::unique_ptr<transport::Messenger> messenger, const EngineOptions& options,
         std::unique_ptr<Server> hosted, const ConnectHost& connect_host, bool in_order);
  std::vector<Stretch> stretches(Home home, std::uint64_t elements) const;
  Home home_of(KeyId key) const;
  void begin_rounds();
  RoundThread& rounds() const;
  void hand_over();
  void come_back();
  void require_optional_workers() const;
  std::vector<std::string> meet(std::string_view name, std::string_view blob);
  void check_for_all(std::string_view name, const std::function<void()>& check);
  std::uint64_t elements_of(KeyId key) const;
  void agree_on_at_once();
  void require_open(const char* verb) const;
  void require_optimizer(const char* verb) const;
  void require_own_scale(const char* verb, const Compression& compression) const;
  void require_weights(const char* verb) const;
  void require_size(const char* verb, KeyId key, std::size_t given) const;
  /// What root gives as own; for those who answer themselves.
  void require_float64(const char* verb, KeyId key, std::size_t given) const;
  std::vector<std::byte> value_of(std::uint32_t root, std::span<const std::byte> own);
  void store(std::span<const FirstValue> values);
  void store_roots(std::span<const FirstValue> values, std::uint32_t root);
  Slots* slots_of(SlotSet set) const;
  std::string describe_buckets(const Slots& slots) const;
  void require_no_step(const char* verb) const;
  void fuse(Slots& slots, std::size_t bucket);
  void leave_buckets();
  Together& together(const std::vector<KeyId>& members);
  std::vector<std::uint32_t> bucket_groups(std::span<const KeyId> keys,
                                           std::span<const std::uint32_t> groups) const;
  void inherit_compression(KeyId bucket, KeyId member);
  std::vector<KeyId> whole_buckets_of(std::span<const KeyId> keys) const;
  void tell_weight_replies(const std::shared_ptr<const WeightReplies>& replies);
  void tell_compression(KeyId key, const std::shared_ptr<const Compression>& compression);
  bool keeps_nonfinite(KeyId key) const;
  void write_residual(KeyId key, std::span<const float> values);
  void take_residuals_along(const Slots& slots);
  // engine_checkpoint.cpp
  /// A partition of the job's servers, and the elements of which key it is.
  struct HeldPart {
    KeyId tensor = 0;  ///< as the thread knows it
    std::size_t part = 0;
    KeyId key = 0;
    std::uint64_t offset = 0, count = 0;  ///< elements of the key
    std::uint64_t tensor_offset = 0;      ///< elements of the tensor
  };
  std::vector<std::string> attempt(const char* what, const std::function<std::string()>& work);
  void require_between_steps(const char* verb);
  std::vector<LayoutTensor> layout() const;
  std::vector<std::uint32_t> contributors() const;
  std::vector<HeldPart> held_parts();
  void read_state(const HeldPart& part, Kept kept, transport::Buffer& state);
  void write_state(const HeldPart& part, Kept kept, transport::Buffer& state, std::uint64_t number = kNoStep);
  std::vector<std::uint64_t> steps_begun() const;
  std::vector<float> residual_of(const HeldPart& part);
  FileSeal write_states(const std::string& path, std::string_view front_end);
  using Writes = std::vector<std::function<void()>>;  ///< to this worker's residuals
  void draw_residual(const HeldPart& part, Writes& writes);
  void draw_residual_of_rows(std::uint64_t table, std::span<const std::size_t> owners, Writes& writes);
  void append_residual_of_rows(std::uint64_t table, std::size_t owner, Rows& rows);
  void write_manifest_of(const std::string& folder, std::uint64_t generation,
                         std::span<const std::string> seals);
  void require_loadable(const CheckpointSource& source) const;
  void restore(CheckpointSource& source);
  void note_without_value(const CheckpointSource& source);
  void require_values();
  // engine_optimizer_states.cpp
  void require_still(const char* verb);
  void require_states(const char* verb);
  void require_own(const OptimizerFile& file, const std::string& path) const;
  void restore(const OptimizerFile& file);
  std::vector<KeySpec> tables() const;
  void write_rows(CheckpointWriter& file);
  void restore_rows(const CheckpointSource& source);
  void submit_sealed(Slots& slots, std::uint32_t bucket);
  void submit_bucket(Slots& slots, std::uint32_t bucket);
  std::optional<DeviceOperation> device_operation(const OnDevice& place) const;
  std::optional<DeviceOperation> slots_on_device(const Slots& slots,
                                                 std::span<const std::uint32_t> members) const;
  bool takes_servers_own(KeyId key);
  void note_round(KeyId key, bool is_shown);
  template <typename Element>
  Ticket submit_push_pull(KeyId key, std::span<const Element> in, std::span<Element> out,
                          std::int32_t priority, double scale, std::optional<DeviceOperation> device,
                          std::uint32_t program_step);

  std::map<std::vector<KeyId>, Together> together_;  // outlives what is sent from it
  std::unique_ptr<transport::Messenger> messenger_;
  const std::shared_ptr<Callers> callers_ = std::make_shared<Callers>();  // owners: this, rows and tickets
  std::unique_ptr<Standstill> standstill_;  ///< outlives the threads that call it
  std::unique_ptr<Server> hosted_;
  EngineOptions options_;
  const bool in_order_;   ///< placement native
  fusion::OwnedCut cut_;  ///< of keys that are declared next: it goes by the codec of all keys
  mutable std::shared_mutex keys_mutex_;
  std::vector<KeySpec> keys_;
  std::unordered_map<std::string, KeyId> declared_;  ///< by name; buckets are not among them
  std::shared_ptr<const Compression> compression_;   ///< of all others, once set; owners: this and the thread
  std::map<KeyId, std::shared_ptr<const Compression>>
      own_compression_;          ///< of keys that have one; owners: likewise
  std::map<KeyId, Home> homes_;  ///< of keys in buckets
  std::vector<std::uint64_t> server_load_;
  std::atomic<bool> has_optimizer_{false};  ///< pushes may come from other threads than set_optimizer()
  std::string optimizer_;                   ///< the servers', as in set_optimizer(); empty: none
  std::uint64_t optimizer_loads_ = 0;       ///< how often states were loaded
  std::string weight_replies_ = "fp32";     ///< likewise, how they send weights (weight_replies.h)
  std::unique_ptr<Hierarchy> hierarchy_;    ///< where a host's workers sum first
  std::mutex shown_mutex_;                  ///< guards weight_replies_ and what follows
  std::set<KeyId> shown_;  ///< there: keys of which the host has no other weight to show than it has shown
  std::unique_ptr<RoundThread> thread_;
  std::unique_ptr<Collectives> collectives_;
  std::unique_ptr<SparseRows> sparse_;  ///< none where a library sums
  std::uint64_t loads_ = 0;             ///< checkpoints that were loaded
  /// Keys and tables of which a checkpoint has brought no value: the rounds that this worker had begun then.
  std::map<std::uint64_t, std::uint64_t> keys_without_value_, tables_without_value_;
  mutable std::shared_mutex slot_sets_mutex_;
  std::map<SlotSet, std::unique_ptr<Slots>> slot_sets_;
};

}  // namespace gradwire::kvstore
