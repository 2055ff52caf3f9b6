// JobEnd is all that a scheduler's thread shares with others: how the job ended, and what they ask of it.
//
// Threading: any thread may call every method.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <string>

#include "transport/zmq/zmq_socket.h"

namespace gradwire::transport {

class JobEnd {
 public:
  struct Asked {
    std::optional<std::string> failure;  ///< why the job is to fail
    bool stop = false;                   ///< the thread is to end
  };

  /// Returns false when timeout passed first. Throws the error that the job ended with, if it did.
  bool wait_for(std::chrono::milliseconds timeout);
  /// error: null where the job came to its end. Only the first call counts.
  void set(std::exception_ptr error);

  /// Only the first text counts until it is taken.
  void ask_to_fail(const std::string& text);
  void ask_to_stop();
  Asked take_asked();
  /// Rings when something is asked.
  Wakeup& wakeup() { return wakeup_; }

 private:
  Wakeup wakeup_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  Asked asked_;
  bool is_over_ = false;
  std::exception_ptr error_;
};

}  // namespace gradwire::transport
