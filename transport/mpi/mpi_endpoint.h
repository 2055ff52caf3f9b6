// MpiEndpoint is one rank of a job over MPI: its nodes, and the one thread that makes all MPI calls.
//
// Threading: public methods from any thread; the rest as the private part says.
// Lifetime: shared by the objects that a rank is given (its users) and the I/O thread. The thread ends when
//   every user has called close() and every rank has left, or the job has failed.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "transport/inbox.h"
#include "transport/mpi/mpi.h"
#include "transport/mpi/mpi_api.h"
#include "transport/mpi/mpi_backoff.h"
#include "transport/mpi/mpi_peers.h"
#include "transport/mpi/mpi_sums.h"
#include "transport/mpi/mpi_watchdog.h"
#include "transport/traffic.h"

namespace gradwire::transport {

class MpiEndpoint final : private MpiPeers::Events {
 public:
  /// A node of this rank.
  struct Place {
    explicit Place(Role role) : node{role, 0} {}

    Node node;  // constant once the job has begun
    Inbox inbox;
    Traffic traffic;
    bool is_leaving = false;    // guarded by the endpoint's mutex
    std::string error;          // guarded, too: the error that ends the node
    bool has_left = false;      // guarded, too; all that it sent has arrived
    std::size_t under_way = 0;  // packets; the I/O thread's
  };

  /// Joins the job; throws as connect_mpi(). users: how many will call close().
  static std::shared_ptr<MpiEndpoint> connect(const MpiOptions& options, MpiJob job, int users);
  /// As above, over another port than that of options.library.
  static std::shared_ptr<MpiEndpoint> connect(std::unique_ptr<MpiApi> port, const MpiOptions& options,
                                              MpiJob job, int users);
  MpiEndpoint(const MpiEndpoint&) = delete;
  MpiEndpoint& operator=(const MpiEndpoint&) = delete;

  Place& place(Role role) { return role == Role::kServer ? server_ : worker_; }
  World world() const { return world_; }
  bool seals_payloads() const;
  std::chrono::milliseconds leave_timeout() const { return options_.leave_timeout; }

  void attach(Place& place, Sink& sink);
  void send(Place& from, Node to, std::vector<Frame> frames);
  std::vector<std::string> exchange(std::string_view name, std::string_view blob,
                                    std::chrono::milliseconds timeout);
  void report_wait(const WaitReport& report);
  std::uint64_t exchanges() const { return exchange_count_; }
  void fail(const std::string& text);
  void note_error(Place& place, const std::string& error);
  void leave(Place& place, std::chrono::milliseconds timeout);
  /// Waits until MPI is not needed any more: every rank has left, or the job has failed and all know it.
  bool outlast(std::chrono::milliseconds timeout);
  /// Starts a sum over all ranks, or without a type gathers blocks: see Collective.
  void sum(Buffer values, std::optional<ElementType> type, Collective::Done done);
  /// Fails the job if sums are under way: the other ranks would wait for ever. Returns when no Done is
  /// running.
  void close_sums();
  /// Called once by each user. The last one waits until every rank has left or the job has failed.
  void close();

 private:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;

  struct Outgoing {
    Place* from;
    std::uint32_t rank;
    MpiPacket packet;
  };
  struct SumRequest {
    Buffer values;
    std::optional<ElementType> type;
    Collective::Done done;
    std::exception_ptr refusal;
  };
  // What callers have asked for since the I/O thread last looked.
  struct Requests {
    std::vector<Outgoing> outgoing;
    std::vector<SumRequest> sums;
    std::vector<std::function<void()>> others;
  };

  MpiEndpoint(const MpiOptions& options, MpiJob job, int users);

  // Callers'.
  void await_start();
  void check_member(const Place& place) const;
  bool seals(std::uint32_t rank) const;
  void seal(std::uint32_t rank, Buffer& payload) const;
  void send_here(Place& from, Place& to, std::vector<Frame> frames);
  void ask(std::uint64_t sequence, ExchangeAsk ask, const std::string& payload);
  std::vector<std::string> await_exchange(Lock& lock, std::uint64_t sequence, std::string_view name,
                                          std::chrono::milliseconds timeout);
  void wake();                                                                            // with mutex_ held
  bool note_failure(const std::string& text, FailureCause cause = FailureCause::kFault);  // with mutex_ held

  // The watch's, while the I/O thread is stuck in MPI.
  /// How long an MPI call may take. Longer than a silent peer is awaited: a rank that can name the dead peer
  /// names it first. This one can only say that MPI does not return.
  std::chrono::milliseconds stuck_after() const { return 2 * options_.liveness_timeout; }
  void on_stuck();

  // The I/O thread's.
  void run();
  void join_job();
  void serve();
  bool step(Clock::time_point now);
  bool take_requests();
  void send_packet(Outgoing outgoing);
  void start_sum(SumRequest request);
  void start_leaving(Place& place);
  void note_sent(Place& place);
  bool work_with_mpi(Clock::time_point now);
  void deliver(Place& place);
  void sleep(Clock::time_point now);
  bool is_over();
  void part_when_all_have_left(Clock::time_point now);
  void finish_when_all_have_parted();
  bool on_fault(const std::string& text);
  void on_question(const std::set<std::string>& rounds) override;
  void settle_failure(Clock::time_point now);
  void give_up_mpi();
  void note_end_of_mpi();
  void on_frames(Node from, std::vector<Frame> frames) override;
  void on_goodbye(Node peer, const std::string& error) override;
  void on_exchange_result(std::uint64_t sequence, ExchangeAnswer answer, std::string_view payload) override;
  void on_failure(const std::string& text, FailureCause cause) override;

  const MpiOptions options_;
  const MpiJob job_;
  Place worker_{Role::kWorker};
  Place server_{Role::kServer};
  World world_;                 // written by the I/O thread before the job has begun, constant after
  std::vector<bool> is_local_;  // written and constant as world_; by rank

  // The I/O thread's own.
  std::unique_ptr<MpiApi> port_;
  std::optional<MpiPeers> peers_;
  std::optional<MpiSums> sums_;
  MpiBackoff backoff_;
  std::optional<Clock::time_point> failed_at_;
  std::optional<Clock::time_point> parting_since_;
  bool has_parted_ = false;
  bool mpi_is_over_ = false;  // it was finished or abandoned

  std::mutex mutex_;                   // guards what follows
  std::condition_variable changed_;    // for callers
  std::condition_variable wake_;       // for the I/O thread
  std::atomic<bool> has_work_{false};  // so that a busy I/O thread need not lock to see that there is none
  Requests requests_;
  std::set<Node> left_;
  std::size_t sums_under_way_ = 0;
  std::size_t sums_untold_ = 0;  // whose Done has not returned
  bool failed_ = false;
  int open_users_;
  bool mpi_is_initialised_ = false;
  bool has_begun_ = false;
  bool mpi_was_ended_ = false;  // what mpi_is_over_ says
  bool has_ended_ = false;      // the I/O thread, or the wait for it
  std::exception_ptr start_error_;
  std::atomic<std::uint64_t> exchange_count_ = 0;
  std::map<std::uint64_t, AwaitedExchange> exchanges_;

  std::atomic<bool> is_stuck_{
      false};  // in MPI for good; whatever it does when it returns, it is to do no harm
  std::thread thread_;
  std::optional<MpiWatchdog> watch_;  // last member: its thread ends before the rest dies
};

}  // namespace gradwire::transport
