// CommandClient sends text commands to every server and waits until each has executed it. Servers make
// commands idempotent (server/commands.h), so a command that is not acknowledged in time is sent again.
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
  using Clock = std::chrono::steady_clock;
  using Send = std::function<void(std::uint32_t server, transport::Frame frame)>;

  /// last_number: commands are numbered from the next one on. A worker that takes another's place must begin
  /// above all that the other has used.
  CommandClient(std::uint32_t servers, std::uint64_t last_number, Send send);

  /// Sends text to every server that is left; done when all have acknowledged. said: set, before done, to
  /// what they said, by rank; lives until done.
  void start(std::string text, std::vector<Acknowledgement>* said, const Ticket& done, Clock::time_point now);

  /// Takes what a server sent. Returns false for a frame that is no acknowledgement. An acknowledgement of a
  /// command that is done already is one: the command may have been sent twice.
  bool handle(transport::Node from, const transport::Frame& frame);

  /// Sends again what has not been acknowledged for as long as patience.
  void retry(Clock::time_point now, std::chrono::milliseconds patience);
  /// Sends a server again what it has not acknowledged: its mirror has taken its place.
  void ask_again(std::uint32_t server);
  /// A server has left, and executes nothing more: its acknowledgement is not needed.
  void lose_server(std::uint32_t server);
  void fail_all(const std::exception_ptr& error);

  bool idle() const { return commands_.empty(); }
  /// Since when the oldest has waited; Clock::time_point::max() when idle.
  Clock::time_point oldest() const;
  /// "servers 0, 2 have not carried out 'sgd lr=0.1'", of the oldest. Requires !idle().
  std::string describe_wait() const;

 private:
  struct Command {
    Ticket done;
    std::string text;
    std::vector<Acknowledgement>* said = nullptr;
    /// Servers of which not all threads have answered, and the threads of each that have: with replicas each
    /// thread's mirror knows a command for itself.
    std::map<std::uint32_t, std::set<std::uint32_t>> heard;
    Clock::time_point began, asked;
  };

  void send(std::uint64_t number, std::uint32_t server) const;

  const std::uint32_t servers_;
  Send send_;
  std::set<std::uint32_t> lost_;  ///< servers
  std::uint64_t last_number_;
  std::map<std::uint64_t, Command> commands_;  ///< by number; those that are not done
};

}  // namespace gradwire::kvstore
