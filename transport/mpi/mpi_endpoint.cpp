#include "transport/mpi/mpi_endpoint.h"

#include <unistd.h>

#include <csignal>
#include <random>
#include <utility>

#include "transport/address.h"
#include "transport/mpi/mpi_library.h"
#include "transport/nodes.h"
#include "transport/thread_name.h"

namespace gradwire::transport {
namespace {

using std::chrono::milliseconds;

void check_options(const MpiOptions& options) {
  const auto refuse = [](const std::string& given, const std::string& expected) {
    throw std::invalid_argument("connect_mpi: " + given + ", expected " + expected);
  };
  if (options.library.empty()) refuse("library is empty", "the path of libgradwire_mpi.so");
  if (options.liveness_timeout < milliseconds(10) || options.rendezvous_timeout < milliseconds(10)) {
    refuse("liveness_timeout or rendezvous_timeout is too short", "at least 10 ms");
  }
  constexpr std::size_t kMost = std::size_t{1} << 30;
  // The smallest holds one element of any type. The largest is the power of two below what an int counts.
  if (options.largest_message_bytes < 8 || options.largest_message_bytes > kMost) {
    refuse("largest_message_bytes=" + std::to_string(options.largest_message_bytes), "8 to 2^30");
  }
}

MpiEntry entry_of(const MpiOptions& options, MpiJob job) {
  MpiEntry entry;
  entry.job = job;
  std::random_device random;
  entry.epoch = std::uint64_t{random()} << 32 | random() | 1;  // never 0, which is "before the roster"
  entry.largest_message_bytes = options.largest_message_bytes;
  entry.pid = static_cast<std::uint64_t>(getpid());
  std::string host = options.host;
  if (host.empty()) {
    gethostname(entry.host.data(), entry.host.size() - 1);
    host = entry.host.data();
  } else {
    host.copy(entry.host.data(), entry.host.size() - 1);
  }
  const std::string machine = machine_identity(host);
  // Entries have one length, so a hash travels. Two machines of one hash, by chance, would only lose
  // checksums.
  if (!machine.empty()) entry.machine = std::hash<std::string>{}(machine);
  return entry;
}

/// Open MPI over TCP writes to connections whose other end has died. Such a write is to fail, and not to end
/// the process before it can say who died.
void block_sigpipe() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

std::string has_left_text(Node node) { return to_string(node) + " has left the job"; }

}  // namespace

// --- start and end ---

MpiEndpoint::MpiEndpoint(const MpiOptions& options, MpiJob job, int users)
    : options_(options), job_(job), backoff_(Clock::now()), open_users_(users) {}

std::shared_ptr<MpiEndpoint> MpiEndpoint::connect(const MpiOptions& options, MpiJob job, int users) {
  check_options(options);
  return connect(load_mpi(options.library), options, job, users);
}

std::shared_ptr<MpiEndpoint> MpiEndpoint::connect(std::unique_ptr<MpiApi> port, const MpiOptions& options,
                                                  MpiJob job, int users) {
  std::shared_ptr<MpiEndpoint> endpoint(new MpiEndpoint(options, job, users));
  endpoint->port_ = std::move(port);
  // The thread owns a share: it may outlive every user if MPI does not return.
  endpoint->thread_ = std::thread([endpoint] { endpoint->run(); });
  endpoint->await_start();
  return endpoint;
}

void MpiEndpoint::await_start() {
  Lock lock(mutex_);
  // MPI_Init_thread blocks until all processes have called it, and cannot be called off.
  const bool is_initialised = changed_.wait_for(lock, options_.rendezvous_timeout,
                                                [this] { return mpi_is_initialised_ || has_ended_; });
  if (!is_initialised) {
    has_ended_ = true;
    thread_
        .detach();  // nothing calls it back from inside MPI; it holds the endpoint, and ends once MPI returns
    throw TimeoutError("mpi: MPI_Init_thread did not return within " +
                       in_seconds(options_.rendezvous_timeout) +
                       "; every process that mpirun starts must create the store");
  }
  // Without a deadline of its own: mpi_rendezvous() on the I/O thread has one.
  changed_.wait(lock, [this] { return has_begun_ || has_ended_; });
  if (!start_error_) return;
  lock.unlock();
  thread_.join();
  std::rethrow_exception(start_error_);
}

void MpiEndpoint::run() {
  name_this_thread("gw mpi");
  block_sigpipe();  // before MPI starts threads, which inherit it
  try {
    join_job();
  } catch (...) {  // the caller gets it
    // Not finish(): ranks that have not come would keep MPI_Finalize waiting.
    port_->abandon();
    const Lock lock(mutex_);
    start_error_ = std::current_exception();
    has_ended_ = true;
    changed_.notify_all();
    return;
  }
  serve();
  const Lock lock(mutex_);
  has_ended_ = true;
  changed_.notify_all();
}

void MpiEndpoint::join_job() {
  port_->initialise();
  {
    const Lock lock(mutex_);
    // The caller gave up while MPI_Init_thread was blocked. Joining now would make this rank look present.
    if (has_ended_) throw TimeoutError("mpi: nobody waits for this job any more");
    mpi_is_initialised_ = true;
    changed_.notify_all();
  }
  const auto entries =
      mpi_rendezvous(*port_, entry_of(options_, job_), options_.rendezvous_timeout, options_.log);
  worker_.node.rank = server_.node.rank = port_->rank();
  world_ = {port_->size(), job_ == MpiJob::kPairs ? port_->size() : 0, entries.front().epoch};
  for (const MpiEntry& entry : entries)
    is_local_.push_back(entry.machine != 0 && entry.machine == entries[port_->rank()].machine);
  MpiPeers::Events& events = *this;
  peers_.emplace(*port_, options_, entries, worker_.traffic, events);
  sums_.emplace(*port_, options_.largest_message_bytes);
  // Last: until here MPI may take as long as the slowest rank needs to start.
  watch_.emplace(stuck_after(), [this] { on_stuck(); });
  const Lock lock(mutex_);
  has_begun_ = true;
  changed_.notify_all();
}

void MpiEndpoint::close() {
  {
    const Lock lock(mutex_);
    // The thread serves both users, and other ranks may still send to the node that is open.
    if (--open_users_ > 0) return;
    wake();
  }
  Lock lock(mutex_);
  changed_.wait(lock, [this] { return has_ended_; });
  lock.unlock();
  is_stuck_ ? thread_.detach() : thread_.join();  // it holds the endpoint, and ends should MPI ever return
}

// --- callers ---

void MpiEndpoint::wake() {
  // With mutex_ held, as all callers do: the I/O thread tests it under that lock before it sleeps.
  has_work_ = true;
  wake_.notify_all();
}

void MpiEndpoint::check_member(const Place& place) const {
  place.inbox.rethrow();
  if (place.is_leaving) throw TransportError(has_left_text(place.node));
}

bool MpiEndpoint::seals(std::uint32_t rank) const {
  if (options_.checksum != PayloadChecksum::kAuto) return options_.checksum == PayloadChecksum::kAlways;
  return !is_local_[rank];
}

bool MpiEndpoint::seals_payloads() const {
  for (std::uint32_t rank = 0; rank < is_local_.size(); ++rank) {
    // Frames to the own rank are copied in memory and never sealed (send_here).
    if (rank != worker_.node.rank && seals(rank)) return true;
  }
  return false;
}

void MpiEndpoint::seal(std::uint32_t rank, Buffer& payload) const {
  if (options_.checksum == PayloadChecksum::kOff) {
    payload.unseal();
  } else if (!payload.checksum() && seals(rank)) {
    payload.seal();
  }
}

void MpiEndpoint::attach(Place& place, Sink& sink) {
  place.inbox.attach(sink);
  const Lock lock(mutex_);
  wake();
}

void MpiEndpoint::send(Place& from, Node to, std::vector<Frame> frames) {
  check_route(from.node, world_, to, frames);
  if (frames.empty()) return;
  for (Frame& frame : frames) {
    frame.header.sender = from.node;
    frame.header.epoch = world_.epoch;
  }
  // Both nodes are in this process: what stays in it needs neither MPI nor a checksum.
  if (to.rank == from.node.rank) return send_here(from, place(to.role), std::move(frames));
  for (Frame& frame : frames) seal(to.rank, frame.payload);
  const std::uint64_t bytes = total_bytes(frames), count = frames.size();
  Outgoing outgoing{&from, to.rank, pack_for_mpi(std::move(frames))};
  const Lock lock(mutex_);
  check_member(from);
  // Messenger::send() drops what goes to a peer that has left. That rank may not receive any more.
  if (left_.contains(to)) return;
  from.traffic.sent(to, bytes, count);
  requests_.outgoing.push_back(std::move(outgoing));
  wake();
}

// Copied as a socket would: the sender's memory is its own again, however long the receiver keeps what came.
void MpiEndpoint::send_here(Place& from, Place& to, std::vector<Frame> frames) {
  for (Frame& frame : frames) frame.payload = frame.payload.copy();
  const std::uint64_t bytes = total_bytes(frames), count = frames.size();
  const Lock lock(mutex_);
  check_member(from);
  from.traffic.sent(to.node, bytes, count);
  // Counted as sent all the same, as it would be for a node of another rank.
  if (to.is_leaving) return;
  to.traffic.received(from.node, bytes, count);
  to.inbox.post_frames(from.node, std::move(frames));
  wake();
}

void MpiEndpoint::ask(std::uint64_t sequence, ExchangeAsk ask, const std::string& payload) {
  // peers_ calls MPI, so callers never touch it: what they want is queued for the I/O thread.
  requests_.others.push_back([=, this] { peers_->submit_exchange(sequence, ask, payload); });
  wake();
}

std::vector<std::string> MpiEndpoint::exchange(std::string_view name, std::string_view blob,
                                               milliseconds timeout) {
  Lock lock(mutex_);
  check_member(worker_);
  // Under the lock that queues the offer: rank 0 takes a lower number than the last for a repetition.
  const std::uint64_t sequence = exchange_count_++;
  exchanges_[sequence];
  ask(sequence, ExchangeAsk::kOffer, std::string(name) + '\0' + std::string(blob));
  try {
    auto blobs = await_exchange(lock, sequence, name, timeout);
    exchanges_.erase(sequence);
    return blobs;
  } catch (...) {
    exchanges_.erase(sequence);
    throw;
  }
}

std::vector<std::string> MpiEndpoint::await_exchange(Lock& lock, std::uint64_t sequence,
                                                     std::string_view name, milliseconds timeout) {
  AwaitedExchange& waiting = exchanges_[sequence];
  const auto is_settled = [&] { return failed_ || worker_.is_leaving || waiting.blobs || waiting.deserted; };
  // MPI loses nothing, so unlike over ZeroMQ the offer is never sent again.
  const auto ask_who_is_missing = [&] { ask(sequence, ExchangeAsk::kStatus, ""); };
  ExchangeWait wait({worker_.node, sequence, name, "worker 0"}, waiting,
                    {lock, changed_, is_settled, ask_who_is_missing});
  const std::string late = wait.within(timeout, options_.slow_exchange);
  if (waiting.blobs) return std::move(*waiting.blobs);
  check_member(worker_);
  if (waiting.deserted) throw TransportError(*waiting.deserted);
  lock.unlock();
  fail(to_string(worker_.node) + " gave up: " + late);  // who comes later must not go past it
  lock.lock();
  throw TimeoutError(late);
}

void MpiEndpoint::report_wait(const WaitReport& report) {
  const Lock lock(mutex_);
  if (failed_ || worker_.is_leaving) return;
  requests_.others.push_back([this, report] { peers_->submit_wait(report); });
  wake();
}

bool MpiEndpoint::note_failure(const std::string& text, FailureCause cause) {
  // Of one rank's two nodes the first cause counts for both, since they end with the same process.
  if (failed_) return false;
  failed_ = true;
  const auto scope = cause == FailureCause::kCalls ? Inbox::Scope::kCalls : Inbox::Scope::kJob;
  worker_.inbox.post_failure(text, scope);
  server_.inbox.post_failure(text, scope);
  changed_.notify_all();
  wake();
  return true;
}

void MpiEndpoint::fail(const std::string& text) {
  const Lock lock(mutex_);
  // Later failures are consequences, and every rank spreads the first that it gets.
  if (note_failure(text)) requests_.others.push_back([=, this] { peers_->spread_failure(text); });
}

void MpiEndpoint::note_error(Place& place, const std::string& error) {
  const Lock lock(mutex_);
  place.error = error;
}

void MpiEndpoint::leave(Place& place, milliseconds timeout) {
  Lock lock(mutex_);
  if (!place.is_leaving) {
    place.is_leaving = true;
    // Behind the packets that were queued before: take_requests() sends those first.
    requests_.others.push_back([this, &place] { start_leaving(place); });
    changed_.notify_all();
    wake();
  }
  // A failed job answers no goodbye; MPI reads what was being sent until it is given up.
  changed_.wait_for(lock, timeout,
                    [&] { return place.has_left || (failed_ && (mpi_was_ended_ || is_stuck_)); });
}

bool MpiEndpoint::outlast(milliseconds timeout) {
  Lock lock(mutex_);
  return changed_.wait_for(lock, timeout, [this] { return mpi_was_ended_ || has_ended_; });
}

void MpiEndpoint::sum(Buffer values, std::optional<ElementType> type, Collective::Done done) {
  Lock lock(mutex_);
  if (is_stuck_) {  // there is no thread of ours to tell it from
    lock.unlock();
    return done(std::move(values), std::make_exception_ptr(TransportError(worker_.inbox.failure())));
  }
  ++sums_under_way_;
  // Two counts: values are the caller's again before its Done returns, but close_sums() must not return while
  // a Done still runs.
  ++sums_untold_;
  const auto count_down = [this](std::size_t& count) {
    const Lock counting(mutex_);
    --count;
    changed_.notify_all();
  };
  auto done_and_counted = [=, this, done = std::move(done)](Buffer result, std::exception_ptr error) {
    count_down(sums_under_way_);
    done(std::move(result), std::move(error));
    count_down(sums_untold_);
  };
  // Other ranks have this rank's goodbye and start no sum with it. Refused on the I/O thread, where every
  // Done runs.
  const bool is_too_late = worker_.is_leaving && !failed_;
  auto refusal = is_too_late ? std::make_exception_ptr(TransportError(has_left_text(worker_.node))) : nullptr;
  requests_.sums.push_back({std::move(values), type, std::move(done_and_counted), std::move(refusal)});
  wake();
}

void MpiEndpoint::close_sums() {
  Lock lock(mutex_);
  // Other ranks are in these sums and would wait for this one until their deadline.
  if (const std::size_t count = sums_under_way_; count > 0) {
    lock.unlock();
    fail(to_string(worker_.node) + " closed its Collective while " + std::to_string(count) +
         " of its sums were under way");
    lock.lock();
  }
  changed_.wait(lock, [this] { return sums_untold_ == 0; });
}

}  // namespace gradwire::transport
