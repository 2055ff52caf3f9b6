// Inbox is the part every Messenger shares: what arrived, in order, until a Sink takes it, and the first
// failure.
//
// Threading: post_*(), attach(), detach() and the queries from any thread; deliver() and wait() from the
//   one I/O thread, which is the only one that calls the Sink. No lock is held during a call into it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "transport/messenger.h"

namespace gradwire::transport {

class Inbox {
 public:
  void post_frames(Node from, std::vector<Frame> frames);
  /// error: what has ended it; empty: it came to its end.
  void post_goodbye(Node peer, const std::string& error = {});
  void post_departure(Node server, Node mirror);
  void post_question(std::set<std::string> rounds);
  /// What has failed: the job, or this generation of one that goes on.
  /// kCalls: the job, since its workers' calls do not fit together.
  enum class Scope : std::uint8_t { kJob, kGeneration, kCalls };
  /// Keeps the first text only; nothing posted later reaches the Sink. Returns whether this was the first.
  bool post_failure(const std::string& text, Scope scope = Scope::kJob);

  void attach(Sink& sink);
  /// Waits for a running call to end, unless the Sink itself calls this.
  void detach();

  /// Hands what is waiting to the Sink, if there is one. Throws what the Sink throws.
  void deliver();
  /// Blocks until there is something for deliver() to do, or close() was called; then returns false.
  bool wait();
  void close();

  bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }
  /// Requires failed().
  std::string failure() const;
  /// Throws TransportError (MembershipChanged, CallMismatch) with the first failure, if there is one.
  void rethrow() const;

 private:
  struct Arrival {
    Node from;
    std::vector<Frame> frames;
  };
  struct Goodbye {
    Node peer;
    std::string error;
  };
  struct Departure {
    Node server, mirror;
  };
  struct Question {
    std::set<std::string> rounds;
  };
  struct Failure {
    std::string text;
    Scope scope;
  };
  using Event = std::variant<Arrival, Goodbye, Departure, Question, Failure>;

  void post(Event event);
  static void call(Sink& sink, Event& event);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Event> events_;
  Sink* sink_ = nullptr;
  bool calling_ = false;
  std::thread::id caller_;
  bool closed_ = false;
  std::string failure_;
  Scope scope_ = Scope::kJob;  // of it
  std::atomic<bool> failed_{false};
};

}  // namespace gradwire::transport
