// What a worker's clients stand on, without a job: a line that keeps what is sent, and a loop that runs when
// the test says so.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "kvstore/runtime/loop.h"
#include "kvstore/runtime/outbox.h"
#include "kvstore/runtime/pending_requests.h"
#include "transport/messenger.h"

namespace gradwire::kvstore {

/// A frame, and the server that it was sent to.
struct SentFrame {
  std::uint32_t server = 0;
  transport::Frame frame;
};

/// Worker 1 of three, with two servers.
class KeepingMessenger final : public transport::Messenger {
 public:
  transport::Node self() const override { return {transport::Role::kWorker, 1}; }
  transport::World world() const override { return {.workers = 3, .servers = 2}; }
  void attach(transport::Sink&) override {}
  void detach() override {}
  void send(transport::Node to, std::vector<transport::Frame> frames) override {
    for (transport::Frame& frame : frames) sent.push_back({to.rank, std::move(frame)});
  }
  std::vector<std::string> exchange(std::string_view, std::string_view blob,
                                    std::chrono::milliseconds) override {
    return {3, std::string(blob)};
  }
  std::uint64_t exchanges() const override { return 0; }
  void fail(const std::string&) override {}
  void note_error(const std::string&) override {}
  void leave(std::chrono::milliseconds) override {}
  std::vector<transport::PeerCounters> counters() const override { return {}; }

  std::vector<SentFrame> sent;
};

/// A loop, and what clients put their requests into. Everything of theirs is used inside do_in_loop() alone.
class WorkerEnd {
 public:
  using Clock = PendingRequests::Clock;
  static constexpr std::chrono::milliseconds kQuestion{100}, kRetry{1'000};
  static constexpr PendingRequests::Limits kLimits{std::chrono::seconds(60), std::chrono::seconds(600)};

  ~WorkerEnd() {
    loop->stop();
    thread_.join();
  }

  /// Returns when it is done, and all that was posted before.
  void do_in_loop(const std::function<void()>& task) {
    std::promise<void> done;
    loop->post([&] {
      task();
      done.set_value();
    });
    done.get_future().wait();
  }
  /// What was sent since the last call.
  std::vector<SentFrame> take_sent() {
    std::vector<SentFrame> sent;
    do_in_loop([] {});  // behind it the outbox is flushed
    do_in_loop([&] { sent.swap(messenger.sent); });
    return sent;
  }
  /// Sends again what is due after so long.
  std::vector<SentFrame> retry_after(std::chrono::milliseconds time) {
    do_in_loop([&] { pending.retry(Clock::now() + time); });
    return take_sent();
  }

  KeepingMessenger messenger;
  std::shared_ptr<Loop> loop = std::make_shared<Loop>();
  Outbox outbox{messenger, loop, transport::Role::kServer, 2, 1, {1 << 20, 0}};
  PendingRequests pending{transport::Role::kServer, kLimits};

 private:
  std::thread thread_{[this] {
    loop->run(
        std::chrono::hours(1), [this] { outbox.flush(Clock::now()); }, [] {});
  }};
};

}  // namespace gradwire::kvstore
