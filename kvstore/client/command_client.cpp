#include "kvstore/client/command_client.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>
#include <ranges>
#include <stdexcept>
#include <utility>

#include "kvstore/wire/answer.h"
#include "kvstore/wire/protocol.h"

namespace gradwire::kvstore {

using transport::Frame;
using transport::FrameHeader;
using transport::Kind;

CommandClient::CommandClient(std::uint32_t servers, std::uint64_t last_number, Send send)
    : servers_(servers), send_(std::move(send)), last_number_(last_number) {}

void CommandClient::start(std::string text, std::vector<Acknowledgement>* said, const Ticket& done,
                          Clock::time_point now) {
  if (said != nullptr) said->assign(servers_, {});
  Command& command = commands_[++last_number_] = {done, std::move(text), said, {}, now, now};
  for (std::uint32_t rank = 0; rank < servers_; ++rank) {
    if (lost_.contains(rank)) continue;
    command.heard[rank];
    send(last_number_, rank);
  }
}

void CommandClient::send(std::uint64_t number, std::uint32_t server) const {
  FrameHeader header;
  header.kind = Kind::kCommand;
  header.key = number;
  send_(server, {header, text_payload(commands_.at(number).text)});
}

bool CommandClient::handle(transport::Node from, const Frame& frame) {
  const FrameHeader& header = frame.header;
  if (header.count != 0 || (header.kind != Kind::kAck && header.kind != Kind::kError)) return false;
  const auto found = commands_.find(header.key);
  // What arrives damaged counts as lost: the command is sent again, and acknowledged again.
  if (found == commands_.end() || !frame.payload.is_intact()) return true;
  Command& command = found->second;
  const auto server = command.heard.find(from.rank);
  if (server == command.heard.end()) return true;
  const ServerThread thread = thread_of(header);
  // The command stays until all servers have answered: those that executed it must not be asked again.
  if (header.kind == Kind::kError)
    command.done.fail(std::make_exception_ptr(std::invalid_argument(transport::payload_text(frame))));
  if (command.said != nullptr && thread.number == 0 && !command.done.done())
    (*command.said)[from.rank] = {header.step, transport::payload_text(frame)};
  server->second.insert(thread.number);
  if (server->second.size() >= thread.of) command.heard.erase(server);
  if (!command.heard.empty()) return true;
  command.done.succeed();
  commands_.erase(found);
  return true;
}

void CommandClient::retry(Clock::time_point now, std::chrono::milliseconds patience) {
  for (auto& [number, command] : commands_) {
    if (now - command.asked < patience) continue;
    command.asked = now;
    for (const auto& [rank, threads] : command.heard) send(number, rank);
  }
}

void CommandClient::ask_again(std::uint32_t server) {
  for (const auto& [number, command] : commands_) {
    if (command.heard.contains(server)) send(number, server);
  }
}

void CommandClient::lose_server(std::uint32_t server) {
  lost_.insert(server);
  for (auto next = commands_.begin(); next != commands_.end();) {
    Command& command = next->second;
    const bool is_done = command.heard.erase(server) > 0 && command.heard.empty();
    if (is_done) command.done.succeed();
    next = is_done ? commands_.erase(next) : std::next(next);
  }
}

void CommandClient::fail_all(const std::exception_ptr& error) {
  for (const auto& [number, command] : std::exchange(commands_, {})) command.done.fail(error);
}

CommandClient::Clock::time_point CommandClient::oldest() const {
  return commands_.empty() ? Clock::time_point::max() : commands_.begin()->second.began;
}

std::string CommandClient::describe_wait() const {
  const Command& command = commands_.begin()->second;
  return fmt::format("servers {} have not carried out '{}'", fmt::join(std::views::keys(command.heard), ", "),
                     command.text);
}

}  // namespace gradwire::kvstore
