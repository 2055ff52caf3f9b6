// Trace records what happened to each partition and when: spans, for a timeline.
//
// Every thread writes to a buffer of its own, without a lock. A full buffer drops new spans and counts them.
// Without a trace, or with it off, a hook costs one branch.
//
// Threading: any thread may call every method. A span is recorded by the thread that saw its end.
// Lifetime: shared, because payloads in flight record their end after their senders are gone.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gradwire::kvstore {

/// What a partition was going through. Part of the format of timeline files (FORMAT.md), never renumber.
enum class Stage : std::uint8_t {
  // a worker's
  kReady = 0,    ///< given by the caller, until its round begins
  kEncode = 1,   ///< codec and residual, checksum
  kQueue = 2,    ///< until priority and credit let it go
  kSend = 3,     ///< handed to the Messenger, until the socket has written it
  kReceive = 4,  ///< the answer is here, until a thread decodes it
  kDecode = 5,   ///< into the caller's memory
  kWait = 6,     ///< the caller is blocked for the whole key
  // a server's
  kServerReceive = 7,  ///< a push is here, until it was checked and taken
  kSum = 8,            ///< all are here: decoded, added, and in the same pass encoded
  kReplyEncode = 9,    ///< what is left to do before the answer can go: shortened, sealed
  kReplyQueue = 10,
  kReplySend = 11,
};
inline constexpr std::size_t kStageCount = 12;
std::string_view name_of(Stage stage);

/// Which of a worker's two jobs a key is of, where the workers of a host sum first (hierarchy.h).
enum class Tier : std::uint8_t { kJob = 0, kHost = 1 };

/// Nobody on the other side of a span.
inline constexpr std::uint32_t kNoPeer = 0xFFFFFFFF;

using TraceClock = std::chrono::steady_clock;

struct Span {
  TraceClock::time_point begin, end;
  std::uint64_t key = 0;
  std::uint64_t offset = 0;  ///< elements; 0 for a wait, which is of the whole key
  std::uint64_t bytes = 0;   ///< of the payload; before it is encoded, and once it is decoded, of the floats
  std::uint64_t step = 0;    ///< round of the key
  std::int32_t priority = 0;
  std::uint32_t peer = kNoPeer;  ///< a worker's: the server; a server's: the worker
  Stage stage = Stage::kReady;
  Tier tier = Tier::kJob;
};

/// One comparison of this process's clock with a server's.
struct ClockReading {
  std::uint32_t server = 0;
  std::chrono::nanoseconds ahead{};  ///< what the server's clock shows beyond ours; off by at most half of
  std::chrono::nanoseconds round_trip{};  ///< this
  TraceClock::time_point at;              ///< by our clock
};

struct TraceOptions {
  std::size_t spans_per_thread = std::size_t{1} << 17;  ///< 8 MiB, touched only as they fill
  std::size_t most_threads = 64;
  /// Added to every time in the trace: for tests, in which clocks must differ.
  std::chrono::nanoseconds clock_offset{0};
};

class Trace {
 public:
  explicit Trace(const TraceOptions& options = {});
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// From now on, and of that alone: what was noted before and not taken out is forgotten, as are readings
  /// and the count of what was dropped. Nothing changes where it is on.
  void start();
  void stop() noexcept { on_.store(false, std::memory_order_relaxed); }
  bool is_on() const noexcept { return on_.load(std::memory_order_relaxed); }

  /// A time of TraceClock as the trace writes it: with the offset.
  TraceClock::time_point with_offset(TraceClock::time_point time) const {
    return time + options_.clock_offset;
  }

  /// Notes a span, in times of TraceClock. Waits for no other thread, but for a thread's first span. Leaves
  /// out one whose begin is the epoch: the trace was off then.
  void add(const Span& span) noexcept;

  /// Names a key for people.
  void name_key(Tier tier, std::uint64_t key, std::string name);
  void add_reading(const ClockReading& reading);

  /// Takes out what was noted since start(), in order of its beginning.
  std::vector<Span> take_spans();
  std::map<std::pair<Tier, std::uint64_t>, std::string> key_names() const;
  std::vector<ClockReading> readings() const;
  /// Spans since start() that found their buffer full, or no buffer.
  std::uint64_t dropped() const;
  /// How long the spans of each stage have lasted since the beginning, in all, taken out or dropped as well;
  /// without those of threads that have no buffer.
  std::array<std::chrono::nanoseconds, kStageCount> stage_times() const;

 private:
  class Buffer;
  Buffer* own_buffer();
  std::uint64_t dropped_ever() const;

  const TraceOptions options_;
  const std::uint64_t id_;  ///< among all traces of the process, ever
  std::atomic<bool> on_{false};
  std::atomic<std::uint64_t> homeless_{0};  ///< dropped by threads without a buffer
  mutable std::mutex mutex_;                ///< guards what follows; not what is in the buffers
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::map<std::pair<Tier, std::uint64_t>, std::string> key_names_;
  std::vector<ClockReading> readings_;
  TraceClock::time_point started_;  ///< as given
  std::uint64_t dropped_before_ = 0;
};

/// What a recorder of spans holds: a trace, or none, and its tier.
class Tracer {
 public:
  Tracer() = default;
  Tracer(std::shared_ptr<Trace> trace, Tier tier) : trace_(std::move(trace)), tier_(tier) {}

  bool is_on() const noexcept { return trace_ && trace_->is_on(); }
  /// The time if the trace is on; else the epoch.
  TraceClock::time_point now() const { return is_on() ? TraceClock::now() : TraceClock::time_point(); }
  void add(Span span) const {
    span.tier = tier_;
    trace_->add(span);
  }
  void name_key(std::uint64_t key, const std::string& name) const {
    if (trace_) trace_->name_key(tier_, key, name);
  }
  const std::shared_ptr<Trace>& trace() const { return trace_; }

 private:
  std::shared_ptr<Trace> trace_;  // owners: the opener of the store or server, and all recorders
  Tier tier_ = Tier::kJob;
};

}  // namespace gradwire::kvstore
