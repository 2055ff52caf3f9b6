// CommandClient sends text commands to every server and waits until each has executed it. Servers make
// commands idempotent (server/command_log.h), so a command that is not acknowledged in time is sent again.
//
// Threading: one owner. Pure: no thread, no socket, no clock.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "kvstore/runtime/pending_requests.h"
#include "kvstore/runtime/ticket.h"
#include "transport/messenger.h"

namespace gradwire::kvstore {

/// What a server says of a command that it has executed.
struct Acknowledgement {
  std::uint64_t step = 0;
  std::string text;
};

class CommandClient {
 public:
  using Clock = PendingRequests::Clock;
  using Send = std::function<void(std::uint32_t server, transport::Frame frame)>;

  /// last_number: commands are numbered from the next one on. A worker that takes another's place must begin
  /// above all that the other has used. patience: until a command is sent again.
  CommandClient(PendingRequests& pending, std::uint32_t servers, std::uint64_t last_number,
                std::chrono::milliseconds patience, Send send);

  /// Sends text to every server that is left; done when all have acknowledged. said: set, before done, to
  /// what they said, by rank; lives until done.
  void start(std::string text, std::vector<Acknowledgement>* said, const Ticket& done, Clock::time_point now);

  /// Takes an acknowledgement, or an error, that a server sent. One of a command that is done already counts
  /// for nothing: the command may have been sent twice.
  void handle(transport::Node from, const transport::Frame& frame);

  /// A server has left, and executes nothing more: its acknowledgement is not needed.
  void lose_server(std::uint32_t server);
  void fail_all(const std::exception_ptr& error);

 private:
  struct Command {
    Ticket done;
    std::string text;
    std::vector<Acknowledgement>* said = nullptr;
    PendingRequests::Handle pending;  ///< numbered by server: those of which not all threads have answered
    /// The threads of each that have: with replicas each thread's mirror knows a command for itself.
    std::map<std::uint32_t, std::set<std::uint32_t>> heard;
  };
  using Commands = std::map<std::uint64_t, Command>;

  void send(std::uint64_t number, std::uint32_t server) const;
  /// Ends a command that has been executed everywhere; returns the one behind it.
  Commands::iterator end(Commands::iterator command);

  PendingRequests& pending_;
  const std::uint32_t servers_;
  const std::chrono::milliseconds patience_;
  Send send_;
  std::set<std::uint32_t> lost_;  ///< servers
  std::uint64_t last_number_;
  Commands commands_;  ///< by number; those that are not done
};

}  // namespace gradwire::kvstore
