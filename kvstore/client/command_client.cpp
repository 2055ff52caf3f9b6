#include "kvstore/client/command_client.h"

#include <fmt/format.h>

#include <iterator>
#include <stdexcept>
#include <utility>

#include "kvstore/wire/answer.h"
#include "kvstore/wire/protocol.h"

namespace gradwire::kvstore {

using transport::Frame;
using transport::FrameHeader;
using transport::Kind;

CommandClient::CommandClient(PendingRequests& pending, std::uint32_t servers, std::uint64_t last_number,
                             std::chrono::milliseconds patience, Send send)
    : pending_(pending),
      servers_(servers),
      patience_(patience),
      send_(std::move(send)),
      last_number_(last_number) {}

void CommandClient::start(std::string text, std::vector<Acknowledgement>* said, const Ticket& done,
                          Clock::time_point now) {
  if (said != nullptr) said->assign(servers_, {});
  const std::uint64_t number = ++last_number_;
  const auto pending = pending_.begin([text] { return fmt::format("command '{}' has", text); }, now);
  commands_[number] = {done, std::move(text), said, pending, {}};
  for (std::uint32_t rank = 0; rank < servers_; ++rank) {
    // It executes nothing more, so nothing is asked of it.
    if (lost_.contains(rank)) continue;
    PendingRequests::Request request{rank, {patience_, patience_}, [=, this] { send(number, rank); }};
    pending_.add(pending, rank, std::move(request), now);
    send(number, rank);
  }
}

void CommandClient::send(std::uint64_t number, std::uint32_t server) const {
  FrameHeader header;
  header.kind = Kind::kCommand;
  header.key = number;
  send_(server, {header, text_payload(commands_.at(number).text)});
}

void CommandClient::handle(transport::Node from, const Frame& frame) {
  const FrameHeader& header = frame.header;
  const auto found = commands_.find(header.key);
  // What arrives damaged counts as lost: the command is sent again, and acknowledged again.
  if (found == commands_.end() || !frame.payload.is_intact()) return;
  Command& command = found->second;
  const auto request = command.pending->requests.find(from.rank);
  if (request == command.pending->requests.end()) return;
  PendingRequests::heard(request->second);
  const ServerThread thread = thread_of(header);
  // The command stays until all servers have answered: those that executed it must not be asked again.
  if (header.kind == Kind::kError)
    command.done.fail(std::make_exception_ptr(std::invalid_argument(transport::payload_text(frame))));
  // What all threads of a server say is the same, so the first speaks for them. After a refusal the caller
  // has gone, and `said` with it.
  if (command.said != nullptr && thread.number == 0 && !command.done.done())
    (*command.said)[from.rank] = {header.step, transport::payload_text(frame)};
  auto& heard = command.heard[from.rank];
  heard.insert(thread.number);
  if (heard.size() >= thread.of) pending_.answered(command.pending, from.rank);
  if (command.pending->requests.empty()) end(found);
}

CommandClient::Commands::iterator CommandClient::end(Commands::iterator command) {
  // Changes nothing where a refusal has failed the ticket before.
  command->second.done.succeed();
  pending_.end(command->second.pending);
  return commands_.erase(command);
}

void CommandClient::lose_server(std::uint32_t server) {
  lost_.insert(server);
  for (auto next = commands_.begin(); next != commands_.end();) {
    auto& requests = next->second.pending->requests;
    // A command that only waited for this server ends here. No acknowledgement will come to end it.
    const bool is_done = requests.erase(server) > 0 && requests.empty();
    next = is_done ? end(next) : std::next(next);
  }
}

void CommandClient::fail_all(const std::exception_ptr& error) {
  for (const auto& [number, command] : std::exchange(commands_, {})) {
    pending_.end(command.pending);
    command.done.fail(error);
  }
}

}  // namespace gradwire::kvstore
