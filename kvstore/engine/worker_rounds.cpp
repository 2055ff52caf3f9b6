#include "kvstore/engine/worker_rounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "kvstore/client/standstill.h"

namespace gradwire::kvstore {

using Verb = Operation::Verb;

void WorkerRounds::begin(std::unique_ptr<Hierarchy> hierarchy, Standstill& standstill) {
  hierarchy_ = std::move(hierarchy);
  const bool servers_in_workers = messenger_.local_peer().has_value();
  if (!hierarchy_) {
    RoundThread::Rounds rounds{in_order_, servers_in_workers, messenger_.world().workers, {}};
    rounds.standstill = &standstill;
    rounds.on_worker_left = [this] { has_lost_worker_ = true; };
    job_ = std::make_unique<RoundThread>(messenger_, options_, rounds);
    if (options_.async) agree_on_async();
    return;
  }
  RoundThread::Rounds uplink = hierarchy_->uplink_rounds(servers_in_workers);
  uplink.standstill = &standstill;
  job_ = std::make_unique<RoundThread>(messenger_, Hierarchy::uplink_options(options_), uplink);
  if (messenger_.self().rank == 0) command(hierarchy_->command());
  messenger_.exchange("hierarchy", "", options_.slow_abort);  // the servers know whom to wait for
  hierarchy_->start(*job_);
}

void WorkerRounds::agree_on_async() const {
  if (messenger_.self().rank == 0) command("rounds " + to_string(*options_.async));
  messenger_.exchange("rounds", "", options_.slow_abort);  // no push comes before the servers know
}

void WorkerRounds::require_open(const char* verb) const {
  if (!job_) throw std::logic_error(fmt::format("{}: the store is closed", verb));
}

RoundThread& WorkerRounds::job() const {
  require_open("rounds");
  return *job_;
}

RoundThread& WorkerRounds::own() const {
  require_open("rounds");
  return hierarchy_ ? hierarchy_->rounds() : *job_;
}

std::vector<Acknowledgement> WorkerRounds::command(std::string text) const {
  std::vector<Acknowledgement> said;
  job().command(std::move(text), &said).wait();
  return said;
}

void WorkerRounds::await(const char* what) const {
  require_open(what);
  const Callers::Waiting waiting(*callers_, {Callers::Wait::For::kOwnRounds, what});
  if (own().idle().wait_for(options_.slow_abort)) return;
  throw transport::TimeoutError(fmt::format("{}: rounds begun before it have not ended within {} s", what,
                                            options_.slow_abort.count() / 1000));
}

void WorkerRounds::add_keys(const std::vector<KeySpec>& keys, const fusion::OwnedCut& cut,
                            std::vector<std::uint64_t>& load) const {
  if (hierarchy_) return hierarchy_->add_keys(keys, cut, load);
  const auto servers = static_cast<std::uint32_t>(load.size());
  job().add_keys(keys, place_keys(keys, servers, cut, options_.shard_bound_elements, load));
}

void WorkerRounds::add_bucket(const KeySpec& spec, const Part& home,
                              std::vector<std::uint32_t> segments) const {
  hierarchy_ ? hierarchy_->add_bucket(spec, home, segments)
             : job().add_bucket(spec, home, std::move(segments));
}

std::vector<KeyRange> WorkerRounds::ranges(Home home, std::uint64_t elements) const {
  if (!hierarchy_) return {{home.key, home.offset, 0, elements}};
  std::vector<KeyRange> found;
  for (const Hierarchy::Run& run : hierarchy_->runs_of(home.key)) {
    const auto begin = std::max(run.part.offset, home.offset);
    const auto end = std::min(run.part.offset + run.part.count, home.offset + elements);
    if (begin < end)
      found.push_back({run.upstream, begin - run.part.offset, begin - home.offset, end - begin});
  }
  return found;
}

std::vector<std::uint32_t> WorkerRounds::contributors() const {
  if (hierarchy_) return hierarchy_->leaders();
  std::vector<std::uint32_t> ranks(messenger_.world().workers);
  std::iota(ranks.begin(), ranks.end(), 0U);
  return ranks;
}

// ------------------------------------------------------------------------------------- operations

std::optional<DeviceOperation> WorkerRounds::device_operation(const OnDevice& place) const {
  if (!place.device) return std::nullopt;
  DeviceOperation operation;
  operation.link = own().devices().link(place.device);
  const compress::DeviceScope scope(*place.device);
  operation.marks.push_back(place.device->mark(place.stream));
  return operation;
}

Ticket WorkerRounds::submit(const char* verb, KeyId key, Operation operation) const {
  const Ticket done = operation.done;
  done.concern(callers_, {Callers::Wait::For::kKey, verb, key});
  own().submit(key, std::move(operation));
  return done;
}

BegunPush WorkerRounds::push(KeyId key, Operation operation, std::int32_t priority) {
  note_round(key, false);
  operation.verb = Verb::kPush;
  operation.priority = priority;
  const Ticket taken = operation.taken;
  // A push that waits to be taken waits for a round, but only if it is held behind one.
  taken.concern(callers_, {Callers::Wait::For::kTurn, "push", key});
  return {taken, submit("push", key, std::move(operation))};
}

Ticket WorkerRounds::pull(KeyId key, Operation operation, const std::shared_ptr<compress::Device>& device,
                          bool has_optimizer) {
  if (takes_servers_own(key, has_optimizer))
    return hierarchy_->pull_upstream(key, std::move(operation), device);
  operation.verb = Verb::kPull;
  return submit("pull", key, std::move(operation));
}

Ticket WorkerRounds::push_pull(KeyId key, Operation operation) {
  note_round(key, true);
  return submit("push_pull", key, std::move(operation));
}

/// Where a host's workers sum first, whether a pull is to bring the weight that servers have: the host has
/// what the last round brought, and that was shown, or is not as weights are sent now.
bool WorkerRounds::takes_servers_own(KeyId key, bool has_optimizer) {
  if (!hierarchy_ || !has_optimizer) return false;
  const std::lock_guard lock(shown_mutex_);
  // With deltas the first pull of a weight shows what the host has, and the next one asks upstream.
  return sends_deltas_ ? !shown_.insert(key).second : shown_.contains(key);
}

/// Notes a round, for takes_servers_own(). is_shown: the caller gets what it brings.
void WorkerRounds::note_round(KeyId key, bool is_shown) {
  if (!hierarchy_) return;
  const std::lock_guard lock(shown_mutex_);
  if (is_shown && sends_deltas_) {
    shown_.insert(key);
  } else {
    shown_.erase(key);
  }
}

void WorkerRounds::set_weight_replies(const std::shared_ptr<const WeightReplies>& replies,
                                      std::uint64_t keys) {
  job().set_weight_replies(replies);
  if (!hierarchy_) return;
  const std::lock_guard lock(shown_mutex_);
  sends_deltas_ = replies->are_deltas();
  // What the host has was sent in the other format, so the next pull of each key asks upstream.
  for (KeyId key = 0; key < keys; ++key) shown_.insert(key);
}

// ------------------------------------------------------------------------------------- the end

/// A round may last as long as its slowest worker; what we pushed must be with the servers, for it goes with
/// us: what a slow link has not taken yet, and what a server that dies had not read.
void WorkerRounds::hand_over(bool is_well) const {
  // A library has no server to leave a push with, and the leader of a host has to send the host's sum on.
  const bool is_needed = in_order_ || (hierarchy_ && hierarchy_->leads());
  if (is_needed && is_well) finish_own();
  if (in_order_) return;
  // The host's thread first: its pushes become the uplink's.
  for (RoundThread* thread : {&own(), job_.get()}) {
    if (!thread->handed_over().wait_for(options_.slow_abort))
      fail_late("its last pushes were not with the servers");
  }
}

/// Waits for the rounds that this worker has pushed, which other workers may not have begun yet.
void WorkerRounds::finish_own() const {
  constexpr std::chrono::milliseconds kLook{200};
  constexpr std::chrono::seconds kMoment{2};  // for sums that the library has made, and not told of yet
  // Who waits for this worker in something else waits for ever, and hears of it (standstill.h).
  const Callers::Waiting waiting(*callers_, {Callers::Wait::For::kOwnRounds, "close"});
  const Ticket idle = own().idle();
  auto end = std::chrono::steady_clock::now() + options_.slow_abort;
  bool has_lost_any = false;
  while (!idle.wait_for(kLook)) {
    const auto now = std::chrono::steady_clock::now();
    // One that has come to its end makes no more sums. Without a library, the host's server says so.
    if (in_order_ && has_lost_worker_ && !std::exchange(has_lost_any, true)) end = now + kMoment;
    if (now < end) continue;
    if (!has_lost_any) return fail_late("its last pushes were not summed");
    return fail(
        "its last pushes are more than those of a worker that has left; every worker must push the same "
        "keys as often");
  }
}

void WorkerRounds::fail_late(const char* what) const {
  fail(fmt::format("{} within {} s", what, options_.slow_abort.count() / 1000));
}

void WorkerRounds::fail(const std::string& why) const {
  messenger_.fail(fmt::format("{}: closed, and {}", transport::to_string(messenger_.self()), why));
}

void WorkerRounds::stop() {
  // First: the host's rounds use the uplink, which ends with the job's thread.
  if (hierarchy_) hierarchy_->stop();
  job_.reset();
}

}  // namespace gradwire::kvstore
