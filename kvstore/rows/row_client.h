// RowClient is a worker's end of the servers' tables of rows: it sends requests, keeps them until they are
// answered, asks again, and knows who is awaited. Operations on one table go one after the other.
//
// Threading: submit() from any thread, it only hands over; the rest inside the Loop.
// Lifetime: an operation's payloads are its own; its answers are the caller's once its ticket is done.
// Failure: what a server refuses of a push is told to `fail`, which ends the Engine, since others wait for
// it; of a
//   pull or a state, to its ticket.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kvstore/runtime/loop.h"
#include "kvstore/runtime/outbox.h"
#include "kvstore/runtime/staleness_counts.h"
#include "kvstore/runtime/ticket.h"
#include "transport/messenger.h"

namespace gradwire::kvstore {

struct RowRequest {
  std::uint32_t server = 0;
  transport::FrameHeader header;  ///< of kRowInit, kRowPush, kRowPull or a state's; offset numbers the
                                  ///< table's requests
  transport::Buffer payload;
};

/// A kRowReply or kRowState, by the server that it came from.
struct RowAnswer {
  std::uint32_t server = 0;
  transport::Frame frame;
};
using RowAnswers = std::vector<RowAnswer>;

struct RowOperation {
  std::string what;  ///< to people: "rows of 'embedding'"
  std::vector<RowRequest> requests;
  std::shared_ptr<RowAnswers> answers = std::make_shared<RowAnswers>();  // owners: this and who waits
  Ticket done;
};

class RowClient {
 public:
  using Clock = std::chrono::steady_clock;
  using Fail = std::function<void(std::exception_ptr)>;

  /// How long a request is left unanswered before it is repeated. The first repetition comes early enough for
  /// its answer, which names who is awaited, to be here when a warning is due.
  struct Patience {
    std::chrono::milliseconds first, later;
  };

  /// server_role: what servers are to people: kWorker where every worker has one. staleness: where pushes
  /// are applied at once, counts that of each push at each of its servers; else null.
  RowClient(std::shared_ptr<Loop> loop, Outbox& outbox, transport::Role server_role, const Patience& patience,
            Fail fail, StalenessCounts* staleness);

  /// Does the operation, once those on its table have ended that were submitted before. All its requests are
  /// of one table.
  void submit(RowOperation operation);

  /// Takes what a server sent; returns false when it does not concern rows.
  bool handle(transport::Node from, transport::Frame& frame);
  /// Asks again for what has not been answered in time.
  void retry(Clock::time_point now);
  /// Asks again for all that this server was asked for.
  void ask_again(std::uint32_t server);
  void fail_all(const std::exception_ptr& error);

  bool idle() const { return tables_.empty(); }
  bool awaits_server(std::uint32_t rank) const;
  /// Whether servers have said for which workers they wait.
  bool awaits_workers() const;
  /// Since when the oldest has waited; Clock::time_point::max() when idle.
  Clock::time_point oldest() const;
  /// "rows of 'embedding' have waited 60 s for worker 2"
  std::string describe_wait(Clock::time_point now) const;

 private:
  struct Pending : RowRequest {
    Clock::time_point asked;
    int resends = 0;
    int repetitions = 0;                 ///< because of no answer
    std::vector<std::uint32_t> awaited;  ///< ranks that the server said it lacks
  };
  struct Active {
    RowOperation operation;  ///< whose requests are in `pending`
    std::vector<Pending> pending;
    Clock::time_point began;
  };
  struct Table {
    Active active;
    std::deque<RowOperation> waiting;
  };

  void start(Table& table, RowOperation operation);
  void ask(Pending& request);
  void send_again(const Active& active, Pending& request);
  void answered(std::uint64_t key, std::vector<Pending>::iterator request);
  void refuse(std::uint64_t key, const Pending& request, const std::string& text);
  void end(std::uint64_t key);

  std::shared_ptr<Loop> loop_;  // owners: the client's owner, and payloads still in the socket
  Outbox& outbox_;
  const transport::Role server_role_;
  const Patience patience_;
  Fail fail_;
  StalenessCounts* const staleness_;
  std::map<std::uint64_t, Table> tables_;  ///< with an operation, by key
  std::exception_ptr failure_;
};

}  // namespace gradwire::kvstore
