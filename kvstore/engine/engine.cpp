#include "kvstore/engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "kvstore/aggregate/updater.h"
#include "kvstore/engine/engine_context.h"
#include "kvstore/engine/first_values.h"
#include "kvstore/placement/native.h"
#include "kvstore/wire/agreement.h"

namespace gradwire::kvstore {
namespace {

constexpr std::chrono::seconds kPatience{5};  // with those who are to hear that this worker leaves

EngineOptions checked(EngineOptions options) {
  if (options.codec_threads == 0) throw std::invalid_argument("Engine: codec_threads=0, expected at least 1");
  const auto kept_in = options.residual_type;
  if (kept_in && kept_in != ElementType::kFloat32 && kept_in != ElementType::kBfloat16) {
    throw std::invalid_argument(
        fmt::format("Engine: residual_type={}, expected float32, bfloat16 or none", name_of(*kept_in)));
  }
  if (options.credit_bytes == 0) throw std::invalid_argument("Engine: credit_bytes=0, expected at least 1");
  // Codec units are never cut: residuals, agreed scales and placement count in them.
  options.partition_elements =
      std::max<std::uint64_t>(options.partition_elements / compress::kUnitElements * compress::kUnitElements,
                              compress::kUnitElements);
  return options;
}

/// What must be equal on all ranks for their frames to meet.
std::string agreed_settings(const EngineOptions& options, bool in_order, bool sums_on_hosts) {
  std::string text = fmt::format("partition_elements={}\nshard_bound_elements={}\n",
                                 options.partition_elements, options.shard_bound_elements);
  // Lines follow only where they apply, so that a worker that differs in one is named by the line that it has
  // or lacks.
  if (in_order) text += fmt::format("code_sums={}\n", to_string(options.code_sums));
  if (sums_on_hosts) text += "hierarchy=host\n";
  if (options.replicas != 0) text += fmt::format("replicas={}\n", options.replicas);
  if (options.async) text += fmt::format("rounds={}\n", to_string(*options.async));
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
    : context_(std::make_unique<EngineContext>(std::move(messenger), checked(options), in_order,
                                               std::move(hosted))),
      compression_(*context_),
      servers_(*context_),
      residuals_(*context_, servers_),
      slots_(*context_, compression_, residuals_),
      checkpoints_(*context_, compression_, servers_,
                   [this](const std::string& text) { set_optimizer(text); }),
      optimizer_states_(*context_, servers_, [this](const std::string& text) { set_optimizer(text); }),
      metrics_(*context_) {
  // Parts that hold the context find the slots there. They are made after it.
  context_->slots = &slots_;
  transport::Messenger& line = *context_->messenger;
  const EngineOptions& own = context_->options;
  if (line.world().servers == 0)
    throw std::invalid_argument("Engine: the job has no server; start it with at least one (-s 1)");
  if (own.async && (in_order || connect_host)) {
    throw std::invalid_argument(
        "Engine: pushes are to be applied at once, each by itself, so neither a library nor the workers of a "
        "host can sum them first; leave one of the two out");
  }
  require_replicas(own, line, in_order);
  const bool sums_on_hosts = static_cast<bool>(connect_host);
  // Before anything that a difference would block: threads, a host's link, the servers' mode.
  agree_on_settings(line, "settings",
                    line.exchange("settings", agreed_settings(own, in_order, sums_on_hosts), own.slow_abort));
  // A link is made by all workers together, also by those that then have none.
  std::unique_ptr<Hierarchy> hierarchy;
  if (connect_host) {
    auto link = connect_host(line);
    // Without a link every worker has a host to itself, and pushes to the job's servers.
    if (link.worker) hierarchy = std::make_unique<Hierarchy>(std::move(link), own);
  }
  WorkerRounds& rounds = context_->rounds;
  rounds.begin(std::move(hierarchy), context_->standstill);
  const auto meet = [meeting = &context_->meeting](std::string_view name, std::string_view blob) {
    return meeting->all_gather(name, blob);
  };
  context_->collectives =
      std::make_unique<Collectives>(line, rounds.job().blobs(), own.partition_elements * sizeof(float), meet);
  if (!in_order) {
    context_->rows = std::make_unique<SparseRows>(
        line, rounds.job().row_client(), own, context_->keys.server_load(), meet,
        [context = context_.get()](const char* verb) { context->require_optimizer(verb); },
        context_->callers);
  }
  // Last: it looks at rounds and rows.
  context_->standstill.watch(rounds.own(), context_->rows.get());
}

Engine::~Engine() {
  close();
  retire();
}

std::uint32_t Engine::rank() const { return context_->rank(); }
std::uint32_t Engine::num_workers() const { return context_->workers(); }
std::uint32_t Engine::num_servers() const { return context_->messenger->world().servers; }
std::uint32_t Engine::generation() const { return context_->messenger->world().generation; }
std::uint32_t Engine::newcomers() const { return context_->messenger->newcomers(); }
void Engine::regroup(const std::string& why, transport::Parting parting) {
  context_->messenger->regroup(why, parting);
}

void Engine::await_rounds(const char* what) { context_->rounds.await(what); }
void Engine::barrier() { context_->barrier(); }
Meeting& Engine::meeting() { return context_->meeting; }
bool Engine::has_sparse() const { return !context_->in_order; }
const std::shared_ptr<Callers>& Engine::callers() const { return context_->callers; }
SparseRows& Engine::sparse() { return context_->require_rows(); }

Collectives& Engine::collectives() {
  if (!context_->collectives) throw std::logic_error("collectives: the store is closed");
  if (context_->in_order) {
    throw std::invalid_argument(
        "collectives: they need servers, and where a library sums there is none; use a store such as "
        "'allreduce' or 'dist_sync'");
  }
  return *context_->collectives;
}

std::vector<KeyId> Engine::declare(std::span<const KeySpec> keys) {
  Meeting& meeting = context_->meeting;
  std::string text;
  meeting.check_for_all("declare", [&] {
    for (const KeySpec& key : keys) {
      if (key.elements() == 0)
        throw std::invalid_argument(fmt::format("declare: key '{}' has no element; leave it out", key.name));
    }
    text = write_keys(keys);
  });
  agree_on_keys(*context_->messenger, meeting.all_gather("declare", text));
  // From the text, in which keys are sorted: their numbers are then the same on all ranks.
  context_->keys.add(read_keys(text));
  std::vector<KeyId> ids;
  for (const KeySpec& key : keys) ids.push_back(context_->keys.number_of(key.name));
  return ids;
}

void Engine::init(KeyId key, ConstArrayView value, std::uint32_t root) {
  const FirstValue first{key, value};
  init({&first, 1}, root);
}

void Engine::init(std::span<const FirstValue> values, std::uint32_t root) {
  store_first_values(*context_, values, root);
}

void Engine::set_optimizer(const std::string& text) {
  context_->meeting.check_for_all("optimizer", [&] {
    make_updater(parse_optimizer(text));
    compression_.require_weights("set_optimizer");
  });
  ServersOptimizer& optimizer = context_->optimizer;
  WorkerRounds& rounds = context_->rounds;
  const bool is_first = !optimizer.is_set;
  // Only the first one turns sums into weights, and a step must not bring some of each.
  if (is_first) slots_.require_no_step("set_optimizer");
  context_->settle("set_optimizer");  // a push that is still encoded is of the optimizer before
  if (is_first) checkpoints_.require_values();
  context_->meeting.agree("set_optimizer", text, "optimizer");
  optimizer.text = text;
  // Before slots leave their buckets: what is bound or pushed from now on is a weight.
  optimizer.is_set = true;
  if (is_first) {
    slots_.leave_buckets();
    rounds.own().post([&tensors = rounds.own().tensors()] { tensors.forget_sums_of_float64(); });
  }
  context_->meeting.attempt("optimizer is set", [&] {
    // Where a library sums, each rank is its own server.
    if (rank() == 0 || context_->in_order) rounds.command("optimizer " + text);
    return std::string();
  });
}

// ------------------------------------------------------------------------------------- one key

/// Of arrays of a key; on a device they are not of float64.
Operation Engine::operation_on(const char* verb, KeyId key, const OnDevice& place,
                               std::initializer_list<ConstArrayView> arrays) const {
  context_->callers->note_call();
  for (const ConstArrayView array : arrays) {
    context_->keys.require_array(verb, key, array);
    if (place.device && array.is_float64()) {
      throw std::invalid_argument(
          fmt::format("{}: key '{}' was given as {} on {}; give float32 there, or fewer bits", verb,
                      context_->keys.spec(key).name, name_of(array.type()), place.device->name()));
    }
  }
  Operation operation;
  operation.device = context_->rounds.device_operation(place);
  return operation;
}

Ticket Engine::push(KeyId key, ConstArrayView grad, std::int32_t priority, const OnDevice& place) {
  const BegunPush begun = begin_push(key, grad, priority, place);
  begun.taken.wait();
  return begun.done;
}

BegunPush Engine::begin_push(KeyId key, ConstArrayView grad, std::int32_t priority, const OnDevice& place) {
  Operation operation = operation_on("push", key, place, {grad});
  context_->require_optimizer("push");
  operation.in = grad;
  return context_->rounds.push(key, std::move(operation), priority);
}

Ticket Engine::pull(KeyId key, ArrayView out, std::int32_t priority, const OnDevice& place) {
  Operation operation = operation_on("pull", key, place, {out});
  operation.out = out;
  operation.priority = priority;
  return context_->rounds.pull(key, std::move(operation), place.device, context_->optimizer.is_set);
}

Ticket Engine::push_pull(KeyId key, ConstArrayView in, ArrayView out, std::int32_t priority, double scale,
                         const OnDevice& place, std::uint32_t program_step) {
  Operation operation = operation_on("push_pull", key, place, {in, out});
  context_->require_optimizer("push_pull");
  operation.program_step = program_step;
  operation.in = in;
  operation.out = out;
  operation.priority = priority;
  operation.scale = scale;
  return context_->rounds.push_pull(key, std::move(operation));
}

// ------------------------------------------------------------------------------------- the end

void Engine::close(const std::string& error) {
  WorkerRounds& rounds = context_->rounds;
  if (!rounds.is_open()) return;
  transport::Messenger& line = *context_->messenger;
  const EngineOptions& options = context_->options;
  Hierarchy* const hierarchy = rounds.hierarchy();
  if (!error.empty()) {
    line.note_error(error);
    if (hierarchy != nullptr) hierarchy->note_error(error);
  }
  std::string cause;  // why the job has failed
  try {
    // Eight repetitions, which come ever more rarely.
    const auto repeats = line.loses_frames() ? 40 * options.retry_timeout : std::chrono::milliseconds(0);
    const auto patience = std::chrono::seconds(2) + repeats;
    rounds.own().idle().wait_for(patience);  // pushes that nobody pulls
    // After an error the others go on without what this worker has not sent yet.
    rounds.hand_over(error.empty());
    if (context_->rows) context_->rows->settle(options.slow_abort);
    cause = rounds.own().failure();
  } catch (const std::exception& failure) {
    cause = failure.what();
  }
  // What it watches ends below: the threads of rounds, and the tables of rows.
  context_->standstill.stop();
  // Whoever still needs us shall hear why its round fails, and not that we have left.
  if (!cause.empty()) line.fail(fmt::format("{}: {}", transport::to_string(line.self()), cause));
  if (hierarchy != nullptr) hierarchy->leave(kPatience);
  line.leave(kPatience);
  context_->collectives.reset();
  rounds.stop();
  std::unique_ptr<Server>& hosted = context_->hosted;
  // Nobody waits for an answer, and what it has not summed yet is the callers' memory, which they may free
  // now.
  if (!cause.empty()) {
    if (hierarchy != nullptr) hierarchy->retire(std::chrono::milliseconds(0));
    hosted.reset();
  }
  if (!hosted) return;
  hosted->copy_payloads_of(rank());
  hosted->serve_on();  // others may pull what no round has brought them, or lose an answer
}

void Engine::retire() {
  if (Hierarchy* const hierarchy = context_->rounds.hierarchy()) hierarchy->retire(kPatience);
  if (context_->hosted) context_->hosted->retire(kPatience);
  context_->hosted.reset();
}

bool Engine::outlast_for(std::chrono::milliseconds timeout) {
  std::unique_ptr<Server>& hosted = context_->hosted;
  if (!context_->rounds.is_open()) {
    if (hosted && !hosted->has_served_all(timeout)) return false;
    hosted.reset();
  }
  Hierarchy* const hierarchy = context_->rounds.hierarchy();
  return (hierarchy == nullptr || hierarchy->outlast(timeout)) && context_->messenger->outlast(timeout);
}

}  // namespace gradwire::kvstore
