// MpiEndpoint: what its I/O thread does once the job has begun.
#include <utility>

#include "transport/mpi/mpi_endpoint.h"
#include "transport/nodes.h"

namespace gradwire::transport {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLastWords{2'000};  // for a failure to reach the other ranks, and what was being sent

}  // namespace

void MpiEndpoint::serve() {
  while (!is_over() && !is_stuck_) {
    const auto now = Clock::now();
    try {
      if (step(now)) backoff_.moved(Clock::now());
    } catch (const std::exception& error) {
      // After one failure, another one means that MPI itself is broken: nothing more can be sent or waited
      // for.
      if (!on_fault(to_string(worker_.node) + ": " + error.what())) give_up_mpi();
    }
    sleep(now);
  }
}

bool MpiEndpoint::step(Clock::time_point now) {
  bool moved = false;
  {
    // The watch sees MPI alone, and not the deliveries below: a slow Sink is no dead peer.
    const MpiWatchdog::Stay stay(*watch_, now);
    moved = take_requests();
    if (!mpi_is_over_) moved |= work_with_mpi(now);
  }
  // The watch has ended Sinks and sums in this thread's place. Whatever MPI returned late concerns nobody.
  if (is_stuck_) return false;
  deliver(worker_);
  deliver(server_);
  settle_failure(now);
  finish_when_all_have_parted();
  return moved;
}

bool MpiEndpoint::take_requests() {
  // Cleared before the queue is read: a request in between costs one turn that finds nothing, and is never
  // lost.
  if (!has_work_.exchange(false)) return false;
  Requests requests;
  {
    const Lock lock(mutex_);
    std::swap(requests, requests_);
  }
  for (Outgoing& outgoing : requests.outgoing) send_packet(std::move(outgoing));
  for (SumRequest& request : requests.sums) start_sum(std::move(request));
  // After the packets: a goodbye among these comes behind what was queued before it.
  for (const auto& request : requests.others) {
    if (!mpi_is_over_) request();
  }
  return !requests.outgoing.empty() || !requests.sums.empty() || !requests.others.empty();
}

void MpiEndpoint::send_packet(Outgoing outgoing) {
  // The other ranks drop it anyway, and each packet under way puts off the end of MPI (settle_failure).
  if (worker_.inbox.failed() || mpi_is_over_) return;
  Place& from = *outgoing.from;
  // Before the send, whose end counts it down: the last packet of a leaver tells that all has arrived.
  ++from.under_way;
  peers_->send(outgoing.rank, std::move(outgoing.packet), [this, &from] { note_sent(from); });
}

void MpiEndpoint::start_sum(SumRequest request) {
  if (request.refusal) {
    request.done(std::move(request.values), request.refusal);
  } else if (request.type) {
    sums_->all_reduce(std::move(request.values), *request.type, std::move(request.done));
  } else {
    sums_->all_gather(std::move(request.values), std::move(request.done));
  }
}

// A node whose job has failed must not look like one that left cleanly.
void MpiEndpoint::start_leaving(Place& place) {
  if (worker_.inbox.failed()) return;
  std::string error;
  {
    const Lock lock(mutex_);
    error = place.error;
  }
  // To this rank's other node, which no message reaches.
  on_goodbye(place.node, error);
  // Before the call, which reports the end at once where there is no other rank.
  ++place.under_way;
  peers_->say_goodbye(place.node, error, [this, &place] { note_sent(place); });
}

void MpiEndpoint::note_sent(Place& place) {
  if (--place.under_way > 0) return;
  const Lock lock(mutex_);
  // It only has nothing under way for the moment, and has not said goodbye.
  if (!left_.contains(place.node)) return;
  place.has_left = true;
  changed_.notify_all();
}

bool MpiEndpoint::work_with_mpi(Clock::time_point now) {
  std::size_t events = port_->poll() + peers_->receive();
  // A sum of a failed job would wait for ranks that start none any more.
  if (!worker_.inbox.failed()) events += sums_->start_queued();
  // All have left: a rank that is silent from now on has gone rightly, and may not receive heartbeats any
  // more.
  if (!parting_since_) peers_->tick(now);
  part_when_all_have_left(now);
  return events > 0;
}

void MpiEndpoint::deliver(Place& place) {
  try {
    place.inbox.deliver();
  } catch (const std::exception& error) {  // a Sink's
    // The job fails, and MPI goes on: the other ranks still have to receive that.
    on_fault(to_string(place.node) + ": " + error.what());
  }
}

void MpiEndpoint::sleep(Clock::time_point now) {
  const auto has_work = [this] { return has_work_.load(); };
  Lock lock(mutex_, std::defer_lock);
  // Nothing comes by MPI any more. The thread stays for what users still ask, such as a sum that it must
  // refuse.
  if (mpi_is_over_) {
    lock.lock();
    wake_.wait(lock, [&] { return has_work() || open_users_ == 0; });
    return;
  }
  // MPI moves messages only while it is called, so with some under way the pauses are short.
  const auto pause = backoff_.pause(now, port_->under_way() > 0);
  if (pause == Clock::duration::zero()) return std::this_thread::yield();
  lock.lock();
  wake_.wait_for(lock, pause, has_work);
}

bool MpiEndpoint::is_over() {
  if (!mpi_is_over_) return false;
  const Lock lock(mutex_);
  return open_users_ == 0;
}

// Nobody stops asking MPI before everybody has what was sent: the barrier says that.
void MpiEndpoint::part_when_all_have_left(Clock::time_point now) {
  if (worker_.inbox.failed()) return;
  if (!parting_since_) {
    {
      const Lock lock(mutex_);
      // A barrier is a collective on the communicator of the sums, so all ranks must be behind their last
      // sum.
      if (left_.size() < world_.workers + world_.servers || sums_untold_ > 0) return;
    }
    if (port_->under_way() > 0) return;
    parting_since_ = now;
    // Without the lock: if MPI does not return from this call, on_stuck() needs it.
    port_->barrier([this] { has_parted_ = true; });
  } else if (!has_parted_ && now - *parting_since_ >= options_.leave_timeout) {
    // A rank that died after its goodbye would keep the barrier, and with it this process, waiting.
    on_fault("mpi: not every rank came to the end of the job within " + in_seconds(options_.leave_timeout));
  }
}

// MPI_Finalize may wait for a rank that has initialised MPI for more than us.
void MpiEndpoint::finish_when_all_have_parted() {
  // finish() requires that nothing is under way.
  if (!has_parted_ || mpi_is_over_ || port_->under_way() > 0) return;
  // Before finish(), which may throw: MPI is not called again either way.
  mpi_is_over_ = true;
  try {
    port_->finish();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): all have left; there is nobody to tell
  }
  note_end_of_mpi();
}

void MpiEndpoint::note_end_of_mpi() {
  const Lock lock(mutex_);
  mpi_was_ended_ = true;
  changed_.notify_all();
}

// Returns whether the other ranks can be told.
bool MpiEndpoint::on_fault(const std::string& text) {
  {
    const Lock lock(mutex_);
    // The first failure was spread already, or came from another rank, which has spread it.
    if (!note_failure(text)) return false;
  }
  if (mpi_is_over_) return false;
  try {
    peers_->spread_failure(text);
    return true;
  } catch (const std::exception&) {  // the first cause is what counts
    return false;
  }
}

// What is being sent is still received, and dropped: else MPI would go on reading memory that is its owner's
// again.
void MpiEndpoint::settle_failure(Clock::time_point now) {
  if (mpi_is_over_ || !worker_.inbox.failed()) return;
  if (!failed_at_) failed_at_ = now;
  // Sums do not count: with a dead rank they never end.
  const bool nothing_is_sent = port_->under_way() == sums_->pieces_under_way();
  if ((peers_->is_failure_known() && nothing_is_sent) || now - *failed_at_ >= kLastWords) give_up_mpi();
}

// Sums are ended after MPI, which may work on them as long as it is called.
void MpiEndpoint::give_up_mpi() {
  if (mpi_is_over_) return;
  mpi_is_over_ = true;
  port_->abandon();
  sums_->fail(std::make_exception_ptr(TransportError(worker_.inbox.failure())));
  note_end_of_mpi();
}

// What the I/O thread would do, were it not in MPI: Sinks and sums hear of it from here.
void MpiEndpoint::on_stuck() {
  Requests requests;
  {
    const Lock lock(mutex_);
    is_stuck_ = true;
    // Not spread to the other ranks: that takes MPI.
    note_failure(to_string(worker_.node) + ": MPI has not returned for " + in_seconds(stuck_after()) +
                 "; another rank or its network may have died");
    std::swap(requests, requests_);
  }
  const auto error = std::make_exception_ptr(TransportError(worker_.inbox.failure()));
  // Without the lock: a Done may take it, and the counting in sum() does.
  for (SumRequest& request : requests.sums) request.done(std::move(request.values), error);
  sums_->fail(error);
  for (Place* place : {&worker_, &server_}) {
    try {
      place->inbox.deliver();
    } catch (
        const std::exception&) {  // NOLINT(bugprone-empty-catch): a Sink's; the first cause is what counts
    }
  }
  const Lock lock(mutex_);
  has_ended_ = true;
  changed_.notify_all();
}

void MpiEndpoint::on_frames(Node from, std::vector<Frame> frames) {
  // A rank has one node of each role, and frames go from workers to servers or back.
  Place& to = place(from.role == Role::kWorker ? Role::kServer : Role::kWorker);
  to.traffic.received(from, total_bytes(frames), frames.size());
  to.inbox.post_frames(from, std::move(frames));
}

void MpiEndpoint::on_goodbye(Node peer, const std::string& error) {
  const Lock lock(mutex_);
  left_.insert(peer);
  for (Place* place : {&worker_, &server_}) {
    // A node that leaves waits for nobody.
    if (!place->is_leaving) place->inbox.post_goodbye(peer, error);
  }
}

void MpiEndpoint::on_exchange_result(std::uint64_t sequence, ExchangeAnswer answer,
                                     std::string_view payload) {
  const Lock lock(mutex_);
  const auto found = exchanges_.find(sequence);
  // A caller that has given up, or has its result, is not listed any more.
  if (found == exchanges_.end()) return;
  found->second.take(answer, payload);
  changed_.notify_all();
}

void MpiEndpoint::on_failure(const std::string& text, FailureCause cause) {
  const Lock lock(mutex_);
  note_failure(text, cause);
}

void MpiEndpoint::on_question(const std::set<std::string>& rounds) { worker_.inbox.post_question(rounds); }

}  // namespace gradwire::transport
