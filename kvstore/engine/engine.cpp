#include "kvstore/engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <stdexcept>

#include "kvstore/aggregate/updater.h"
#include "kvstore/client/round_thread.h"
#include "kvstore/client/standstill.h"
#include "kvstore/collectives/collectives.h"
#include "kvstore/engine/engine_slots.h"
#include "kvstore/placement/hierarchy.h"
#include "kvstore/placement/native.h"
#include "kvstore/rows/sparse_rows.h"
#include "kvstore/runtime/pieces.h"
#include "kvstore/trace/trace_file.h"
#include "kvstore/wire/agreement.h"

namespace gradwire::kvstore {
namespace {

using Verb = Operation::Verb;

EngineOptions checked(EngineOptions options) {
  if (options.codec_threads == 0) throw std::invalid_argument("Engine: codec_threads=0, expected at least 1");
  if (options.credit_bytes == 0) throw std::invalid_argument("Engine: credit_bytes=0, expected at least 1");
  options.partition_elements =
      std::max<std::uint64_t>(options.partition_elements / compress::kUnitElements * compress::kUnitElements,
                              compress::kUnitElements);
  return options;
}

/// What must be equal on all ranks for their frames to meet.
std::string agreed_settings(const EngineOptions& options, bool in_order, bool sums_on_hosts) {
  std::string text = fmt::format("partition_elements={}\nshard_bound_elements={}\n",
                                 options.partition_elements, options.shard_bound_elements);
  if (in_order) text += fmt::format("code_sums={}\n", to_string(options.code_sums));
  if (sums_on_hosts) text += "hierarchy=host\n";
  if (options.replicas != 0) text += fmt::format("replicas={}\n", options.replicas);
  if (options.at_once) text += fmt::format("rounds={}\n", to_string(*options.at_once));
  return text;
}

void require_replicas(const EngineOptions& options, const transport::Messenger& messenger, bool in_order) {
  if (options.replicas != 0 && (in_order || messenger.local_peer())) {
    throw std::invalid_argument(
        fmt::format("Engine: replicas={} mirrors servers that are processes of their own, and this store has "
                    "none; use one "
                    "such as 'dist_sync' with at least 2 servers (-s 2), or leave replicas out",
                    options.replicas));
  }
  if (const auto given = messenger.world().replicas; options.replicas != given) {
    throw std::invalid_argument(fmt::format(
        "Engine: replicas={} given, and the job was started with replicas={}; give all processes the "
        "same (gradwire run --replicas {})",
        options.replicas, given, options.replicas));
  }
}

using SharedCallers = std::shared_ptr<Callers>;  // owners: as Engine's

Ticket submit(RoundThread& rounds, const SharedCallers& callers, const char* verb, KeyId key,
              Operation operation) {
  const Ticket done = operation.done;
  done.concern(callers, {Callers::Wait::For::kKey, verb, key});
  rounds.submit(key, std::move(operation));
  return done;
}

/// Of a push that has what it sends.
BegunPush submit_push(RoundThread& rounds, const SharedCallers& callers, KeyId key, Operation operation,
                      std::int32_t priority) {
  operation.verb = Verb::kPush;
  operation.priority = priority;
  const Ticket taken = operation.taken;
  taken.concern(callers, {Callers::Wait::For::kTurn, "push", key});
  return {taken, submit(rounds, callers, "push", key, std::move(operation))};
}

Ticket submit_pull(RoundThread& rounds, const SharedCallers& callers, KeyId key, Operation operation) {
  operation.verb = Verb::kPull;
  return submit(rounds, callers, "pull", key, std::move(operation));
}

}  // namespace

Engine::Engine(std::unique_ptr<transport::Messenger> messenger, const EngineOptions& options,
               std::unique_ptr<Server> hosted, const ConnectHost& connect_host)
    : Engine(std::move(messenger), options, std::move(hosted), connect_host, false) {}

Engine::Engine(std::unique_ptr<transport::Messenger> control,
               std::unique_ptr<transport::Collective> collective, const EngineOptions& options)
    : Engine(make_native(std::move(control), std::move(collective), options.code_sums), options, nullptr, {},
             true) {}

Engine::Engine(std::unique_ptr<transport::Messenger> messenger, const EngineOptions& options,
               std::unique_ptr<Server> hosted, const ConnectHost& connect_host, bool in_order)
    : messenger_(std::move(messenger)),
      standstill_(std::make_unique<Standstill>(*messenger_, callers_)),
      hosted_(std::move(hosted)),
      options_(checked(options)),
      in_order_(in_order),
      cut_{.max_elements = options_.partition_elements} {
  const auto world = messenger_->world();
  if (world.servers == 0)
    throw std::invalid_argument("Engine: the job has no server; start it with at least one (-s 1)");
  if (options_.at_once && (in_order_ || connect_host)) {
    throw std::invalid_argument(
        "Engine: pushes are to be applied at once, each by itself, so neither a library nor the workers of a "
        "host can "
        "sum them first; leave one of the two out");
  }
  require_replicas(options_, *messenger_, in_order_);
  server_load_.assign(world.servers, 0);
  const auto settings = messenger_->exchange(
      "settings", agreed_settings(options_, in_order_, static_cast<bool>(connect_host)), options_.slow_abort);
  agree_on_settings(*messenger_, "settings", settings);
  if (connect_host) {
    auto link = connect_host(*messenger_);
    if (link.worker) hierarchy_ = std::make_unique<Hierarchy>(std::move(link), options_);
  }
  begin_rounds();
  const auto meet = [this](std::string_view name, std::string_view blob) { return all_gather(name, blob); };
  collectives_ = std::make_unique<Collectives>(*messenger_, thread_->mail(),
                                               options_.partition_elements * sizeof(float), meet);
  if (!in_order_) {
    sparse_ = std::make_unique<SparseRows>(
        *messenger_, thread_->row_client(), options_, server_load_, meet,
        [this](const char* verb) { require_optimizer(verb); }, callers_);
  }
  standstill_->watch(rounds(), sparse_.get());
}

Engine::~Engine() {
  close();
  retire();
}

void Engine::begin_rounds() {
  const bool servers_in_workers = messenger_->local_peer().has_value();
  if (!hierarchy_) {
    RoundThread::Rounds rounds{in_order_, servers_in_workers, num_workers(), {}};
    rounds.standstill = standstill_.get();
    thread_ = std::make_unique<RoundThread>(*messenger_, options_, rounds);
    if (options_.at_once) agree_on_at_once();
    return;
  }
  RoundThread::Rounds uplink = hierarchy_->uplink_rounds(servers_in_workers);
  uplink.standstill = standstill_.get();
  thread_ = std::make_unique<RoundThread>(*messenger_, Hierarchy::uplink_options(options_), uplink);
  if (rank() == 0) thread_->command(hierarchy_->command()).wait();
  messenger_->exchange("hierarchy", "", options_.slow_abort);  // the servers know whom to wait for
  hierarchy_->start(*thread_);
}

void Engine::agree_on_at_once() {
  if (rank() == 0) thread_->command("rounds " + to_string(*options_.at_once)).wait();
  messenger_->exchange("rounds", "", options_.slow_abort);  // no push comes before the servers know
}

RoundThread& Engine::rounds() const {
  require_open("rounds");
  return hierarchy_ ? hierarchy_->rounds() : *thread_;
}

std::uint32_t Engine::rank() const { return messenger_->self().rank; }
std::uint32_t Engine::num_workers() const { return messenger_->world().workers; }
std::uint32_t Engine::num_servers() const { return messenger_->world().servers; }
std::uint32_t Engine::generation() const { return messenger_->world().generation; }
std::uint32_t Engine::newcomers() const { return messenger_->newcomers(); }
void Engine::regroup(const std::string& why, transport::Parting parting) {
  messenger_->regroup(why, parting);
}

void Engine::await_rounds(const char* what) {
  require_open(what);
  const Callers::Waiting waiting(*callers_, {Callers::Wait::For::kOwnRounds, what});
  if (rounds().idle().wait_for(options_.slow_abort)) return;
  throw transport::TimeoutError(fmt::format("{}: rounds begun before it have not ended within {} s", what,
                                            options_.slow_abort.count() / 1000));
}

void Engine::barrier() {
  if (options_.at_once) {  // what others read behind it has what was pushed before it
    await_rounds("barrier");
    if (sparse_) sparse_->settle(options_.slow_abort);
  }
  all_gather("barrier", "");
}

/// Servers hear of it first, so that nobody is held back for a worker that cannot push meanwhile: who is held
/// back could not come here, and all would wait.
std::vector<std::string> Engine::all_gather(std::string_view name, std::string_view blob) {
  auto blobs = meet(name, blob);
  require_no_refusal(blobs);
  return blobs;
}

std::vector<std::string> Engine::meet(std::string_view name, std::string_view blob) {
  callers_->note_call();
  require_open(std::string(name).c_str());
  const Callers::Waiting waiting(*callers_,
                                 {Callers::Wait::For::kExchange, std::string(name), messenger_->exchanges()});
  if (!options_.at_once || !options_.at_once->staleness_bound)
    return messenger_->exchange(name, blob, options_.slow_abort);
  thread_->command("meet").wait();
  try {
    return messenger_->exchange(name, blob, options_.slow_abort);
  } catch (...) {
    come_back();
    throw;
  }
}

void Engine::refuse(std::string_view name, const std::string& text) {
  if (generation() == 1) all_gather(name, refusal(text));
}

/// Has what a check of this worker's own call throws be thrown on all, which begin that call with the
/// exchange.
void Engine::check_for_all(std::string_view name, const std::function<void()>& check) {
  try {
    check();
  } catch (const std::invalid_argument& wrong) {
    refuse(name, wrong.what());
    throw;
  }
}

/// Servers hear that this worker pushes again, though others never came: else nobody would ever wait for it.
void Engine::come_back() {
  try {
    thread_->command("back").wait();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the job has failed, as the caller hears
  }
}

void Engine::agree(const std::string& what, const std::string& text) {
  agree_on_settings(*messenger_, what, all_gather(what, text));
}

Collectives& Engine::collectives() {
  if (!collectives_) throw std::logic_error("collectives: the store is closed");
  if (in_order_) {
    throw std::invalid_argument(
        "collectives: they need servers, and where a library sums there is none; use a store such as "
        "'allreduce' or 'dist_sync'");
  }
  return *collectives_;
}

SparseRows& Engine::sparse() {
  callers_->note_call();
  require_open("sparse");
  if (in_order_) {
    throw std::invalid_argument(
        "sparse rows: they need servers, and where a library sums there is none; use a store such as "
        "'allreduce' "
        "or 'dist_sync'");
  }
  return *sparse_;
}

std::vector<KeyId> Engine::declare(std::span<const KeySpec> keys) {
  std::string text;
  check_for_all("declare", [&] {
    for (const KeySpec& key : keys) {
      if (key.elements() == 0)
        throw std::invalid_argument(fmt::format("declare: key '{}' has no element; leave it out", key.name));
    }
    text = write_keys(keys);
  });
  const auto texts = all_gather("declare", text);
  agree_on_keys(*messenger_, texts);
  const auto sorted = read_keys(text);
  const std::unique_lock lock(keys_mutex_);
  const KeyId first = keys_.size();
  std::unordered_map<std::string, KeyId> added;
  for (const KeySpec& key : sorted) {
    if (declared_.contains(key.name) || !added.emplace(key.name, first + added.size()).second) {
      throw std::invalid_argument(
          fmt::format("init: key '{}' was declared before; declare each key once", key.name));
    }
  }
  if (hierarchy_) {
    hierarchy_->add_keys(sorted, cut_, server_load_);
  } else {
    thread_->add_keys(sorted,
                      place_keys(sorted, num_servers(), cut_, options_.shard_bound_elements, server_load_));
  }
  keys_.insert(keys_.end(), sorted.begin(), sorted.end());
  declared_.merge(added);
  std::vector<KeyId> ids;
  for (const KeySpec& key : keys) ids.push_back(declared_.at(key.name));
  return ids;
}

// In pieces: one exchange of 400 MB kept rank 0 from sending heartbeats for longer than ranks wait for them.
std::vector<std::byte> Engine::value_of(std::uint32_t root, std::span<const std::byte> own) {
  std::vector<std::byte> value(own.size());
  for (std::size_t at = 0; at < own.size(); at += kPieceBytes) {
    const auto piece = own.subspan(at, std::min(kPieceBytes, own.size() - at));
    const std::string_view given(reinterpret_cast<const char*>(piece.data()),
                                 rank() == root ? piece.size() : 0);
    const std::string blob = std::move(all_gather("init value", given)[root]);
    if (blob.size() != piece.size())
      throw transport::TransportError(
          fmt::format("init: worker {} gave {} bytes, expected {}", root, blob.size(), piece.size()));
    std::memcpy(value.data() + at, blob.data(), blob.size());
  }
  return value;
}

void Engine::init(KeyId key, std::span<const float> value, std::uint32_t root) {
  const FirstValue first{key, value, {}};
  init({&first, 1}, root);
}

void Engine::init(KeyId key, std::span<const double> value, std::uint32_t root) {
  const FirstValue first{key, {}, value};
  init({&first, 1}, root);
}

void Engine::init(std::span<const FirstValue> values, std::uint32_t root) {
  for (const FirstValue& first : values) {
    if (first.value64.empty()) {
      require_size("init", first.key, first.value.size());
    } else {
      require_float64("init", first.key, first.value64.size());
    }
  }
  if (root >= num_workers()) {
    throw std::invalid_argument(
        fmt::format("init: root={} is not a worker rank; expected 0 to {}", root, num_workers() - 1));
  }
  const auto bytes_of = [](const FirstValue& first) {
    return first.bytes().size() + transport::kHeaderBytes;
  };
  for (const auto piece : in_pieces(values, bytes_of)) {
    if (in_order_) {
      store_roots(piece, root);
    } else if (rank() == root) {
      hierarchy_ ? hierarchy_->store_upstream(piece) : store(piece);
    }
  }
  if (hierarchy_) {
    all_gather("init", "");
    std::vector<KeyId> keys;
    for (const FirstValue& first : values) keys.push_back(first.key);
    if (hierarchy_->leads()) hierarchy_->fetch_first_values(keys);
  }
  all_gather("init", "");
}

/// Returns once servers have them.
void Engine::store(std::span<const FirstValue> values) {
  std::vector<Submission> submissions;
  std::vector<Ticket> stored;
  for (const FirstValue& first : values) {
    auto& [key, operation] = submissions.emplace_back();
    key = first.key;
    operation.verb = Verb::kInit;
    operation.in = first.value;
    operation.in64 = first.value64;
    stored.push_back(operation.done);
  }
  thread_->submit(std::move(submissions));
  wait_all(stored);
}

/// Where every rank answers itself, it needs root's values for that.
void Engine::store_roots(std::span<const FirstValue> values, std::uint32_t root) {
  std::vector<std::byte> own;
  std::vector<std::size_t> begins;
  for (const FirstValue& first : values) {
    begins.push_back((own.size() + alignof(double) - 1) / alignof(double) * alignof(double));
    own.resize(begins.back());
    const auto bytes = first.bytes();
    own.insert(own.end(), bytes.begin(), bytes.end());
  }
  const auto roots = value_of(root, own);
  std::vector<FirstValue> given;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::byte* const at = roots.data() + begins[i];
    FirstValue& first = given.emplace_back(values[i]);
    if (first.value64.empty()) {
      first.value = {reinterpret_cast<const float*>(at), first.value.size()};
    } else {
      first.value64 = {reinterpret_cast<const double*>(at), first.value64.size()};
    }
  }
  store(given);
}

void Engine::set_optimizer(const std::string& text) {
  check_for_all("optimizer", [&] {
    make_updater(parse_optimizer(text));
    require_weights("set_optimizer");
  });
  const bool is_first = !has_optimizer_;
  if (is_first) require_no_step("set_optimizer");
  if (sparse_) sparse_->settle(options_.slow_abort);
  await_rounds("set_optimizer");  // a push that is still encoded is of the optimizer before
  if (is_first) require_values();
  agree_on_settings(*messenger_, "set_optimizer", all_gather("optimizer", text));
  optimizer_ = text;
  has_optimizer_ = true;
  if (is_first) {
    leave_buckets();
    rounds().post([&tensors = rounds().tensors()] { tensors.forget_sums_of_float64(); });
  }
  attempt("optimizer is set", [&] {
    if (rank() == 0 || in_order_) thread_->command("optimizer " + text).wait();
    return std::string();
  });
}

std::optional<DeviceOperation> Engine::device_operation(const OnDevice& place) const {
  if (!place.device) return std::nullopt;
  DeviceOperation operation;
  operation.link = rounds().devices().link(place.device);
  place.device->use();
  operation.marks.push_back(place.device->mark(place.stream));
  return operation;
}

Ticket Engine::push(KeyId key, std::span<const float> grad, std::int32_t priority, const OnDevice& place) {
  const BegunPush begun = begin_push(key, grad, priority, place);
  begun.taken.wait();
  return begun.done;
}

Ticket Engine::push(KeyId key, std::span<const double> grad, std::int32_t priority) {
  const BegunPush begun = begin_push(key, grad, priority);
  begun.taken.wait();
  return begun.done;
}

BegunPush Engine::begin_push(KeyId key, std::span<const float> grad, std::int32_t priority,
                             const OnDevice& place) {
  callers_->note_call();
  require_size("push", key, grad.size());
  require_optimizer("push");
  Operation operation;
  operation.device = device_operation(place);
  operation.in = grad;
  note_round(key, false);
  return submit_push(rounds(), callers_, key, std::move(operation), priority);
}

BegunPush Engine::begin_push(KeyId key, std::span<const double> grad, std::int32_t priority) {
  callers_->note_call();
  require_float64("push", key, grad.size());
  require_optimizer("push");
  Operation operation;
  operation.in64 = grad;
  note_round(key, false);
  return submit_push(rounds(), callers_, key, std::move(operation), priority);
}

Ticket Engine::pull(KeyId key, std::span<float> out, std::int32_t priority, const OnDevice& place) {
  callers_->note_call();
  require_size("pull", key, out.size());
  Operation operation;
  operation.device = device_operation(place);
  operation.out = out;
  operation.priority = priority;
  if (takes_servers_own(key)) return hierarchy_->pull_upstream(key, std::move(operation), place.device);
  return submit_pull(rounds(), callers_, key, std::move(operation));
}

Ticket Engine::pull(KeyId key, std::span<double> out, std::int32_t priority) {
  callers_->note_call();
  require_float64("pull", key, out.size());
  Operation operation;
  operation.out64 = out;
  operation.priority = priority;
  if (takes_servers_own(key)) return hierarchy_->pull_upstream(key, std::move(operation), nullptr);
  return submit_pull(rounds(), callers_, key, std::move(operation));
}

/// Where a host's workers sum first, whether a pull is to bring the weight that servers have: the host has
/// what the last round brought, and that was shown, or is not as weights are sent now.
bool Engine::takes_servers_own(KeyId key) {
  if (!hierarchy_ || !has_optimizer_) return false;
  const std::lock_guard lock(shown_mutex_);
  const bool are_deltas = weight_replies_.starts_with("delta");
  return are_deltas ? !shown_.insert(key).second : shown_.contains(key);
}

/// Notes a round, for takes_servers_own(). is_shown: the caller gets what it brings.
void Engine::note_round(KeyId key, bool is_shown) {
  if (!hierarchy_) return;
  const std::lock_guard lock(shown_mutex_);
  if (is_shown && weight_replies_.starts_with("delta")) {
    shown_.insert(key);
  } else {
    shown_.erase(key);
  }
}

Ticket Engine::push_pull(KeyId key, std::span<const float> in, std::span<float> out, std::int32_t priority,
                         float scale, const OnDevice& place, std::uint32_t program_step) {
  callers_->note_call();
  require_size("push_pull", key, in.size());
  require_size("push_pull", key, out.size());
  require_optimizer("push_pull");
  return submit_push_pull(key, in, out, priority, scale, device_operation(place), program_step);
}

Ticket Engine::push_pull(KeyId key, std::span<const double> in, std::span<double> out, std::int32_t priority,
                         double scale, std::uint32_t program_step) {
  callers_->note_call();
  require_float64("push_pull", key, in.size());
  require_float64("push_pull", key, out.size());
  require_optimizer("push_pull");
  return submit_push_pull(key, in, out, priority, scale, std::nullopt, program_step);
}

template <typename Element>
Ticket Engine::submit_push_pull(KeyId key, std::span<const Element> in, std::span<Element> out,
                                std::int32_t priority, double scale, std::optional<DeviceOperation> device,
                                std::uint32_t program_step) {
  Operation operation;
  operation.device = std::move(device);
  operation.program_step = program_step;
  operation.set_in(in);
  operation.set_out(out);
  operation.priority = priority;
  operation.scale = scale;
  note_round(key, true);
  return submit(rounds(), callers_, "push_pull", key, std::move(operation));
}
template Ticket Engine::submit_push_pull(KeyId, std::span<const float>, std::span<float>, std::int32_t,
                                         double, std::optional<DeviceOperation>, std::uint32_t);

std::vector<transport::PeerCounters> Engine::counters() const {
  auto counters = messenger_->counters();
  if (hosted_) {
    const auto of_server = hosted_->counters();
    counters.insert(counters.end(), of_server.begin(), of_server.end());
  }
  return counters;
}
DeviceTraffic Engine::device_traffic() const {
  if (!thread_) return {};
  return rounds().devices().traffic();
}
PushedBytes Engine::pushed() const {
  if (!thread_) return {};
  const PushedBytes rows = sparse_ ? sparse_->pushed() : PushedBytes();
  return {rounds().pushed().raw + rows.raw, thread_->pushed().encoded + rows.encoded};
}
std::uint64_t Engine::ahead_bytes() const {
  if (!thread_) return 0;
  return rounds().ahead_bytes() + (sparse_ ? sparse_->ahead_bytes() : 0);
}
std::map<std::uint64_t, std::uint64_t> Engine::staleness() const {
  return thread_ ? thread_->staleness() : std::map<std::uint64_t, std::uint64_t>();
}
double Engine::codec_seconds() const {
  if (!thread_) return 0;
  return thread_->codec_seconds() + (hierarchy_ ? hierarchy_->rounds().codec_seconds() : 0) +
         (sparse_ ? sparse_->codec_seconds() : 0);
}
std::vector<std::string> Engine::take_notices() {
  if (!thread_) return {};
  auto notices = thread_->take_notices();
  if (hierarchy_) std::ranges::move(hierarchy_->rounds().take_notices(), std::back_inserter(notices));
  if (sparse_) std::ranges::move(sparse_->take_notices(), std::back_inserter(notices));
  return notices;
}

void Engine::read_clocks(std::chrono::milliseconds timeout) {
  if (thread_ && options_.trace && !in_order_) thread_->clock_probe().read(*options_.trace, timeout);
}

Trace& Engine::trace() const {
  if (!options_.trace) throw std::logic_error("trace: the engine was opened without one");
  return *options_.trace;
}

std::string Engine::write_trace(const std::string& folder, const std::string& store) {
  const bool servers_in_workers = messenger_->local_peer().has_value();
  return kvstore::write_trace(folder, trace(),
                              {messenger_->self(), messenger_->world(), servers_in_workers, store});
}

void Engine::close(const std::string& error) {
  if (!thread_) return;
  standstill_->stop();
  if (!error.empty()) {
    messenger_->note_error(error);
    if (hierarchy_) hierarchy_->note_error(error);
  }
  bool has_left = false;
  try {
    const auto repeats =
        messenger_->loses_frames() ? 20 * options_.retry_timeout : std::chrono::milliseconds(0);
    const auto patience = std::chrono::seconds(2) + repeats;
    rounds().idle().wait_for(patience);  // pushes that nobody pulls
    if (!in_order_) hand_over();
    if (sparse_) sparse_->settle(options_.slow_abort);
    // Whoever still needs us shall hear why its round fails, and not that we have left.
    if (const auto cause = rounds().failure(); !cause.empty())
      messenger_->fail(fmt::format("{}: {}", transport::to_string(messenger_->self()), cause));
    if (hierarchy_) hierarchy_->leave(std::chrono::seconds(5));
    messenger_->leave(std::chrono::seconds(5));
    has_left = true;
  } catch (
      const std::exception&) {  // NOLINT(bugprone-empty-catch): the job has failed; there is nobody to tell
  }
  collectives_.reset();
  if (hierarchy_) hierarchy_->stop();
  thread_.reset();
  if (!has_left) {  // the job has failed, and nobody waits for an answer
    if (hierarchy_) hierarchy_->retire(std::chrono::milliseconds(0));
    hosted_.reset();
  }
  if (hosted_) hosted_->serve_on();  // others may pull what no round has brought them, or lose an answer
}

void Engine::retire() {
  constexpr std::chrono::seconds kPatience{5};
  if (hierarchy_) hierarchy_->retire(kPatience);
  if (hosted_) hosted_->retire(kPatience);
  hosted_.reset();
}

/// A round may last as long as its slowest worker; what we pushed must be with the servers, for it goes with
/// us: what a slow link has not taken yet, and what a server that dies had not read.
void Engine::hand_over() {
  for (RoundThread* thread : {&rounds(), thread_.get()}) {
    if (thread->handed_over().wait_for(options_.slow_abort)) continue;
    messenger_->fail(fmt::format("{}: closed, and its last pushes were not with the servers within {} s",
                                 transport::to_string(messenger_->self()),
                                 options_.slow_abort.count() / 1000));
  }
}

bool Engine::outlast_for(std::chrono::milliseconds timeout) {
  if (!thread_) {
    if (hosted_ && !hosted_->has_served_all(timeout)) return false;
    hosted_.reset();
  }
  return (!hierarchy_ || hierarchy_->outlast(timeout)) && messenger_->outlast(timeout);
}

std::uint64_t Engine::elements_of(KeyId key) const {
  const std::shared_lock lock(keys_mutex_);
  if (key >= keys_.size())
    throw std::invalid_argument(fmt::format("key {} was not declared; {} keys are", key, keys_.size()));
  return keys_[key].elements();
}

void Engine::require_open(const char* verb) const {
  if (!thread_) throw std::logic_error(fmt::format("{}: the store is closed", verb));
}

void Engine::require_optimizer(const char* verb) const {
  if (!options_.at_once || has_optimizer_) return;
  throw std::invalid_argument(fmt::format(
      "{}: this store applies each push to the weight at once, and there is no optimizer that could; call "
      "set_optimizer on every worker first, as set_optimizer(\"sgd\", learning_rate=0.1), or use a "
      "store that sums, as dist_sync",
      verb));
}

/// A key of another dtype has sums of float32, whatever it is given.
void Engine::require_float64(const char* verb, KeyId key, std::size_t given) const {
  require_size(verb, key, given);
  const std::shared_lock lock(keys_mutex_);
  if (keys_[key].is_float64()) return;
  throw std::invalid_argument(fmt::format(
      "{}: key '{}' was declared as {}, and float64 was given; declare it as float64, or give float32", verb,
      keys_[key].name, keys_[key].dtype));
}

void Engine::require_size(const char* verb, KeyId key, std::size_t given) const {
  require_open(verb);
  if (const std::uint64_t expected = elements_of(key); given != expected) {
    const std::shared_lock lock(keys_mutex_);
    throw std::invalid_argument(
        fmt::format("{}: key '{}' has {} elements, {} given", verb, keys_[key].name, expected, given));
  }
}

}  // namespace gradwire::kvstore
