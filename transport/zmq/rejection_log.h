// RejectionLog counts rejected messages and logs them without flooding people.
//
// Threading: one thread at a time.
#pragma once

#include <bit>
#include <cstdint>
#include <functional>
#include <string>

namespace gradwire::transport {

class RejectionLog {
 public:
  explicit RejectionLog(std::function<void(const std::string&)> log) : log_(std::move(log)) {}

  /// Logs the 1st, 2nd, 4th, 8th, ... refusal.
  void note(const std::string& from, const std::string& why) {
    ++count_;
    if (log_ && std::has_single_bit(count_)) {
      log_("refused a message from " + from + ": " + why + " (refusal " + std::to_string(count_) + ")");
    }
  }

 private:
  std::function<void(const std::string&)> log_;
  std::uint64_t count_ = 0;
};

}  // namespace gradwire::transport
