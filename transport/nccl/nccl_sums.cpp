#include "transport/nccl/nccl_sums.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "transport/messenger.h"
#include "transport/nodes.h"
#include "transport/thread_name.h"

namespace gradwire::transport {
namespace {

using std::chrono::milliseconds;

// Enough that copies in both directions and a sum overlap.
constexpr std::size_t kMostUnderWay = 4;
// Pinned memory and device memory are slow to allocate, so small sums share slots of one size.
constexpr std::size_t kSmallestSlotBytes = std::size_t{64} << 10;
// Between two questions to NCCL, which has nothing to sleep on.
constexpr auto kPause = std::chrono::microseconds(50);

// NCCL has no 16-bit integers. Sums of 32 bits, cut to 16, wrap as sums of 16 bits do.
bool is_widened(std::optional<ElementType> type) { return type == ElementType::kInt16; }

template <typename From, typename To>
void convert(std::span<const std::byte> from, std::span<std::byte> to) {
  for (std::size_t i = 0; i < from.size() / sizeof(From); ++i) {
    From value;
    // By memcpy: callers' bytes need not be aligned to their type.
    std::memcpy(&value, from.data() + i * sizeof(From), sizeof(From));
    const auto converted = static_cast<To>(value);
    std::memcpy(to.data() + i * sizeof(To), &converted, sizeof(To));
  }
}

}  // namespace

NcclSums::NcclSums(std::unique_ptr<NcclPort> port, std::uint32_t rank, std::uint32_t ranks,
                   const NcclPatience& patience)
    : rank_(rank), ranks_(ranks), patience_(patience), port_(std::move(port)) {}

std::shared_ptr<NcclSums> NcclSums::join(std::unique_ptr<NcclPort> port, const NcclPort::Id& id,
                                         std::uint32_t rank, std::uint32_t ranks,
                                         const NcclPatience& patience) {
  std::shared_ptr<NcclSums> sums(new NcclSums(std::move(port), rank, ranks, patience));
  // The thread owns a share: it is left behind where NCCL does not return, and must find everything it uses.
  sums->thread_ = std::thread([sums, id] { sums->run(id); });
  sums->await_start();
  return sums;
}

void NcclSums::await_start() {
  std::unique_lock lock(mutex_);
  // The thread keeps the deadline itself; the second one is for an NCCL that does not return.
  const bool is_known = changed_.wait_for(lock, patience_.join + patience_.end,
                                          [this] { return has_begun_ || error_ != nullptr; });
  if (has_begun_) return;
  // Copied under the lock. close() then waits for the thread, which is aborting the communicator.
  const auto error = error_;
  lock.unlock();
  close();
  if (is_known) std::rethrow_exception(error);
  throw TimeoutError("nccl: worker " + std::to_string(rank_) + " of " + std::to_string(ranks_) +
                     ": ncclCommInitRank did not return within " +
                     in_seconds(patience_.join + patience_.end));
}

void NcclSums::add(Buffer values, std::optional<ElementType> type, Collective::Done done) {
  std::unique_lock lock(mutex_);
  if (!error_) {
    queued_.push_back({std::move(values), type, std::move(done), count_++, {}, nullptr});
    wake_.notify_one();
    return;
  }
  lock.unlock();
  // Without the lock: a Done may call add() again. error_ is set once and never changes.
  done(std::move(values), error_);
}

void NcclSums::close() {
  std::unique_lock lock(mutex_);
  is_closing_ = true;
  wake_.notify_one();
  // Once to end the communicator and, failing that, once to abort it.
  const bool has_ended = changed_.wait_for(lock, 2 * patience_.end, [this] { return has_ended_; });
  lock.unlock();
  has_ended ? thread_.join() : thread_.detach();  // it holds this, and ends should NCCL ever return
}

// --- the thread ---

void NcclSums::run(const NcclPort::Id& id) {
  name_this_thread("gw nccl");
  try {
    join_communicator(id);
    serve();
    end();
  } catch (const std::exception& cause) {
    // Before the abort, which may hang where ranks have died (NVIDIA/nccl issues 863 and 1013): callers must
    // not wait for it.
    fail(cause.what());
    port_->abort();  // slots stay until it has: NCCL may still write to them
  }
  under_way_.clear();  // here, where the device is the current one
  free_slots_.clear();
  small_slots_.clear();
  port_.reset();
  const std::lock_guard lock(mutex_);
  has_ended_ = true;
  changed_.notify_all();
}

void NcclSums::join_communicator(const NcclPort::Id& id) {
  const auto deadline = Clock::now() + patience_.join;
  port_->begin_join(id, rank_, ranks_);
  // The communicator does not block (config.blocking), so a rank that never comes is found by this deadline.
  await_ready([&] {
    if (Clock::now() > deadline)
      throw TransportError("not every rank had joined the communicator after " + in_seconds(patience_.join));
  });
  const std::lock_guard lock(mutex_);
  has_begun_ = true;
  changed_.notify_all();
}

void NcclSums::end() {
  const auto deadline = Clock::now() + patience_.end;
  // Finalised before it is destroyed, and only where all is well: both may wait for the other ranks.
  port_->begin_end();
  await_ready([&] {
    if (Clock::now() > deadline) throw TransportError("the communicator did not end in time");
  });
  port_->end();
}

void NcclSums::fail(const std::string& cause) {
  std::deque<Operation> queued;
  std::exception_ptr error;
  {
    const std::lock_guard lock(mutex_);
    error_ = error = std::make_exception_ptr(TransportError("nccl: worker " + std::to_string(rank_) + " of " +
                                                            std::to_string(ranks_) + ": " + cause));
    // Under the lock that sets error_: what comes later is refused by add(), so no Done is lost or called
    // twice.
    queued.swap(queued_);
    changed_.notify_all();
  }
  // The slots stay in under_way_: NCCL may still write to them until it is aborted (run).
  for (Operation& operation : under_way_) operation.done(std::move(operation.values), error);
  for (Operation& operation : queued) operation.done(std::move(operation.values), error);
}

void NcclSums::serve() {
  while (wait_for_work()) {
    while (begin_queued()) {
    }
    finish_done();
  }
}

bool NcclSums::wait_for_work() {
  std::unique_lock lock(mutex_);
  const auto has_news = [this] {
    // A full pipeline takes nothing new, so new operations are no reason to wake up.
    return is_closing_ || (!queued_.empty() && under_way_.size() < kMostUnderWay);
  };
  if (under_way_.empty()) {
    wake_.wait(lock, has_news);
  } else {
    wake_.wait_for(lock, kPause, has_news);
  }
  if (!is_closing_) return true;
  // Not a clean end: ncclCommFinalize waits for what is under way, and other ranks may never come to that.
  const std::size_t left = queued_.size() + under_way_.size();
  if (left == 0) return false;
  throw TransportError("it left while " + std::to_string(left) +
                       (left == 1 ? " operation was under way" : " operations were under way"));
}

bool NcclSums::begin_queued() {
  {
    const std::lock_guard lock(mutex_);
    if (queued_.empty() || under_way_.size() == kMostUnderWay) return false;
    under_way_.push_back(std::move(queued_.front()));  // from now on a failure reaches its Done
    queued_.pop_front();
  }
  Operation& operation = under_way_.back();
  // From its own beginning, and not from add(): what queues behind a slow rank is not late by itself.
  operation.deadline = Clock::now() + patience_.sum;
  // An empty operation has no slot, and ends in its turn: order is that of the calls on every rank.
  if (operation.values.size_bytes() > 0) begin(operation);
  return true;
}

void NcclSums::begin(Operation& operation) {
  const auto values = std::as_const(operation.values).bytes();
  // Of a gathering, the slot holds all ranks' blocks.
  const std::size_t factor = !operation.type ? ranks_ : is_widened(operation.type) ? 2 : 1;
  operation.slot_bytes = values.size() * factor;
  operation.slot = take_slot(operation.slot_bytes);
  const auto staged = operation.slot->bytes();
  if (!operation.type) {
    // At its place among the blocks, so that NCCL gathers in place.
    std::memcpy(staged.data() + rank_ * values.size(), values.data(), values.size());
    port_->begin_all_gather(*operation.slot, values.size());
  } else if (is_widened(operation.type)) {
    convert<std::int16_t, std::int32_t>(values, staged);
    port_->begin_all_reduce(*operation.slot, values.size() / sizeof(std::int16_t), ElementType::kInt32);
  } else {
    std::memcpy(staged.data(), values.data(), values.size());
    port_->begin_all_reduce(*operation.slot, values.size() / bytes_of(*operation.type), *operation.type);
  }
  // A non-blocking communicator may still be starting the operation. The copy back must be queued behind it.
  await_ready([&] { check_deadline(operation); });
  port_->fetch(*operation.slot, operation.slot_bytes);
}

void NcclSums::finish_done() {
  static_cast<void>(port_->is_ready());  // throws where this rank or another has failed
  const auto is_done = [this](const Operation& operation) {
    return operation.slot == nullptr || port_->is_done(*operation.slot);
  };
  // From the front only: operations end in the order of one stream, and Dones are called in it.
  while (!under_way_.empty() && is_done(under_way_.front())) finish_first();
  // The oldest one is enough, since the others began later.
  if (!under_way_.empty()) return check_deadline(under_way_.front());
  small_slots_.clear();  // not earlier: this thread would wait for the other ranks, and look at no deadline
}

void NcclSums::finish_first() {
  Operation operation = std::move(under_way_.front());
  // Off the list before its Done is called: should that throw, fail() must not call it again.
  under_way_.pop_front();
  Buffer values = std::move(operation.values);
  if (operation.slot != nullptr) {
    const auto result = operation.slot->bytes().first(operation.slot_bytes);
    // A gathered result is larger than the block. A sum goes back into the caller's own memory.
    if (!operation.type) values = pool_.take(result.size());
    if (is_widened(operation.type)) {
      convert<std::int32_t, std::int16_t>(result, values.bytes());
    } else {
      std::memcpy(values.bytes().data(), result.data(), result.size());
    }
    // Kept: pinned memory is slow to allocate, and cudaFree waits for the whole device.
    free_slots_.push_back(std::move(operation.slot));
  }
  operation.done(std::move(values), nullptr);
}

void NcclSums::check_deadline(const Operation& operation) const {
  if (Clock::now() <= operation.deadline) return;
  throw TransportError(
      std::string(operation.type ? "sum " : "gathering ") + std::to_string(operation.number) + " (" +
      std::to_string(operation.values.size_bytes()) + " bytes) has not ended after " +
      in_seconds(patience_.sum) +
      "; every rank must push the same keys in the same order, and be alive and not slower than that");
}

template <typename Check>
void NcclSums::await_ready(const Check& check) {
  while (!port_->is_ready()) {
    check();
    std::this_thread::sleep_for(kPause);
  }
}

std::unique_ptr<NcclPort::Slot> NcclSums::take_slot(std::size_t size_bytes) {
  const auto fits = [&](const auto& slot) { return slot->bytes().size() >= size_bytes; };
  auto found = std::ranges::find_if(free_slots_, fits);
  if (found == free_slots_.end()) {
    if (!free_slots_.empty()) {  // too small: a larger one takes its place
      small_slots_.push_back(std::move(free_slots_.back()));
      free_slots_.pop_back();
    }
    free_slots_.push_back(port_->make_slot(std::max(std::bit_ceil(size_bytes), kSmallestSlotBytes)));
    found = free_slots_.end() - 1;
  }
  auto slot = std::move(*found);
  free_slots_.erase(found);
  return slot;
}

}  // namespace gradwire::transport
