#include "kvstore/server/command_log.h"

#include "kvstore/wire/answer.h"

namespace gradwire::kvstore {
namespace {

/// Commands that a worker may have given and not heard of: it gives few at a time.
constexpr std::size_t kMostAnswers = 16;

bool follows(std::uint64_t number, std::uint64_t last) {
  const bool begins = number % kCommandsOfOneWorker == 1 && number > last;
  return begins || (last > 0 && number == last + 1);
}

}  // namespace

bool CommandLog::admits(std::uint32_t worker, const transport::FrameHeader& command,
                        std::vector<Answer>& answers) {
  if (worker >= workers_.size()) return false;
  Worker& one = workers_[worker];
  if (follows(command.key, one.last)) {
    one.last = command.key;
    return true;
  }
  for (const auto& [number, answer] : one.answers) {
    if (number == command.key) answers.push_back({worker, share(answer)});
  }
  return false;
}

void CommandLog::keep(std::uint32_t worker, const transport::Frame& answer) {
  Worker& one = workers_.at(worker);
  one.answers.emplace_back(one.last, share(answer));
  if (one.answers.size() > kMostAnswers) one.answers.pop_front();
}

}  // namespace gradwire::kvstore
