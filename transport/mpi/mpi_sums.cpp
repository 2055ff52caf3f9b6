#include "transport/mpi/mpi_sums.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace gradwire::transport {
namespace {

// MPI looks at every one under way each time it is asked. Measured: transport/README.md ("Why it is like
// this").
constexpr std::size_t kMostUnderWay = 16;

}  // namespace

MpiSums::MpiSums(MpiApi& port, std::size_t largest_message_bytes)
    : port_(port), largest_message_bytes_(largest_message_bytes) {}

void MpiSums::all_reduce(Buffer values, ElementType type, Collective::Done done) {
  add({.values = std::move(values), .gathered = {}, .type = type, .done = std::move(done)});
}

void MpiSums::all_gather(Buffer block, Collective::Done done) {
  Buffer gathered = pool_.take(block.size_bytes() * port_.size());
  add({.values = std::move(block), .gathered = std::move(gathered), .type = {}, .done = std::move(done)});
}

void MpiSums::add(Sum sum) {
  std::unique_lock lock(mutex_);
  // Only queued: collectives start in one order on all ranks, and this is called in that order.
  if (!error_) return queued_.push_back(std::make_shared<Sum>(std::move(sum)));
  lock.unlock();
  // Without the lock, as the header promises. error_ is set once and never changes.
  sum.done(std::move(sum.values), error_);
}

std::size_t MpiSums::start_queued() {
  std::size_t count = 0;
  for (SumPointer sum = take_queued(); sum; sum = take_queued()) {
    start(sum);
    ++count;
  }
  return count;
}

MpiSums::SumPointer MpiSums::take_queued() {
  const std::lock_guard lock(mutex_);
  // Listed before it is started: fail() on another thread must find it, or its Done would never be called.
  if (queued_.empty() || started_.size() >= kMostUnderWay) return nullptr;
  started_.push_back(std::move(queued_.front()));
  queued_.pop_front();
  return started_.back();
}

void MpiSums::start(const SumPointer& sum) {
  sum->pieces = 1;  // this call: an empty one ends with it
  const std::size_t size_bytes = sum->values.size_bytes();
  const std::size_t whole_elements = sum->type ? bytes_of(*sum->type) : 1;
  // A piece ends between two elements, or MPI would add halves of them.
  const std::size_t piece_bytes =
      std::max(largest_message_bytes_ / whole_elements, std::size_t{1}) * whole_elements;
  const std::span<std::byte> bytes = sum->values.bytes();
  for (std::size_t at = 0; at < size_bytes; at += piece_bytes) {
    // While MPI was in the piece before, fail() may have handed the buffer back.
    if (has_failed()) return;
    ++sum->pieces;
    const auto piece = bytes.subspan(at, std::min(piece_bytes, size_bytes - at));
    const auto done = [this, sum] { finish_piece(sum); };
    if (sum->type) {
      port_.all_reduce(piece, *sum->type, done);
    } else {
      // Blocks of all ranks are size_bytes apart, however short the piece is.
      port_.all_gather(piece, sum->gathered.bytes().data() + at, size_bytes, done);
    }
  }
  finish_piece(sum);
}

bool MpiSums::has_failed() const {
  const std::lock_guard lock(mutex_);
  return error_ != nullptr;
}

void MpiSums::finish_piece(const SumPointer& sum) {
  if (--sum->pieces > 0) return;
  {
    const std::lock_guard lock(mutex_);
    if (std::erase(started_, sum) == 0) return;  // fail() has ended it
  }
  sum->done(sum->type ? std::move(sum->values) : std::move(sum->gathered), nullptr);
}

std::size_t MpiSums::pieces_under_way() const {
  const std::lock_guard lock(mutex_);
  // Sums that have begun only: after a failure the endpoint subtracts them from all operations of MPI.
  return std::accumulate(started_.begin(), started_.end(), std::size_t{0},
                         [](std::size_t count, const SumPointer& sum) { return count + sum->pieces; });
}

void MpiSums::fail(std::exception_ptr error) {
  std::deque<SumPointer> ended;
  {
    const std::lock_guard lock(mutex_);
    if (error_) return;
    error_ = std::move(error);
    // Emptied, so that a piece that still ends finds its sum gone and calls no Done a second time.
    ended = std::exchange(started_, {});
    std::ranges::move(std::exchange(queued_, {}), std::back_inserter(ended));
  }
  // The sum itself lives as long as its operations do, which may be for ever (MpiApi::abandon).
  for (const SumPointer& sum : ended) std::exchange(sum->done, nullptr)(std::move(sum->values), error_);
}

}  // namespace gradwire::transport
