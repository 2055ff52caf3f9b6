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
      if (!on_fault(to_string(worker_.node) + ": " + error.what())) give_up_mpi();
    }
    sleep(now);
  }
}

bool MpiEndpoint::step(Clock::time_point now) {
  bool moved = false;
  {
    const MpiWatchdog::Stay stay(*watch_, now);
    moved = take_requests();
    if (!mpi_is_over_) moved |= work_with_mpi(now);
  }
  if (is_stuck_) return false;
  deliver(worker_);
  deliver(server_);
  settle_failure(now);
  finish_when_all_have_parted();
  return moved;
}

bool MpiEndpoint::take_requests() {
  if (!has_work_.exchange(false)) return false;
  Requests requests;
  {
    const Lock lock(mutex_);
    std::swap(requests, requests_);
  }
  for (Outgoing& outgoing : requests.outgoing) send_packet(std::move(outgoing));
  for (SumRequest& request : requests.sums) start_sum(std::move(request));
  for (const auto& request : requests.others) {
    if (!mpi_is_over_) request();
  }
  return !requests.outgoing.empty() || !requests.sums.empty() || !requests.others.empty();
}

void MpiEndpoint::send_packet(Outgoing outgoing) {
  if (worker_.inbox.failed() || mpi_is_over_) return;
  Place& from = *outgoing.from;
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
  on_goodbye(place.node, error);
  ++place.under_way;
  peers_->say_goodbye(place.node, error, [this, &place] { note_sent(place); });
}

void MpiEndpoint::note_sent(Place& place) {
  if (--place.under_way > 0) return;
  const Lock lock(mutex_);
  if (!left_.contains(place.node)) return;
  place.has_left = true;
  changed_.notify_all();
}

bool MpiEndpoint::work_with_mpi(Clock::time_point now) {
  std::size_t events = port_->poll() + peers_->receive();
  if (!worker_.inbox.failed()) events += sums_->start_queued();
  if (!parting_since_) peers_->tick(now);
  part_when_all_have_left(now);
  return events > 0;
}

void MpiEndpoint::deliver(Place& place) {
  try {
    place.inbox.deliver();
  } catch (const std::exception& error) {  // a Sink's
    on_fault(to_string(place.node) + ": " + error.what());
  }
}

void MpiEndpoint::sleep(Clock::time_point now) {
  const auto has_work = [this] { return has_work_.load(); };
  Lock lock(mutex_, std::defer_lock);
  if (mpi_is_over_) {
    lock.lock();
    wake_.wait(lock, [&] { return has_work() || open_users_ == 0; });
    return;
  }
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
    const Lock lock(mutex_);
    if (left_.size() < world_.workers + world_.servers || sums_untold_ > 0 || port_->under_way() > 0) return;
    parting_since_ = now;
    port_->barrier([this] { has_parted_ = true; });
  } else if (!has_parted_ && now - *parting_since_ >= options_.leave_timeout) {
    on_fault("mpi: not every rank came to the end of the job within " + in_seconds(options_.leave_timeout));
  }
}

// MPI_Finalize may wait for a rank that has initialised MPI for more than us.
void MpiEndpoint::finish_when_all_have_parted() {
  if (!has_parted_ || mpi_is_over_ || port_->under_way() > 0) return;
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
    note_failure(to_string(worker_.node) + ": MPI has not returned for " + in_seconds(stuck_after()) +
                 "; another rank or its network may have died");
    std::swap(requests, requests_);
  }
  const auto error = std::make_exception_ptr(TransportError(worker_.inbox.failure()));
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
  Place& to = place(from.role == Role::kWorker ? Role::kServer : Role::kWorker);
  to.traffic.received(from, total_bytes(frames), frames.size());
  to.inbox.post_frames(from, std::move(frames));
}

void MpiEndpoint::on_goodbye(Node peer, const std::string& error) {
  const Lock lock(mutex_);
  left_.insert(peer);
  for (Place* place : {&worker_, &server_}) {
    if (!place->is_leaving) place->inbox.post_goodbye(peer, error);
  }
}

void MpiEndpoint::on_exchange_result(std::uint64_t sequence, ExchangeAnswer answer,
                                     std::string_view payload) {
  const Lock lock(mutex_);
  const auto found = exchanges_.find(sequence);
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
