// EngineThread: what every server is told, and what it says of having done it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <ranges>
#include <stdexcept>

#include "kvstore/client/engine_tensor.h"

namespace gradwire::kvstore {

using transport::Buffer;
using transport::Frame;
using transport::FrameHeader;
using transport::Kind;

Ticket EngineThread::command(std::string text, std::vector<Acknowledgement>* said) {
  Ticket done;
  loop_->post([this, done, text = std::move(text), said]() mutable {
    if (failure_) return done.fail(failure_);
    const auto now = Clock::now();
    const std::uint32_t servers = messenger_.world().servers;
    if (said != nullptr) said->assign(servers, {});
    Command& command = commands_[++last_command_] = {done, std::move(text), said, {}, now, now};
    for (std::uint32_t rank = 0; rank < servers; ++rank) {
      if (servers_gone_.contains(rank)) continue;
      command.heard[rank];
      send_command(last_command_, rank);
    }
  });
  return done;
}

void EngineThread::send_command(std::uint64_t number, std::uint32_t server) {
  const std::string& text = commands_.at(number).text;
  Buffer payload = Buffer::allocate(text.size());
  std::memcpy(payload.bytes().data(), text.data(), text.size());
  FrameHeader header;
  header.kind = Kind::kCommand;
  header.key = number;
  outbox_.add(server, {header, std::move(payload)});
}

/// Whether a frame is about a command: one that is done already is answered again, since it may be sent
/// again.
bool EngineThread::take_acknowledgement(transport::Node from, const Frame& frame) {
  const FrameHeader& header = frame.header;
  if (header.count != 0 || (header.kind != Kind::kAck && header.kind != Kind::kError)) return false;
  const auto found = commands_.find(header.key);
  if (found == commands_.end() || !frame.payload.is_intact()) return true;
  Command& command = found->second;
  const auto server = command.heard.find(from.rank);
  if (server == command.heard.end()) return true;
  const ServerThread thread = thread_of(header);
  if (header.kind == Kind::kError)
    command.done.fail(std::make_exception_ptr(std::invalid_argument(payload_text(frame))));
  if (command.said != nullptr && thread.number == 0 && !command.done.done())
    (*command.said)[from.rank] = {header.step, payload_text(frame)};
  server->second.insert(thread.number);
  if (server->second.size() >= thread.of) command.heard.erase(server);
  if (!command.heard.empty()) return true;
  command.done.succeed();
  commands_.erase(found);
  return true;
}

void EngineThread::tick_commands(Clock::time_point now) {
  for (auto& [number, command] : commands_) {
    if (now - command.began >= options_.slow_abort) {
      return give_up(fmt::format("servers {} have not carried out '{}' within {} s",
                                 fmt::join(std::views::keys(command.heard), ", "), command.text,
                                 options_.slow_abort.count() / 1000));
    }
    if (now - command.asked < options_.retry_timeout) continue;
    command.asked = now;
    for (const auto& [rank, threads] : command.heard) send_command(number, rank);
  }
}

}  // namespace gradwire::kvstore
