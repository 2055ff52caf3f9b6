// RowClient is a worker's end of the servers' tables of rows: it sends requests, keeps them until they are
// answered, and assembles their answers. Operations on one table run one after the other.
//
// Threading: submit() from any thread, it only hands over; the rest inside the Loop.
// Lifetime: an operation's payloads are its own; its answers are the caller's once its ticket is done.
// Failure: `fail` gets a server's refusal of a push and ends the Engine, because others wait for that push.
// A refusal of a pull or a state goes to its ticket.
#pragma once

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
#include "kvstore/runtime/pending_requests.h"
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
  std::shared_ptr<RowAnswers> answers = std::make_shared<RowAnswers>();  // owners: this, the caller
  Ticket done;
};

class RowClient {
 public:
  using Clock = PendingRequests::Clock;
  using Fail = std::function<void(std::exception_ptr)>;

  /// server_role: the servers' role for people: kWorker where every worker has one. patience: the first
  /// repetition is early enough for its answer, which names the awaited ranks, to be here when a warning is
  /// due. staleness: where pushes are applied at once, counts that of each push at each of its servers; else
  /// null.
  RowClient(std::shared_ptr<Loop> loop, Outbox& outbox, PendingRequests& pending, transport::Role server_role,
            const PendingRequests::Patience& patience, Fail fail, StalenessCounts* staleness);

  /// Does the operation, once those on its table have ended that were submitted before. All its requests are
  /// of one table.
  void submit(RowOperation operation);

  /// Takes what a server sent that concerns rows.
  void handle(transport::Node from, transport::Frame& frame);
  void fail_all(const std::exception_ptr& error);

 private:
  struct Active {
    RowOperation operation;
    std::vector<int> resends;         ///< of each request, because it arrived damaged
    PendingRequests::Handle pending;  ///< numbered as the operation's requests
  };
  struct Table {
    Active active;
    std::deque<RowOperation> waiting;
  };

  void start(std::uint64_t key, Table& table, RowOperation operation);
  void send(const RowRequest& request);
  void send_again(Active& active, std::size_t request);
  void answered(std::uint64_t key, std::size_t request);
  void refuse(std::uint64_t key, std::size_t request, const std::string& text);
  void end(std::uint64_t key);

  std::shared_ptr<Loop> loop_;  // owners: the client's owner, and payloads still in the socket
  Outbox& outbox_;
  PendingRequests& pending_;
  const transport::Role server_role_;
  const PendingRequests::Patience patience_;
  Fail fail_;
  StalenessCounts* const staleness_;
  std::map<std::uint64_t, Table> tables_;  ///< with an operation, by key
  std::exception_ptr failure_;
};

}  // namespace gradwire::kvstore
