// PendingRequests holds a worker's requests to servers that have no answer yet. It repeats them, warns about
// those that wait for long, and reports when to give up. Each report names the awaited ranks.
//
// All clients of a worker keep their requests in one of these. Only the clients know what a request says and
// what its answer means.
//
// Threading: one owner. Pure: no thread, no socket, no clock.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "transport/messenger.h"

namespace gradwire::kvstore {

class PendingRequests {
 public:
  using Clock = std::chrono::steady_clock;

  /// For how long a request is left unanswered before it is sent again: the first time, and the second.
  /// Further times come after twice as long each, up to 8 times as long: a server or a link that takes longer
  /// than this to answer would otherwise be given ever more to do, and never be done.
  struct Patience {
    std::chrono::milliseconds first{0};
    std::chrono::milliseconds later{0};
  };

  struct Request {
    std::uint32_t server = 0;
    Patience patience;
    std::function<void()> repeat;          ///< sends it again; changes nothing of what is pending
    std::vector<std::uint32_t> awaited{};  ///< workers without which the server cannot answer
    bool is_held = false;                  ///< the server has said that it has the request
    int repetitions = 0;                   ///< for want of any word from the server
    Clock::time_point asked{};             ///< when it was sent last
  };

  /// What a caller waits for: as long as it is here, however few of its requests are.
  struct Operation {
    /// To people, and with its verb: "rows of 'embedding' have". Operations of one name are warned of as one.
    std::function<std::string()> name;
    bool is_delivery = false;  ///< it waits for others to take what was sent to them
    Clock::time_point began;
    std::map<std::uint64_t, Request> requests{};  ///< by numbers that their client chooses
  };
  using Handle = std::list<Operation>::iterator;

  struct Limits {
    std::chrono::milliseconds warning{0};  ///< an operation that is older is warned of, once
    std::chrono::milliseconds abort{0};    ///< one that is older is given up
  };

  /// server_role: what servers are to people: kWorker where every worker has one.
  PendingRequests(transport::Role server_role, Limits limits) : server_role_(server_role), limits_(limits) {}

  Handle begin(std::function<std::string()> name, Clock::time_point now, bool is_delivery = false);
  void end(Handle operation) { operations_.erase(operation); }
  /// Adds a request that has just been sent.
  void add(Handle operation, std::uint64_t number, Request request, Clock::time_point now);
  void answered(Handle operation, std::uint64_t number) { operation->requests.erase(number); }
  /// The server has said something about it: it is there.
  static void heard(Request& request) { request.repetitions = 0; }
  /// Sends one again before its time, as to a server that is there.
  static void repeat(Request& request, Clock::time_point now);

  /// Sends again what has not been answered in time.
  void retry(Clock::time_point now);
  /// Sends again all that this server was asked for: another serves in its place.
  void ask_again(std::uint32_t server, Clock::time_point now);

  bool idle() const { return operations_.empty(); }
  bool awaits_server(std::uint32_t rank) const;
  /// "key 'w' step 3 has waited 60 s for worker 2", of each that is slow and was not when this was called
  /// last.
  std::vector<std::string> warnings(Clock::time_point now);
  /// The same of one that must be given up; nothing while there is none.
  std::optional<std::string> overdue(Clock::time_point now) const;

 private:
  using Group = std::vector<const Operation*>;
  bool is_slow(const Operation& operation, Clock::time_point now) const;
  std::string describe(const std::string& name, const Group& group, Clock::time_point now) const;

  const transport::Role server_role_;
  const Limits limits_;
  std::list<Operation> operations_;
  std::set<std::string> warned_;  ///< names of those that are slow and were warned of
};

}  // namespace gradwire::kvstore
