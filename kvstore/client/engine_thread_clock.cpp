// EngineThread's sense of time: what has waited for long is asked after, warned of and at last given up by
// name.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "kvstore/client/engine_tensor.h"
#include "kvstore/client/standstill.h"

namespace gradwire::kvstore {

using transport::Buffer;
using transport::FrameHeader;
using transport::Kind;

namespace {

double seconds(std::chrono::steady_clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

void EngineThread::tick() {
  const auto now = Clock::now();
  for (Tensor* tensor : std::vector<Tensor*>(active_.begin(), active_.end())) {
    const auto age = now - tensor->started;
    if (age >= options_.slow_abort) return give_up(describe_wait(*tensor, now));
    if (is_warning_due(age, awaits_workers(*tensor)) && !tensor->warned) {
      tensor->warned = true;
      notify(describe_wait(*tensor, now));
    }
    probe(*tensor, now);
  }
  tell_handed_over();
  if (!commands_.idle() && now - commands_.oldest() >= options_.slow_abort)
    return give_up(
        fmt::format("{} within {} s", commands_.describe_wait(), options_.slow_abort.count() / 1000));
  commands_.retry(now, options_.retry_timeout);
  tick_client(mail_, warned_of_mail_, now);
  tick_client(rows_, warned_of_rows_, now);
  if (rounds_.standstill != nullptr && !failure_) rounds_.standstill->tick();
}

/// What is no round of a tensor: letters, and rows.
template <typename Client>
void EngineThread::tick_client(Client& client, bool& has_warned, Clock::time_point now) {
  const auto age = client.idle() ? Clock::duration(0) : now - client.oldest();
  if (age >= options_.slow_abort) return give_up(client.describe_wait(now));
  const bool is_slow = is_warning_due(age, client.awaits_workers());
  if (is_slow && !has_warned) notify(client.describe_wait(now));
  has_warned = is_slow;
  client.retry(now);
}

/// A server that has been asked who is awaited gets a moment more to say it.
bool EngineThread::is_warning_due(Clock::duration age, bool names_workers) const {
  constexpr std::chrono::milliseconds kMoment{1'000};
  const auto moment = names_workers ? kMoment * 0 : std::min(kMoment, options_.slow_warning / 2);
  return age >= options_.slow_warning + moment;
}

bool EngineThread::awaits_workers(const Tensor& tensor) {
  return std::ranges::any_of(
      tensor.parts, [](const PartState& state) { return !state.answered && !state.awaited.empty(); });
}

void EngineThread::give_up(const std::string& text) {
  fail_all(std::make_exception_ptr(transport::TimeoutError(text)));
  messenger_.fail(fmt::format("{} gave up: {}", transport::to_string(messenger_.self()), text));
}

void EngineThread::notify(std::string text) {
  const std::lock_guard lock(notices_mutex_);
  notices_.push_back(std::move(text));
}

/// What repeats no payload is asked early enough for the answer, which names who is awaited, to be here when
/// a warning is due.
std::chrono::milliseconds EngineThread::question_timeout() const {
  return std::min(options_.retry_timeout, options_.slow_warning / 2);
}

void EngineThread::probe(Tensor& tensor, Clock::time_point now) {
  for (std::size_t p = 0; p < tensor.parts.size(); ++p) {
    const PartState& state = tensor.parts[p];
    const bool is_small = state.request == Kind::kPush || state.payload.size_bytes() == 0;
    const auto patience = is_small ? question_timeout() : options_.retry_timeout;
    if (!state.answered && now - state.asked >= patience) ask(tensor, p);
  }
}

void EngineThread::ask(Tensor& tensor, std::size_t index) {
  PartState& state = tensor.parts[index];
  state.asked = Clock::now();
  if (state.request != Kind::kPush) return send_again(tensor, index);  // harmless when repeated
  FrameHeader header = header_of(tensor, index);
  header.kind = Kind::kProbe;
  outbox_.add(state.part.server, {header, Buffer()});
}

std::string EngineThread::describe_wait(const Tensor& tensor, Clock::time_point now) const {
  std::set<std::uint32_t> ranks;
  std::set<std::string> servers;
  for (const PartState& state : tensor.parts) {
    if (state.answered) continue;
    servers.insert(failover_.name(state.part.server));
    ranks.insert(state.awaited.begin(), state.awaited.end());
  }
  const std::string what = fmt::format("key '{}' step {} has waited {:.0f} s", tensor.spec.name,
                                       tensor.step == 0 ? 0 : tensor.step - 1, seconds(now - tensor.started));
  if (!ranks.empty()) return fmt::format("{} for worker {}", what, fmt::join(ranks, ", "));
  return fmt::format("{} for {}", what, fmt::join(servers, ", "));
}

}  // namespace gradwire::kvstore
