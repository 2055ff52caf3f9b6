// A worker or a server over ZeroMQ: callers queue, one I/O thread owns the sockets.
#include "transport/zmq/zmq_messenger.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "transport/address.h"
#include "transport/membership/wait_graph.h"
#include "transport/nodes.h"
#include "transport/thread_name.h"
#include "transport/zmq/data_links.h"
#include "transport/zmq/descriptor_limit.h"
#include "transport/zmq/listening.h"
#include "transport/zmq/scheduler_link.h"
#include "transport/zmq/zmq_options.h"

namespace gradwire::transport {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLeaveTimeout{2'000};        // of the destructor
constexpr milliseconds kLastWordsToScheduler{500};  // for a failing node to tell the scheduler why

// Frames of one partition go one way, so that they keep their order.
std::uint64_t spread_of(const FrameHeader& header) {
  // Offsets are multiples of the partition size: unmixed, all partitions of a key could share one stream. The
  // constants are those of SplitMix64.
  std::uint64_t mix = header.key * 0x9E3779B97F4A7C15u + header.offset;
  mix = (mix ^ mix >> 30) * 0xBF58476D1CE4E5B9u;
  return mix >> 32;
}

// Callers leave what they want in outgoing_ and requests_, and ring. The I/O thread takes both between two
// polls, feeds its links, and puts what they report into the inbox. The first failure is final, and every
// wait below ends with it. Lock order: mutex_ before the inbox's. Failures are posted with mutex_ held, since
// the waits on changed_ ask the inbox whether it has failed. One posted between that question and the wait
// would wake nobody.
class ZmqMessenger final : public Messenger, public SchedulerLink::Events {
 public:
  explicit ZmqMessenger(const ZmqOptions& options);
  ~ZmqMessenger() override;

  /// Blocks until the node has joined; throws why it did not.
  void join_job();

  Node self() const override { return self_; }
  World world() const override { return world_; }
  void attach(Sink& sink) override;
  void detach() override { inbox_.detach(); }
  void send(Node to, std::vector<Frame> frames) override;
  bool seals_payloads() const override { return seals_some_; }
  std::vector<std::string> exchange(std::string_view name, std::string_view blob,
                                    milliseconds timeout) override;
  void report_wait(const WaitReport& report) override;
  std::uint64_t exchanges() const override { return exchange_count_; }
  void fail(const std::string& text) override;
  std::uint32_t newcomers() const override { return newcomers_; }
  void regroup(const std::string& text, Parting parting) override;
  void note_error(const std::string& error) override;
  void leave(milliseconds timeout) override;
  std::vector<PeerCounters> counters() const override { return traffic_.snapshot(); }

 private:
  struct ControlRequest {
    Kind kind;
    std::uint64_t key = 0;
    std::uint64_t step = 0;
    std::string payload;
  };

  // I/O thread
  void run();
  void loop();
  void take_requests();
  bool has_left(Clock::time_point now) const;
  void tick(Clock::time_point now);
  void give_up(const std::string& text);
  void close_sockets();
  void note_local_peers();
  std::vector<std::string> endpoints_for_here(const Roster& roster) const;
  void on_roster(const Roster& roster) override;
  void on_exchange_result(const Frame& frame) override;
  void on_question(const std::set<std::string>& rounds) override { inbox_.post_question(rounds); }
  void on_goodbye(Node peer, const std::string& error) override;
  void on_departure(Node server, Node mirror) override;
  void on_newcomers(std::uint32_t count) override { newcomers_ = count; }
  void on_failure(const std::string& text, FailureCause cause) override;
  Hello hello() const;

  // callers
  void check_member_locked() const;
  bool seals(Node to) const;
  void seal(Node to, Buffer& payload) const;
  void ask(ControlRequest request);
  std::vector<std::string> await_exchange(std::unique_lock<std::mutex>& lock, std::uint64_t sequence,
                                          std::string_view name, const std::string& payload,
                                          milliseconds timeout);

  const ZmqOptions options_;
  Inbox inbox_;
  Traffic traffic_;
  RejectionLog refusals_;
  Wakeup wakeup_;
  Node self_;                   // written by the I/O thread before joined_, constant after
  World world_;                 // likewise
  std::set<Node> local_peers_;  // likewise
  bool seals_some_ = false;     // likewise
  std::atomic<std::uint32_t> newcomers_{0};

  // The I/O thread's own. Sockets are closed before their context ends. Contexts end with the thread: a node
  // that has left keeps no threads and descriptors. Data has a context of its own, since only the end of a
  // context says that libzmq reads no sent memory any more. The scheduler's socket may linger longer.
  std::optional<ZmqContext> control_context_{std::in_place};
  std::optional<ZmqContext> data_context_{std::in_place};
  std::unique_ptr<DataLinks> data_;  // a worker's exists from the roster on
  std::unique_ptr<SchedulerLink> scheduler_;
  std::uint32_t workers_left_ = 0;
  Clock::time_point join_deadline_;                  // for data connections, set by the roster
  bool opened_ = false;                              // all data connections are open
  std::optional<Clock::time_point> leave_deadline_;  // set once goodbyes are said

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<Outgoing> outgoing_;
  std::vector<ControlRequest> requests_;
  std::optional<milliseconds> leaving_;
  std::string error_;  // what ends this node
  bool joined_ = false;
  bool closed_ = false;
  bool deadline_passed_ = false;  // why the rendezvous failed
  std::atomic<std::uint64_t> exchange_count_ = 0;
  std::map<std::uint64_t, AwaitedExchange> exchanges_;

  std::thread thread_;
};

ZmqMessenger::ZmqMessenger(const ZmqOptions& options)
    : options_(options), refusals_(options.log), self_{options.role, options.rank.value_or(kNoRank)} {
  require_node_options(options_);
  // A server listens before it says hello: the hello publishes the endpoint with the port that the system
  // chose.
  if (options_.role == Role::kServer) {
    require_descriptors(std::size_t{options_.workers} * options_.streams_per_peer,
                        "server: listening to " + std::to_string(options_.workers) + " workers with " +
                            std::to_string(options_.streams_per_peer) + " streams each");
    data_ = std::make_unique<ServerLinks>(DataLinks::Report{inbox_, traffic_, refusals_}, *data_context_,
                                          server_listening(options_), options_.max_frame_bytes, options_.key);
  }
  // hello() reads data_, so this comes after it. The thread comes last: it uses every member.
  scheduler_ =
      std::make_unique<SchedulerLink>(*control_context_, options_, hello(), traffic_, refusals_, *this);
  thread_ = std::thread([this] { run(); });
}

ZmqMessenger::~ZmqMessenger() {
  leave(kLeaveTimeout);
  inbox_.detach();
  thread_.join();
}

Hello ZmqMessenger::hello() const {
  Hello hello{.role = options_.role,
              .rank = options_.rank,
              .workers = options_.workers,
              .servers = options_.servers,
              .endpoint = {},
              .local = {},
              .pair = options_.pair,
              .host = host_name(options_.host),
              .pid = static_cast<std::uint64_t>(getpid()),
              .replicas = options_.replicas,
              .member = options_.member,
              .settings = options_.settings};
  if (const auto* server = dynamic_cast<const ServerLinks*>(data_.get())) {
    hello.endpoint = server->endpoint();
    const std::string machine = machine_identity(hello.host);
    // Without an identity no other process can know that it is on this machine.
    if (!machine.empty() && !server->local_endpoint().empty())
      hello.local = machine + " " + server->local_endpoint();
  }
  return hello;
}

// --- callers ---

void ZmqMessenger::join_job() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return joined_ || inbox_.failed(); });
  if (!inbox_.failed()) return;
  // The inbox does not distinguish deadlines: only the rendezvous fails by one here.
  if (deadline_passed_) throw TimeoutError(inbox_.failure());
  inbox_.rethrow();
}

void ZmqMessenger::attach(Sink& sink) {
  // The ring below lets the I/O thread deliver at once what came earlier, and not at the next beat.
  inbox_.attach(sink);
  wakeup_.ring();
}

void ZmqMessenger::check_member_locked() const {
  inbox_.rethrow();
  // After the failure, which is the better reason to a caller that is late.
  if (leaving_) throw TransportError(to_string(self_) + " has left the job");
}

void ZmqMessenger::send(Node to, std::vector<Frame> frames) {
  check_route(self_, world_, to, frames);
  if (frames.empty()) return;
  for (Frame& frame : frames) {
    frame.header.sender = self_;
    // On the caller's thread, as are checksums and packing, so that the I/O thread only moves parts.
    frame.header.epoch = world_.epoch;
    seal(to, frame.payload);
  }
  Outgoing outgoing{to, spread_of(frames.front().header), total_bytes(frames), frames.size(), {}};
  outgoing.packet = pack(std::move(frames));
  bool was_idle = false;
  {
    const std::lock_guard lock(mutex_);
    check_member_locked();
    // The I/O thread takes the whole list at once: a list that is not empty was rung for already.
    was_idle = outgoing_.empty();
    outgoing_.push_back(std::move(outgoing));
  }
  if (was_idle) wakeup_.ring();
}

bool ZmqMessenger::seals(Node to) const {
  if (options_.checksum != PayloadChecksum::kAuto) return options_.checksum == PayloadChecksum::kAlways;
  return !local_peers_.contains(to);
}

void ZmqMessenger::seal(Node to, Buffer& payload) const {
  if (options_.checksum == PayloadChecksum::kOff) {
    // The store seals payloads of lossy codecs by itself. A user that asked for no checksums gets none of
    // these, either.
    payload.unseal();
  } else if (!payload.checksum() && seals(to)) {
    payload.seal();
  }
}

void ZmqMessenger::ask(ControlRequest request) {
  requests_.push_back(std::move(request));
  wakeup_.ring();
}

std::vector<std::string> ZmqMessenger::exchange(std::string_view name, std::string_view blob,
                                                milliseconds timeout) {
  check_exchange(self_, name);
  const std::string payload = std::string(name) + '\0' + std::string(blob);
  std::unique_lock lock(mutex_);
  check_member_locked();
  // Under the lock that also queues the offer: the scheduler takes an offer with a lower number than the last
  // for a repetition.
  const std::uint64_t sequence = exchange_count_++;
  // Before the request: an answer to an exchange that is not listed is dropped.
  exchanges_[sequence];
  ask({Kind::kExchange, sequence, static_cast<std::uint64_t>(ExchangeAsk::kOffer), payload});
  try {
    auto blobs = await_exchange(lock, sequence, name, payload, timeout);
    exchanges_.erase(sequence);
    return blobs;
  } catch (...) {
    exchanges_.erase(sequence);
    throw;
  }
}

std::vector<std::string> ZmqMessenger::await_exchange(std::unique_lock<std::mutex>& lock,
                                                      std::uint64_t sequence, std::string_view name,
                                                      const std::string& payload, milliseconds timeout) {
  // Other threads add and erase their own exchanges meanwhile; entries of a std::map stay where they are.
  AwaitedExchange& waiting = exchanges_[sequence];
  const auto settled = [&] { return inbox_.failed() || leaving_ || waiting.blobs || waiting.deserted; };
  const auto ask_who_is_missing = [&] {
    const bool ours_was_lost =
        waiting.missing && std::ranges::find(*waiting.missing, self_.rank) != waiting.missing->end();
    // Before the question, so that the next answer already counts this worker in.
    if (ours_was_lost)
      ask({Kind::kExchange, sequence, static_cast<std::uint64_t>(ExchangeAsk::kOffer), payload});
    ask({Kind::kExchange, sequence, static_cast<std::uint64_t>(ExchangeAsk::kStatus), {}});
  };
  ExchangeWait wait({self_, sequence, name, "the scheduler"}, waiting,
                    {lock, changed_, settled, ask_who_is_missing});
  const std::string late = wait.within(timeout, options_.slow_exchange);
  // A result that is there is returned even if the job has failed since: other workers have got it, too.
  if (waiting.blobs) return std::move(*waiting.blobs);
  check_member_locked();
  if (waiting.deserted) throw TransportError(*waiting.deserted);
  // fail() takes the lock itself. The caller erases the entry with the lock held, hence the second lock().
  lock.unlock();
  fail(to_string(self_) + " gave up: " + late);  // who comes later must not go past it
  lock.lock();
  throw TimeoutError(late);
}

void ZmqMessenger::report_wait(const WaitReport& report) {
  if (self_.role != Role::kWorker) return;
  const std::lock_guard lock(mutex_);
  // A report is advice to the scheduler, and comes from a thread that has no caller to throw to.
  if (!leaving_ && !inbox_.failed()) ask({Kind::kWait, 0, 0, to_text(report)});
}

void ZmqMessenger::fail(const std::string& text) {
  {
    const std::lock_guard lock(mutex_);
    // A later failure is as a rule a consequence of the first, and must not reach the scheduler as another
    // cause.
    if (!inbox_.post_failure(text)) return;
    ask({Kind::kFailure, static_cast<std::uint64_t>(FailureCause::kFault), 0, text});
  }
  changed_.notify_all();
}

void ZmqMessenger::regroup(const std::string& text, Parting parting) {
  if (options_.on_failure == OnFailure::kAbort) return Messenger::regroup(text, parting);
  {
    const std::lock_guard lock(mutex_);
    ask({Kind::kFailure, static_cast<std::uint64_t>(FailureCause::kMembership),
         static_cast<std::uint64_t>(parting), text});
    // It must not look like one that has come to the end: the others would wait for it no longer, and fail.
    if (parting == Parting::kLeaves) inbox_.post_failure(text, Inbox::Scope::kGeneration);
  }
  changed_.notify_all();
}

void ZmqMessenger::note_error(const std::string& error) {
  const std::lock_guard lock(mutex_);
  error_ = error;
}

void ZmqMessenger::leave(milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (!leaving_) {
    // The first caller's timeout holds. Later callers wait for the same end.
    leaving_ = timeout;
    wakeup_.ring();
    changed_.notify_all();
  }
  changed_.wait(lock, [this] { return closed_; });
}

// --- I/O thread ---

void ZmqMessenger::run() {
  name_this_thread(options_.role == Role::kWorker ? "gw io worker" : "gw io server");
  try {
    loop();
  } catch (const std::exception& error) {  // ours, or a Sink's
    give_up(to_string(self_) + ": " + error.what());
  }
  // Before closed_: a caller that returns from leave() may listen at the same endpoint again, and free what
  // it has sent.
  close_sockets();
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  // After the notice: this blocks until linger times have passed, and no caller of leave() needs to wait for
  // that.
  control_context_.reset();
}

void ZmqMessenger::give_up(const std::string& text) {
  on_failure(text, FailureCause::kFault);
  try {
    scheduler_->send(Kind::kFailure, static_cast<std::uint64_t>(FailureCause::kFault), 0, text);
    // The loop is over, so nothing else hands the failure to the Sink.
    inbox_.deliver();
  } catch (const std::exception&) {  // the first cause is what counts
  }
}

void ZmqMessenger::loop() {
  std::vector<void*> sockets;
  bool more = false;
  for (;;) {
    // Anew in each turn: the roster makes a worker's links, and a departure closes some.
    sockets = scheduler_->sockets();
    if (data_) sockets.insert(sockets.end(), data_->sockets().begin(), data_->sockets().end());
    const auto until_tick = std::chrono::ceil<milliseconds>(scheduler_->next_beat() - Clock::now());
    poll(sockets, wakeup_, more ? milliseconds(0) : until_tick);
    // Before take_requests(): what is queued after the clearing rings again, so that no request waits for a
    // beat.
    wakeup_.clear();
    // Between two batches of messages: a flood of pushes must not keep the replies from being sent.
    take_requests();
    more = data_ && data_->take_messages();
    scheduler_->take_messages();
    tick(Clock::now());
    // After the tick, which may find a failure, and before the end, so that the last goodbyes reach the Sink.
    inbox_.deliver();
    if (has_left(Clock::now())) return;
  }
}

void ZmqMessenger::take_requests() {
  std::vector<Outgoing> outgoing;
  std::vector<ControlRequest> requests;
  std::optional<milliseconds> leaving;
  std::string error;
  {
    const std::lock_guard lock(mutex_);
    // One lock for all four: frames that were queued before leave() are sent before the goodbye below.
    outgoing.swap(outgoing_);
    requests.swap(requests_);
    leaving = leaving_;
    error = error_;
  }
  // A failed job has no receivers. The requests below are still sent: the failure itself may be one of them.
  if (!inbox_.failed() && data_) {
    for (Outgoing& message : outgoing) data_->send(std::move(message));
  }
  for (const ControlRequest& request : requests) {
    scheduler_->send(request.kind, request.key, request.step, request.payload);
  }
  // Only once: leaving_ stays set, and each turn reads it again.
  if (leaving && !leave_deadline_) {
    leave_deadline_ = Clock::now() + *leaving;
    if (inbox_.failed()) return;  // a node whose job has failed must not look like one that left cleanly
    if (data_) data_->say_goodbye(error);
    scheduler_->say_goodbye(error);
  }
}

// Whether goodbyes were said and answered, or nobody needs them any more.
bool ZmqMessenger::has_left(Clock::time_point now) const {
  if (!leave_deadline_) return false;
  const bool answered = scheduler_->is_goodbye_answered() && (!data_ || data_->is_goodbye_answered());
  return answered || inbox_.failed() || now >= *leave_deadline_;
}

void ZmqMessenger::tick(Clock::time_point now) {
  scheduler_->tick(now);
  // Before the roster a server's links do not know their peers, and a worker has none.
  if (!data_ || world_.epoch == 0) return;
  data_->tick(now);
  // A stream that breaks later is repaired by libzmq, or its end is reported by the scheduler.
  if (opened_) return;
  if (data_->is_open()) {
    opened_ = true;
    // Before joined_: its lock publishes self_, world_ and the local peers to the callers.
    note_local_peers();
    {
      const std::lock_guard lock(mutex_);
      joined_ = true;
    }
    changed_.notify_all();
  } else if (now >= join_deadline_) {
    const std::string text =
        "rendezvous: " + to_string(self_) + " has no connection with " + list_nodes(data_->awaited()) +
        "; check that its address can be reached from here, and else have it listen at another "
        "(GRADWIRE_BIND_HOST or GRADWIRE_INTERFACE on its host)" +
        descriptor_shortage();
    on_failure(text, FailureCause::kDeadline);
    // The others would hear of a closed connection, and not why.
    scheduler_->send(Kind::kFailure, static_cast<std::uint64_t>(FailureCause::kFault), 0, text);
  }
}

void ZmqMessenger::note_local_peers() {
  for (const Node peer : data_->peers()) {
    if (data_->is_local(peer)) local_peers_.insert(peer);
    seals_some_ = seals_some_ || seals(peer);
  }
}

void ZmqMessenger::close_sockets() {
  if (inbox_.failed())
    scheduler_->set_linger(kLastWordsToScheduler);  // else all was answered, or waited for long enough
  scheduler_.reset();
  data_.reset();
  data_context_.reset();
}

// Servers of the same machine are reached without its network stack.
std::vector<std::string> ZmqMessenger::endpoints_for_here(const Roster& roster) const {
  std::vector<std::string> endpoints = roster.endpoints;
  // The space keeps an identity from matching one of which it is the beginning. Alone it means: not known.
  const std::string here = machine_identity(host_name(options_.host)) + " ";
  for (std::size_t i = 0; options_.ipc && here.size() > 1 && i < roster.locals.size(); ++i) {
    if (roster.locals[i].starts_with(here)) endpoints[i] = roster.locals[i].substr(here.size());
  }
  // For all, because a server beside the scheduler publishes a loopback address (listening.h).
  for (std::string& endpoint : endpoints) endpoint = as_reached(endpoint, scheduler_->address());
  return endpoints;
}

void ZmqMessenger::on_roster(const Roster& roster) {
  self_.rank = roster.rank;
  world_ = {roster.workers, roster.servers, roster.epoch, roster.replicas, roster.generation};
  newcomers_ = 0;  // this node was one of them
  if (self_.role == Role::kWorker) {
    require_descriptors(
        std::size_t{2} * roster.servers * options_.streams_per_peer,  // of libzmq and the kernel
        "connecting with " + std::to_string(roster.servers) + " servers by " +
            std::to_string(options_.streams_per_peer) + " streams each");
    data_ = std::make_unique<WorkerLinks>(
        DataLinks::Report{inbox_, traffic_, refusals_}, *data_context_, endpoints_for_here(roster),
        options_.streams_per_peer, options_.max_frame_bytes, options_.key,
        [this](const std::string& why) { on_failure(why, FailureCause::kFault); });
  }
  // Before begin(), which says the first hellos.
  if (auto* server = dynamic_cast<ServerLinks*>(data_.get()); server != nullptr && roster.replicas > 0)
    server->connect_mirror(*data_context_, self_, endpoints_for_here(roster), options_.max_frame_bytes,
                           options_.key);
  // Counted from the roster: the wait for the slowest node must not use up the time for connecting.
  join_deadline_ = Clock::now() + options_.rendezvous_timeout;
  data_->begin(world_, self_, Clock::now());
}

void ZmqMessenger::on_exchange_result(const Frame& frame) {
  const std::lock_guard lock(mutex_);
  // A caller that has given up, or has its result, is not listed any more: repeated answers end here.
  const auto found = exchanges_.find(frame.header.key);
  if (found == exchanges_.end()) return;
  found->second.take(static_cast<ExchangeAnswer>(frame.header.step), payload_text(frame));
  changed_.notify_all();
}

void ZmqMessenger::on_goodbye(Node peer, const std::string& error) {
  // The link passes each goodbye on once, so the count is exact. After the last worker the scheduler may end,
  // and its silence is no failure.
  if (peer.role == Role::kWorker && ++workers_left_ == world_.workers) scheduler_->release();
  if (data_) data_->announce_goodbye(peer, error, Clock::now());
}

void ZmqMessenger::on_departure(Node server, Node mirror) {
  if (data_) data_->announce_departure(server, mirror);
}

void ZmqMessenger::on_failure(const std::string& text, FailureCause cause) {
  {
    const std::lock_guard lock(mutex_);
    const auto scope = cause == FailureCause::kMembership ? Inbox::Scope::kGeneration
                       : cause == FailureCause::kCalls    ? Inbox::Scope::kCalls
                                                          : Inbox::Scope::kJob;
    if (!inbox_.post_failure(text, scope)) return;
    deadline_passed_ = cause == FailureCause::kDeadline;
  }
  changed_.notify_all();
}

}  // namespace

std::unique_ptr<Messenger> connect_zmq(const ZmqOptions& options) {
  auto messenger = std::make_unique<ZmqMessenger>(options);
  messenger->join_job();
  return messenger;
}

NodePair connect_zmq_pair(ZmqOptions options) {
  if (options.replicas != 0) {
    throw std::invalid_argument("connect_zmq_pair: replicas=" + std::to_string(options.replicas) +
                                " given, expected 0: a worker's process hosts its server, and none survives "
                                "it; use servers of their own (dist_sync)");
  }
  std::random_device random;
  // Random, because the processes of a job agree on nothing yet: two pairs of one name would be refused.
  options.pair = std::to_string(std::uint64_t{random()} << 32 | random());
  options.servers = options.workers;
  options.role = Role::kWorker;
  // Both are made before either joins: the rendezvous is complete only when both have said hello.
  auto worker = std::make_unique<ZmqMessenger>(options);
  const std::string name = options.rank ? to_string(Node{Role::kWorker, *options.rank}) : "a worker";
  options.role = Role::kServer;
  options.rank.reset();  // the worker's, by their common name
  std::unique_ptr<ZmqMessenger> server;
  try {
    server = std::make_unique<ZmqMessenger>(options);
  } catch (const std::exception& error) {  // the others would wait for it as long as they may
    worker->fail(name + ": " + error.what());
    throw;
  }
  worker->join_job();
  server->join_job();
  return colocate({std::move(worker), std::move(server)});
}

}  // namespace gradwire::transport
