#include "kvstore/trace/trace.h"

#include <algorithm>
#include <array>
#include <memory>
#include <new>

namespace gradwire::kvstore {
namespace {

constexpr std::array<std::string_view, kStageCount> kNames = {
    "ready", "encode",         "queue", "send",         "receive",     "decode",
    "wait",  "server receive", "sum",   "reply encode", "reply queue", "reply send",
};

// Numbers, since addresses and ids of threads come again.
std::atomic<std::uint64_t> traces_made{0};
std::atomic<std::uint64_t> threads_met{0};

}  // namespace

std::string_view name_of(Stage stage) { return kNames.at(static_cast<std::size_t>(stage)); }

/// A ring that one thread writes and one reader at a time empties.
class Trace::Buffer {
 public:
  Buffer(std::uint64_t owner, std::size_t spans)
      : owner_(owner), spans_(spans), ring_(std::make_unique_for_overwrite<Slot[]>(spans)) {}

  std::uint64_t owner() const { return owner_; }

  void add(const Span& span) noexcept {
    auto& time = times_[static_cast<std::size_t>(span.stage)];  // which nobody else writes
    time.store(time.load(std::memory_order_relaxed) + std::chrono::nanoseconds(span.end - span.begin).count(),
               std::memory_order_relaxed);
    const std::uint64_t end = written_.load(std::memory_order_relaxed);
    // Acquire: the reader has copied a slot before it is written again.
    if (end - taken_.load(std::memory_order_acquire) == spans_) {
      // The newest is dropped, so that the first steps are complete (kvstore/README.md, "Time and traces").
      dropped_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    std::construct_at(&ring_[end % spans_].span, span);
    // Release: a reader that sees this end sees the span.
    written_.store(end + 1, std::memory_order_release);
  }

  void take(std::vector<Span>& into) {
    // Acquire: the spans before this end are written. What comes meanwhile is for the next call.
    const std::uint64_t end = written_.load(std::memory_order_acquire);
    for (std::uint64_t at = taken_.load(std::memory_order_relaxed); at < end; ++at)
      into.push_back(ring_[at % spans_].span);
    taken_.store(end, std::memory_order_release);
  }

  std::uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }
  std::chrono::nanoseconds time(std::size_t stage) const {
    return std::chrono::nanoseconds(times_[stage].load(std::memory_order_relaxed));
  }

 private:
  /// Has no value until it is written, so that memory that was never used is never touched.
  union Slot {
    Slot() {}
    Span span;
  };
  const std::uint64_t owner_;
  const std::size_t spans_;
  const std::unique_ptr<Slot[]> ring_;
  std::atomic<std::uint64_t> written_{0};
  std::atomic<std::uint64_t> taken_{0};
  std::atomic<std::uint64_t> dropped_{0};
  std::array<std::atomic<std::int64_t>, kStageCount> times_{};  ///< nanoseconds, by stage
};

Trace::Trace(const TraceOptions& options) : options_(options), id_(++traces_made) {}
Trace::~Trace() = default;

/// The calling thread's buffer, which it looks up again only when it has noted in another trace meanwhile.
Trace::Buffer* Trace::own_buffer() {
  thread_local std::uint64_t known_id = 0;
  thread_local Buffer* known = nullptr;
  // By number and not by address: a pointer of a trace that has ended is never used for another in its place.
  if (known_id == id_) return known;
  thread_local const std::uint64_t self = ++threads_met;
  const std::lock_guard lock(mutex_);
  const auto found =
      std::ranges::find_if(buffers_, [](const auto& buffer) { return buffer->owner() == self; });
  if (found != buffers_.end()) {
    known = found->get();
  } else if (buffers_.size() < options_.most_threads) {
    known = buffers_.emplace_back(std::make_unique<Buffer>(self, options_.spans_per_thread)).get();
  } else {
    // Remembered, too: further spans of this thread are counted without the lock.
    known = nullptr;
  }
  known_id = id_;
  return known;
}

void Trace::start() {
  if (is_on()) return;
  const std::lock_guard lock(mutex_);
  std::vector<Span> forgotten;
  // Emptied and not replaced: their threads hold pointers to them.
  for (const auto& buffer : buffers_) buffer->take(forgotten);
  readings_.clear();
  dropped_before_ = dropped_ever();
  started_ = with_offset(TraceClock::now());
  on_.store(true, std::memory_order_relaxed);
}

void Trace::add(const Span& span) noexcept {
  if (span.begin == TraceClock::time_point()) return;
  Buffer* buffer = nullptr;
  try {
    buffer = own_buffer();
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): counted below
  }
  if (buffer == nullptr) {
    homeless_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  Span shifted = span;
  shifted.begin = with_offset(span.begin);
  shifted.end = with_offset(span.end);
  buffer->add(shifted);
}

void Trace::name_key(Tier tier, std::uint64_t key, std::string name) {
  const std::lock_guard lock(mutex_);
  key_names_[{tier, key}] = std::move(name);
}

void Trace::add_reading(const ClockReading& reading) {
  const std::lock_guard lock(mutex_);
  readings_.push_back(reading);
}

std::vector<Span> Trace::take_spans() {
  std::vector<Span> spans;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& buffer : buffers_) buffer->take(spans);
    // Some end long after they began: replies of before a pause may only be on their way now.
    std::erase_if(spans, [this](const Span& span) { return span.begin < started_; });
  }
  // Threads' buffers are emptied one after the other. A timeline is read in order of time.
  std::ranges::stable_sort(spans, {}, &Span::begin);
  return spans;
}

std::map<std::pair<Tier, std::uint64_t>, std::string> Trace::key_names() const {
  const std::lock_guard lock(mutex_);
  return key_names_;
}

std::vector<ClockReading> Trace::readings() const {
  const std::lock_guard lock(mutex_);
  return readings_;
}

std::uint64_t Trace::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_ever() - dropped_before_;
}

/// With the lock held.
std::uint64_t Trace::dropped_ever() const {
  std::uint64_t dropped = homeless_.load(std::memory_order_relaxed);
  for (const auto& buffer : buffers_) dropped += buffer->dropped();
  return dropped;
}

std::array<std::chrono::nanoseconds, kStageCount> Trace::stage_times() const {
  std::array<std::chrono::nanoseconds, kStageCount> times{};
  const std::lock_guard lock(mutex_);
  for (const auto& buffer : buffers_) {
    for (std::size_t stage = 0; stage < kStageCount; ++stage) times[stage] += buffer->time(stage);
  }
  return times;
}

}  // namespace gradwire::kvstore
