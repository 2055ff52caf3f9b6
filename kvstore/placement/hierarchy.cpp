#include "kvstore/placement/hierarchy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <atomic>
#include <limits>
#include <memory>
#include <utility>

#include "kvstore/placement/host_relay.h"
#include "kvstore/runtime/pieces.h"
#include "transport/zmq/scheduler.h"

namespace gradwire::kvstore {

/// First values as the main job's servers have them, by key.
struct Hierarchy::Fetched {
  std::vector<std::vector<std::byte>> values;
};

Hierarchy::Hierarchy(transport::HostLink link, const EngineOptions& options)
    : link_(std::move(link)),
      options_(options),
      leader_(transport::host_of(link_.hosts, link_.worker->self().rank).front()),
      leads_(link_.server != nullptr) {}

Hierarchy::~Hierarchy() { stop(); }

RoundThread::Rounds Hierarchy::uplink_rounds(bool servers_in_workers) {
  return {.servers_in_workers = servers_in_workers,
          .contributors = static_cast<std::uint32_t>(link_.hosts.size()),
          .on_failure = [this](const std::exception_ptr& error) { fail_rounds(error); }};
}

EngineOptions Hierarchy::uplink_options(EngineOptions options) {
  // A quarter longer than the host's rounds wait, so that a rank that is missing on a host is named there,
  // and not its leader.
  options.slow_warning = options.slow_warning * 5 / 4;
  options.slow_abort = options.slow_abort * 5 / 4;
  return options;
}

std::string Hierarchy::command() const { return fmt::format("contributors {}", fmt::join(leaders(), ",")); }

void Hierarchy::start(RoundThread& uplink) {
  const std::lock_guard lock(mutex_);
  uplink_ = &uplink;
  if (link_.server) {
    relay_ = std::make_unique<HostRelay>();
    ServerOptions options = hosted_server(options_);
    options.tier = Tier::kHost;
    // The link shows all ranks of the job, of which only those of this host push here.
    options.contributors = transport::host_of(link_.hosts, leader_);
    options.upstream = [relay = relay_.get()](transport::Frame sum) { relay->take(std::move(sum)); };
    server_ = std::make_unique<Server>(std::move(link_.server), options);
    relay_->start(*server_, uplink);
  }
  RoundThread::Rounds rounds;
  rounds.servers_in_workers = true;
  rounds.contributors = 1;  // answers are dense
  rounds.tier = Tier::kHost;
  rounds.on_failure = [this](const std::exception_ptr& error) { fail_job(error); };
  rounds_ = std::make_unique<RoundThread>(*link_.worker, options_, rounds);
  // The uplink has run since before this call, and may have failed when there were no rounds to fail.
  if (early_failure_) rounds_->fail(early_failure_);
}

/// Other hosts need the sums of this one: they hear why there will be none.
void Hierarchy::fail_job(const std::exception_ptr& error) {
  const std::lock_guard lock(mutex_);
  // After stop() a failure of the host's rounds is only their end.
  if (uplink_ == nullptr) return;
  uplink_->fail(error);
  if (leads_) link_.worker->fail(transport::to_string(link_.worker->self()) + ": " + text_of(error));
}

void Hierarchy::fail_rounds(const std::exception_ptr& error) {
  const std::lock_guard lock(mutex_);
  if (rounds_) return rounds_->fail(error);
  early_failure_ = error;
}

void Hierarchy::add_keys(const std::vector<KeySpec>& keys, const fusion::OwnedCut& cut,
                         std::vector<std::uint64_t>& load) {
  auto parts = place_keys(keys, 1, cut, options_.shard_bound_elements, host_load_);
  for (std::size_t k = 0; k < keys.size(); ++k) {
    const KeyId key = runs_.size();
    auto& runs = runs_.emplace_back();
    is_float64_.push_back(keys[k].is_float64());
    std::vector<KeySpec> sums;
    std::vector<Origin> origins;  // so that what codecs draw does not depend on the cut
    for (Part& part : parts[k]) {
      // The host's one server has the rank of its leader (transport/decorators/host_link.h).
      part.server = leader_;
      // Only the leader has a relay, but all count: numbers of the main job's keys must be the same on all
      // ranks.
      if (relay_) relay_->add_key(key, part.offset, upstream_keys_);
      runs.push_back({part, upstream_keys_++});
      // Each partition is a key upstream, so that one is summed while the next is encoded and a third is on
      // the wire.
      sums.push_back({keys[k].name, {part.count}, keys[k].dtype});
      origins.push_back({key, part.offset});
    }
    // A key that is large enough to be cut over all servers is, though its parts by themselves are not.
    const bool is_cut = keys[k].elements() >= options_.shard_bound_elements;
    auto homes = place_keys(sums, static_cast<std::uint32_t>(load.size()), cut,
                            is_cut ? 1 : std::numeric_limits<std::uint64_t>::max(), load);
    uplink_->add_keys(std::move(sums), std::move(homes), std::move(origins));
  }
  rounds_->add_keys(keys, std::move(parts));
}

void Hierarchy::add_bucket(const KeySpec& spec, const Part& home,
                           const std::vector<std::uint32_t>& segment_elements) {
  Part part = home;
  part.server = leader_;
  const KeyId key = runs_.size();
  if (relay_) relay_->add_key(key, part.offset, upstream_keys_);
  runs_.push_back({{part, upstream_keys_++}});
  is_float64_.push_back(false);
  uplink_->add_bucket(spec, home, segment_elements, Origin{key, 0});
  rounds_->add_bucket(spec, part, segment_elements);
}

Submission Hierarchy::on_run(const Run& run, Operation::Verb verb) const {
  Submission submission{run.upstream, {}};
  submission.operation.verb = verb;
  return submission;
}

void Hierarchy::store_upstream(std::span<const FirstValue> values) {
  std::vector<Submission> stores;
  std::vector<Ticket> stored;
  for (const FirstValue& first : values) {
    for (const Run& run : runs_[first.key]) {
      Operation& store = stores.emplace_back(on_run(run, Operation::Verb::kInit)).operation;
      store.in = first.value.subspan(run.part.offset, run.part.count);
      stored.push_back(store.done);
    }
  }
  uplink_->submit(std::move(stores));
  wait_all(stored);
}

std::uint64_t Hierarchy::elements_of(KeyId key) const {
  std::uint64_t elements = 0;
  for (const Run& run : runs_[key]) elements += run.part.count;
  return elements;
}

ElementType Hierarchy::type_of(KeyId key) const {
  return is_float64_[key] ? ElementType::kFloat64 : ElementType::kFloat32;
}

void Hierarchy::fetch_first_values(std::span<const KeyId> keys) {
  const auto bytes_of = [this](KeyId key) {
    return elements_of(key) * transport::bytes_of(type_of(key)) + transport::kHeaderBytes;
  };
  for (const auto piece : in_pieces(keys, bytes_of)) fetch_together(piece);
}

void Hierarchy::fetch_together(std::span<const KeyId> keys) {
  auto fetched = std::make_unique<Fetched>();
  fetched->values.resize(keys.size());
  std::vector<Submission> pulls, stores;
  std::vector<Ticket> pulled, stored;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const KeyId key = keys[i];
    const ElementType type = type_of(key);
    fetched->values[i].resize(elements_of(key) * transport::bytes_of(type));
    const ArrayView value(type, fetched->values[i]);
    for (const Run& run : runs_[key]) {
      Operation& pull = pulls.emplace_back(on_run(run, Operation::Verb::kPull)).operation;
      pull.out = value.subspan(run.part.offset, run.part.count);
      pulled.push_back(pull.done);
    }
    auto& [stored_key, store] = stores.emplace_back();
    stored_key = key;
    store.verb = Operation::Verb::kInit;
    store.in = value;
    stored.push_back(store.done);
  }
  try {
    uplink_->submit(std::move(pulls));
    // Before the stores, which send what the pulls have brought.
    wait_all(pulled);
    rounds_->submit(std::move(stores));
    wait_all(stored);
  } catch (...) {
    abandoned_.push_back(std::move(fetched));
    throw;
  }
}

Ticket Hierarchy::pull_upstream(KeyId key, Operation pull, std::shared_ptr<compress::Device> device) {
  const Upstream wanted{pull.out, pull.priority, std::move(device), {}};
  pull.verb = Operation::Verb::kPull;
  pull.done.then([this, key, wanted](const std::exception_ptr& error) {
    if (error) return wanted.done.fail(error);
    const std::lock_guard lock(mutex_);
    if (uplink_ == nullptr)
      return wanted.done.fail(std::make_exception_ptr(std::logic_error("pull: the store is closed")));
    fetch_upstream(key, wanted);
  });
  // For its place behind earlier operations of the key. What it brings is overwritten by the pull upstream.
  rounds_->submit(key, std::move(pull));
  return wanted.done;
}

/// With mutex_ held.
void Hierarchy::fetch_upstream(KeyId key, const Upstream& wanted) {
  struct Rest {
    std::mutex mutex;
    std::size_t runs;
    std::exception_ptr error;  ///< the first
  };
  const auto rest = std::make_shared<Rest>();  // owners: the pulls
  rest->runs = runs_[key].size();
  for (const Run& run : runs_[key]) {
    auto [key_there, operation] = on_run(run, Operation::Verb::kPull);
    operation.out = wanted.out.subspan(run.part.offset, run.part.count);
    if (wanted.device) operation.device.emplace().link = uplink_->devices().link(wanted.device);
    operation.priority = wanted.priority;
    operation.is_for_servers_own = true;
    operation.done.then([done = wanted.done, rest](const std::exception_ptr& error) {
      const std::lock_guard lock(rest->mutex);
      if (error && !rest->error) rest->error = error;
      if (--rest->runs > 0) return;  // the others still write to the caller's memory
      rest->error ? done.fail(rest->error) : done.succeed();
    });
    uplink_->submit(key_there, std::move(operation));
  }
}

void Hierarchy::leave(std::chrono::milliseconds timeout) {
  link_.worker->leave(timeout);
  // After the worker's own goodbye, so that those that wait for its pushes fail at once. Others may still
  // pull here.
  if (server_) server_->serve_on();
}

void Hierarchy::retire(std::chrono::milliseconds timeout) {
  if (!server_) return;
  server_->retire(timeout);
  server_.reset();
}

void Hierarchy::stop() {
  // First: no thread of the server enters the uplink behind this.
  if (relay_) relay_->stop();
  std::unique_ptr<RoundThread> ending;
  {
    const std::lock_guard lock(mutex_);
    uplink_ = nullptr;
    // It is destroyed without the mutex: its end fails what is in flight, and that calls fail_job().
    ending = std::move(rounds_);
  }
  ending.reset();
  // It serves on, and this worker's callers may free what they have pushed.
  if (server_) server_->copy_payloads_of(leader_);
}

bool Hierarchy::outlast(std::chrono::milliseconds timeout) {
  if (server_ && !server_->has_served_all(timeout)) return false;
  // Only the leader hosts the rendezvous of the host's job.
  if (!link_.rendezvous) return true;
  try {
    return link_.rendezvous->wait_for(timeout);
  } catch (const std::exception&) {  // the host's job has failed, and nobody waits any more
    return true;
  }
}

}  // namespace gradwire::kvstore
