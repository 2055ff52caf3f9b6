// CommandLog makes text commands idempotent: it executes each once, in order, and replays the reply to a
// duplicate. A command that came too early counts as lost.
//
// Threading: one owner. Pure.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "kvstore/wire/answer.h"
#include "transport/frame.h"

namespace gradwire::kvstore {

class CommandLog {
 public:
  explicit CommandLog(std::uint32_t workers) : workers_(workers) {}

  /// Whether a command is to be carried out, which keep() must follow. Else appends the answer that it has
  /// had before, if there is one.
  bool admits(std::uint32_t worker, const transport::FrameHeader& command, std::vector<Answer>& answers);
  /// Keeps what the command that was admitted last was answered.
  void keep(std::uint32_t worker, const transport::Frame& answer);

 private:
  struct Worker {
    std::uint64_t last = 0;  ///< number of the last that was admitted; 0: none was
    std::deque<std::pair<std::uint64_t, transport::Frame>> answers;  ///< by number, the newest
  };
  std::vector<Worker> workers_;
};

}  // namespace gradwire::kvstore
