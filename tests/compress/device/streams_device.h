// A Device without a GPU: its memory is the host's, its kernels run on Thrust's CPP backend, and every stream
// is a thread of its own, so that work which is not ordered by a stream or a mark shows.
#pragma once

#include <thrust/system/cpp/execution_policy.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "compress/device/device.h"
#include "compress/device/halves_thrust.h"
#include "tests/compress/device/thrust_twins.h"

namespace gradwire::compress {

/// Runs what it is given, in order, on a thread of its own.
class HostStream {
 public:
  /// `called` precedes every kernel that is enqueued, and may throw in its place. Once is_dead, no work runs.
  HostStream(std::function<void()> called, std::function<bool()> is_dead)
      : called_(std::move(called)), is_dead_(std::move(is_dead)) {}

  void enqueue_kernel(std::function<void()> work) {
    called_();
    enqueue_work(std::move(work));
  }
  /// What touches memory.
  void enqueue_work(std::function<void()> work) {
    enqueue([this, work = std::move(work)] {
      const std::lock_guard lock(working_);
      if (!is_dead_()) work();
    });
  }
  void enqueue(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    given_.notify_one();
  }
  /// Waits until no work runs.
  void halt() { const std::lock_guard lock(working_); }

 private:
  void run(const std::stop_token& stop) {
    for (;;) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex_);
        given_.wait(lock, stop, [this] { return !work_.empty(); });
        if (work_.empty()) return;
        work = std::move(work_.front());
        work_.pop_front();
      }
      work();
    }
  }

  const std::function<void()> called_;
  const std::function<bool()> is_dead_;
  std::mutex working_;
  std::mutex mutex_;
  std::condition_variable_any given_;
  std::deque<std::function<void()>> work_;
  std::jthread thread_{[this](const std::stop_token& stop) { run(stop); }};  // last member: joined first
};

class StreamsBackend {
 public:
  explicit StreamsBackend(const DeviceStream& stream) : stream_(static_cast<HostStream*>(stream.handle)) {}

  template <typename Work>
  void each(std::size_t items, const Work& work) const {
    stream_->enqueue_kernel([items, work] { for_each_item(thrust::cpp::par, items, work); });
  }
  template <typename Work>
  void fold(std::size_t groups, const Work& work) const {
    each(groups, FoldGroup<Work>{work});
  }

 private:
  HostStream* stream_;
};

class StreamsDevice final : public Device {
 public:
  /// One that has no twin of the codec `without`.
  explicit StreamsDevice(std::string without = {}) : without_(std::move(without)) {}

  std::string name() const override { return "streams"; }
  int use() const override { return std::exchange(in_use(), kNumber); }
  void restore(int before) const noexcept override { in_use() = before; }
  /// The calling thread's device.
  static int& in_use() {
    thread_local int number = 0;
    return number;
  }
  static constexpr int kNumber = 7;
  std::unique_ptr<DeviceCodec> twin(const CodecSpec& spec) const override {
    return spec.name == without_ ? nullptr : make_thrust_twin<StreamsBackend>(spec);
  }

  Memory allocate(std::size_t bytes) const override {
    call();
    if (is_full_) throw std::runtime_error("allocate " + std::to_string(bytes) + " bytes of streams: full");
    ++allocations_;
    allocated_bytes_ += bytes;
    Memory memory(static_cast<std::byte*>(std::malloc(bytes == 0 ? 1 : bytes)), [this](std::byte* at) {
      {
        const std::lock_guard lock(mutex_);
        mine_.erase(at);
      }
      std::free(at);
    });
    const std::lock_guard lock(mutex_);
    mine_[memory.get()] = bytes;
    return memory;
  }
  Memory allocate_pinned(std::size_t bytes) const override {
    call();
    ++pinned_allocations_;
    return {static_cast<std::byte*>(std::malloc(bytes == 0 ? 1 : bytes)),
            [](std::byte* at) { std::free(at); }};
  }
  std::shared_ptr<const DeviceStream> open_stream() const override {
    call();
    auto stream = std::make_shared<HostStream>([this] { call(); }, [this] { return is_dead_.load(); });
    const std::lock_guard lock(mutex_);
    streams_.push_back(stream);
    return {new DeviceStream{0, stream.get()}, [](const DeviceStream* opened) { delete opened; }};
  }

  Mark mark(void* handle) const override {
    call();
    auto passed = std::make_shared<std::promise<void>>();
    auto future = std::make_shared<std::shared_future<void>>(passed->get_future());
    stream(handle).enqueue([passed] { passed->set_value(); });
    return future;
  }
  void wait(const DeviceStream& waiting, const Mark& mark) const override {
    call();
    const auto passed = std::static_pointer_cast<std::shared_future<void>>(mark);
    enqueue(waiting, [this, passed] {
      if (passed->wait_for(kPatience) != std::future_status::ready) fail("a mark was never passed");
    });
  }
  void copy(const void* from, void* to, std::size_t bytes, const DeviceStream& on) const override {
    call();
    if (is_mine(from) && !is_mine(to)) bytes_to_host_ += bytes;
    if (!is_mine(from) && is_mine(to)) bytes_to_device_ += bytes;
    stream(on.handle).enqueue_work([=] {
      if (bytes > 0) std::memcpy(to, from, bytes);
    });
  }
  void zero(void* at, std::size_t bytes, const DeviceStream& on) const override {
    call();
    stream(on.handle).enqueue_work([=] { std::memset(at, 0, bytes); });
  }
  void floats_from_halves(dense::Format format, const std::byte* halves, std::span<float> out,
                          const DeviceStream& on) const override {
    expect_mine({halves, out.data()});
    enqueue_floats_from_halves<StreamsBackend>(on, format, halves, out);
  }
  void halves_from_floats(dense::Format format, std::span<const float> values, std::byte* out,
                          const DeviceStream& on) const override {
    expect_mine({values.data(), out});
    enqueue_halves_from_floats<StreamsBackend>(on, format, values, out);
  }
  void bf16_from_residuals(std::span<const float> values, std::byte* out,
                           const DeviceStream& on) const override {
    expect_mine({values.data(), out});
    enqueue_bf16_from_residuals<StreamsBackend>(on, values, out);
  }
  void then(const DeviceStream& on, Next next) const override {
    call();
    enqueue(on, [this, next = std::move(next)] {
      if (is_dead_) std::this_thread::sleep_for(std::chrono::milliseconds(3));  // later than finish() says so
      next(failure());
    });
  }
  /// Of a broken device it says so at once: callbacks may come later.
  void finish(const DeviceStream& on) const override {
    if (is_dead_) stream(on.handle).halt();
    call();
    auto done = std::make_shared<std::promise<void>>();
    auto future = done->get_future();
    enqueue(on, [done] { done->set_value(); });
    if (future.wait_for(kPatience) != std::future_status::ready) throw std::runtime_error("streams: stuck");
    if (const auto error = failure()) std::rethrow_exception(error);
  }

  /// From now on, all that is done on the device has gone wrong.
  void fail(const std::string& text) const {
    const std::lock_guard lock(mutex_);
    failure_ = std::make_exception_ptr(std::runtime_error(text));
  }
  /// As CUDA's errors that stay: after so many more calls each one fails, and what was enqueued is not run.
  void break_after(int calls, const std::string& text) const {
    const std::lock_guard lock(mutex_);
    calls_left_ = calls;
    reason_ = text;
  }
  bool is_broken() const { return is_dead_; }
  /// From now on, no memory can be had there.
  void fill() const { is_full_ = true; }
  /// Of its own memory.
  std::size_t allocations() const { return allocations_; }
  std::uint64_t allocated_bytes() const { return allocated_bytes_; }
  std::size_t pinned_allocations() const { return pinned_allocations_; }
  std::uint64_t bytes_to_host() const { return bytes_to_host_; }
  std::uint64_t bytes_to_device() const { return bytes_to_device_; }

 private:
  static constexpr auto kPatience = std::chrono::seconds(20);

  HostStream& stream(void* handle) const {
    return handle == nullptr ? default_ : *static_cast<HostStream*>(handle);
  }
  void enqueue(const DeviceStream& on, std::function<void()> work) const {
    stream(on.handle).enqueue(std::move(work));
  }
  /// A kernel reaches no other device's memory, and the host's only where it is pinned.
  void expect_mine(std::initializer_list<const void*> addresses) const {
    for (const void* address : addresses) {
      if (!is_mine(address)) throw std::runtime_error("streams: a kernel on memory of another device");
    }
  }
  bool is_mine(const void* address) const {
    const std::lock_guard lock(mutex_);
    const auto* const at = static_cast<const std::byte*>(address);
    const auto behind = mine_.upper_bound(at);
    if (behind == mine_.begin()) return false;
    const auto& [first, bytes] = *std::prev(behind);
    return at < first + bytes;
  }
  /// Precedes whatever may fail.
  void call() const {
    if (calls_left_ < 0) return;
    const std::lock_guard lock(mutex_);
    if (calls_left_ > 0) {
      --calls_left_;
      return;
    }
    failure_ = std::make_exception_ptr(std::runtime_error(reason_));
    is_dead_ = true;
    std::rethrow_exception(failure_);
  }
  std::exception_ptr failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

  const std::string without_;
  mutable std::mutex mutex_;
  mutable std::map<const std::byte*, std::size_t> mine_;  ///< memory of the device
  mutable std::exception_ptr failure_;
  mutable std::atomic<bool> is_dead_{false};
  mutable std::string reason_;               ///< of the failure to come
  mutable std::atomic<int> calls_left_{-1};  ///< until then; negative: it does not come
  mutable std::atomic<bool> is_full_{false};
  mutable std::atomic<std::size_t> allocations_{0};
  mutable std::atomic<std::uint64_t> allocated_bytes_{0};
  mutable std::atomic<std::size_t> pinned_allocations_{0};
  mutable std::atomic<std::uint64_t> bytes_to_host_{0};
  mutable std::atomic<std::uint64_t> bytes_to_device_{0};
  /// All: what was enqueued goes on when a stream is closed, as a driver's callbacks do.
  mutable std::vector<std::shared_ptr<HostStream>> streams_;
  mutable HostStream default_{[this] { call(); }, [this] { return is_dead_.load(); }};
};

}  // namespace gradwire::compress
