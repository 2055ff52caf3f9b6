// The scheduler of a job over ZeroMQ: rendezvous, liveness, exchanges, goodbyes. One thread owns its sockets.
#include <algorithm>
#include <memory>
#include <utility>

#include "transport/address.h"
#include "transport/nodes.h"
#include "transport/thread_name.h"
#include "transport/zmq/descriptor_limit.h"
#include "transport/zmq/scheduler_state.h"
#include "transport/zmq/zmq_options.h"

namespace gradwire::transport {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFarewell{2'000};   // what servers get to say goodbye after the last worker did
constexpr milliseconds kLastWords{1'000};  // for the news of a failure to leave this process
constexpr milliseconds kLastAnswers{100};

}  // namespace

Scheduler::State::State(const ZmqOptions& options_)
    : options(options_),
      router(context, ZMQ_ROUTER, options_.max_frame_bytes),
      watch(context, router),
      rendezvous(options_.workers, options_.servers, options_.servers_optional, options_.replicas,
                 options_.on_failure),
      liveness(options_.liveness_timeout),
      exchanges(std::make_unique<ExchangeCoordinator>(options_.workers)),
      refusals(options_.log),
      sender([this](const std::string& peer, Frame frame) {
        std::vector<Frame> frames;
        frames.push_back(std::move(frame));
        router.send_to(peer, pack(std::move(frames)));
      }) {
  require_scheduler_options(options);
  const std::size_t servers = options.servers == 0 ? options.workers : options.servers;
  require_descriptors(options.workers + servers, "scheduler: " + std::to_string(options.workers) +
                                                     " workers and " + std::to_string(servers) +
                                                     " servers: listening to them");
  router.set(ZMQ_ROUTER_MANDATORY, 1);
  router.set(ZMQ_ROUTER_HANDOVER, 1);
  if (options.key && !is_ipc(options.scheduler)) {
    authenticator.emplace(context, *options.key);
    authenticator->guard(router);
  } else {
    router.refuse_old_protocols();
  }
  listening = scheduler_listening(options);
  endpoint = start_listening(router, listening);
  thread = std::thread([this] { run(); });
}

Scheduler::State::~State() {
  end.ask_to_stop();
  thread.join();
  router.set_linger(phase == Phase::kFailed ? kLastWords : kLastAnswers);
}

void Scheduler::State::run() {
  name_this_thread("gw scheduler");
  try {
    loop();
  } catch (const std::exception& error) {
    finish(Phase::kFailed,
           std::make_exception_ptr(TransportError(std::string("scheduler: ") + error.what())));
  }
}

void Scheduler::State::loop() {
  std::vector<void*> sockets{router.get(), watch.get()};
  if (authenticator) sockets.push_back(authenticator->get());
  for (;;) {
    const auto until_beat = std::chrono::ceil<milliseconds>(next_beat - Clock::now());
    poll(sockets, end.wakeup(), until_beat);
    end.wakeup().clear();
    if (authenticator) authenticator->answer();
    take_messages();
    const JobEnd::Asked asked = end.take_asked();
    // The request comes first: what somebody asked to fail for is the better reason than the closing behind
    // it.
    if (asked.failure) fail(*asked.failure, FailureCause::kFault);
    if (asked.stop) fail("the scheduler was closed before the job was over", FailureCause::kFault);
    const Clock::time_point now = Clock::now();
    take_connection_events(now);
    tick(now);
    if (asked.stop) return;
  }
}

void Scheduler::State::take_connection_events(Clock::time_point now) {
  while (const auto event = watch.next()) {
    if (const auto fault = fault_of(*event); !fault.empty())
      refusals.note("a stranger", "handshake at " + endpoint + ": " + std::string(fault));
    if (event->kind == ConnectionEvent::Kind::kAccepted) unauthenticated.accepted(event->fd);
    if (event->kind == ConnectionEvent::Kind::kDisconnected) take_ended(event->fd, now);
  }
}

void Scheduler::State::take_ended(int fd, Clock::time_point now) {
  // A member of an earlier generation that goes away had no part in this one: nobody waits for it.
  std::erase_if(peers, [&](const auto& entry) {
    return entry.second.fd == fd && entry.second.standing == Standing::kFormer;
  });
  std::vector<std::string> arrivals;
  // A closed connection is not yet a death: libzmq may reconnect. Liveness gives it a short while to come
  // back.
  for (const auto& [id, peer] : peers) {
    if (peer.fd != fd) continue;
    liveness.disconnected(id, now);
    if (phase == Phase::kRendezvous && peer.standing == Standing::kMember) arrivals.push_back(id);
  }
  // Whoever died may be replaced at once; who comes back says hello again.
  if (options.on_failure == OnFailure::kAbort) return;
  for (const std::string& id : arrivals) forget_arrival(id, "closed its connection");
}

void Scheduler::State::take_messages() {
  constexpr int kBatch = 1024;  // so that beats go out even in a flood
  Packet packet;
  for (int i = 0; i < kBatch && router.receive(packet); ++i) {
    const std::string peer = packet.front().text();
    const Caller caller{packet.back().peer_address(), packet.back().source_fd()};
    try {  // anybody may send bytes here: what is no frame is its sender's fault alone
      for (const Frame& frame : unpack(std::move(packet), 1)) handle(peer, caller, frame);
    } catch (const FrameError& error) {
      refuse(peer, caller, error.what());
    }
  }
}

void Scheduler::State::tick(Clock::time_point now) {
  if (now < next_beat) return;
  next_beat = now + liveness.beat();
  if (phase == Phase::kRendezvous) tick_rendezvous(now);
  if (phase == Phase::kRegroup) tick_regroup(now);
  if (phase == Phase::kRunning && !workers_left_at) tick_running(now);
  // The work is done. Servers that do not say goodbye are not worth failing a job for that has its result.
  if (phase == Phase::kRunning && workers_left_at) {
    if (have_all_left(peers, Role::kServer) || now - *workers_left_at >= kFarewell)
      finish(Phase::kOver, nullptr);
  }
  if (phase != Phase::kFailed && phase != Phase::kOver) beat();
}

void Scheduler::State::tick_rendezvous(Clock::time_point now) {
  // Before the job has begun a death costs nothing: another may come in its place.
  while (const auto lost = liveness.check(now)) forget_arrival(lost->id, lost->why);
  // Optional servers may be started long before the first worker decides whether it wants them.
  const auto since = options.servers_optional ? first_worker_at : started;
  if (since && now - *since >= options.rendezvous_timeout) {
    const std::string note = listening.note.empty() ? "" : " (" + listening.note + ")";
    fail("rendezvous: still waiting for " + rendezvous.awaited() + " after " +
             in_seconds(options.rendezvous_timeout) +
             ": check that all were started, that each makes a store, an optimizer or a hook, and that they "
             "can reach " +
             endpoint + note + descriptor_shortage(),
         FailureCause::kDeadline);
  } else if (now >= next_progress) {
    next_progress = now + kProgressEvery;
    log("waiting for " + rendezvous.awaited());
  }
}

void Scheduler::State::forget_arrival(const std::string& peer, const std::string& why) {
  log(peers.at(peer).name + " " + why + "; the job has not begun and waits for another");
  rendezvous.forget(peer);
  liveness.forget(peer);
  peers.erase(peer);
}

void Scheduler::State::tick_running(Clock::time_point now) {
  std::set<std::string> dead;  // members
  std::string all_words;
  while (const auto lost = liveness.check(now)) {
    const Peer& peer = peers.at(lost->id);
    if (peer.standing == Standing::kWaiting) {
      forget_waiting(lost->id, lost->why);
      continue;
    }
    const std::string words = peer.name + " " + lost->why;
    const bool is_dedicated = peer.node.role == Role::kServer && peer.hello.pair.empty();
    // A mirror serves in its place: to the workers nothing has ended.
    if (replace(lost->id, lost->why)) continue;
    if (!next || is_dedicated) {  // what it kept is lost with it
      const std::string twice = mirrors ? mirrors->fault() : "";
      return fail(words + (twice.empty() ? "" : "; " + twice), FailureCause::kFault);
    }
    // A worker and the server that it hosts are one process, and die as one.
    if (dead.insert(peer.hello.member).second) all_words += (all_words.empty() ? "" : "; ") + words;
    for (const auto& [id, other] : peers) {
      if (other.hello.member == peer.hello.member) liveness.forget(id);
    }
  }
  // Together: two that die in one moment, as with their host, cost one new generation and not two.
  if (dead.empty()) return;
  go_on_without(dead, all_words);
  std::erase_if(peers, [&](const auto& entry) {
    return entry.second.standing == Standing::kFormer && dead.contains(entry.second.hello.member);
  });
}

// Should the lost server live after all, it is told to end.
bool Scheduler::State::replace(const std::string& id, const std::string& why) {
  Peer& lost = peers.at(id);
  if (!mirrors || lost.node.role != Role::kServer) return false;
  const auto mirror = mirrors->lose(lost.node.rank);
  if (!mirror) return false;
  lost.farewell = lost.name + " " + why + "; the job goes on with its mirror in its place";
  sender.send_failure(id, FailureCause::kFault, lost.farewell);
  liveness.forget(id);
  lost.left = true;
  sender.announce(peers, Kind::kDeparture, mirrors->deaths(), to_text(Departure{lost.node.rank, *mirror}));
  log(lost.name + " " + why + "; its mirror, " + to_string(Node{Role::kServer, *mirror}) +
      ", serves in its place, and the job goes on");
  return true;
}

// Everybody is here: ranks are final.
void Scheduler::State::begin() {
  const auto members = rendezvous.members();
  veterans = options.workers;
  call(members, options.workers, rendezvous.servers());
  log("all " + std::to_string(options.workers + rendezvous.servers()) + " nodes are here");
  if (options.on_failure == OnFailure::kContinue) await_next();
}

void Scheduler::State::call(std::span<const Rendezvous::Member> members, std::uint32_t workers,
                            std::uint32_t servers) {
  phase = Phase::kRunning;
  sender.begin_generation();
  roster = {0,
            sender.epoch(),
            workers,
            servers,
            std::vector<std::string>(servers),
            std::vector<std::string>(servers),
            options.replicas,
            generation};
  if (options.replicas > 0) mirrors.emplace(servers, options.replicas);
  for (const Rendezvous::Member& member : members) {
    if (member.node == Node{Role::kWorker, 0}) settings = member.hello.settings;
    Peer& peer = peers.at(member.peer);
    peer.node = member.node;
    peer.name = describe(member.node, member.hello);
    peer.hello = member.hello;
    peer.standing = Standing::kMember;
    if (member.node.role == Role::kServer) {
      roster.endpoints[member.node.rank] = member.hello.endpoint;
      roster.locals[member.node.rank] = member.hello.local;
    }
  }
  for (const auto& [id, peer] : peers) {
    if (peer.standing == Standing::kMember) send_roster(id);
  }
}

void Scheduler::State::handle(const std::string& peer, const Caller& caller, const Frame& frame) {
  if (options.witness) options.witness(frame.header.kind);
  if (frame.header.kind == Kind::kHello) on_hello(peer, caller, frame);
  const auto found = peers.find(peer);
  if (found == peers.end()) {
    const Kind kind = frame.header.kind;
    // Of an earlier generation, of whose end it could not hear.
    const bool is_former = kind == Kind::kHeartbeat && frame.header.epoch != 0 && !change.empty();
    if (is_former && may_be_answered(caller)) return send_change(peer);
    // A refused hello, and what libzmq delivers late of a peer that was forgotten, are no attack.
    const bool is_harmless = kind == Kind::kHello || kind == Kind::kHeartbeat || kind == Kind::kGoodbye;
    if (!is_harmless) refuse(peer, caller, "the first frame of a connection must be a hello");
    return;
  }
  Peer& from = found->second;
  from.fd = caller.fd;
  if (from.standing == Standing::kFormer) return on_former(peer, frame);
  // Any frame is a sign of life, so that a flood of exchanges does not have to be mixed with heartbeats.
  if (!from.left && from.standing != Standing::kSpare) liveness.heard(peer, Clock::now());
  if (frame.header.kind == Kind::kHello) return;
  if (frame.header.kind == Kind::kHeartbeat) return on_heartbeat(peer, from, frame);
  if (from.standing == Standing::kWaiting) return on_waiting(peer, caller, frame);
  // Before the roster no node has a rank or an epoch to send. After it, others' are a bug or a forgery.
  const bool knows_its_rank = phase != Phase::kRendezvous && frame.header.sender.rank != kNoRank;
  if (knows_its_rank && (frame.header.sender != from.node || frame.header.epoch != sender.epoch())) {
    refuse(peer, caller,
           "sender is " + to_string(frame.header.sender) + " in epoch " + std::to_string(frame.header.epoch) +
               ", expected " + to_string(from.node) + " in this job's epoch");
    return;
  }
  switch (frame.header.kind) {
    case Kind::kExchange:
      return on_exchange(from, frame);
    case Kind::kWait:
      return on_wait(from, frame);
    case Kind::kGoodbye:
      return on_goodbye(peer, from, frame);
    case Kind::kFailure:
      // A node that leaves a job which goes on asks for the next generation, and not for the job's end.
      if (next && frame.header.key == static_cast<std::uint64_t>(FailureCause::kMembership))
        return on_regroup(peer, frame);
      return fail(payload_text(frame), FailureCause::kFault);
    default:
      refuse(peer, caller,
             "kind " + std::to_string(static_cast<int>(frame.header.kind)) +
                 " is nothing that a scheduler takes");
  }
}

void Scheduler::State::on_hello(const std::string& peer, const Caller& caller, const Frame& frame) {
  // Told why, and not refused: it may be a rank of this job that started late, and has to end with the
  // others.
  if (phase == Phase::kFailed) return turn_away(peer, caller, failure_cause, failure);
  const Hello hello = parse_hello(payload_text(frame));
  if (phase == Phase::kRendezvous) take_connection_events(Clock::now());  // who has gone makes room
  if (next && !rendezvous.is_spare(hello)) return on_later_hello(peer, caller, hello);
  if (phase != Phase::kRendezvous) {
    // A hello that comes again: the roster that answered the first one was lost with its connection.
    if (const auto known = peers.find(peer);
        known != peers.end() && known->second.standing != Standing::kSpare)
      return send_roster(peer);
    if (!rendezvous.is_spare(hello))
      return refuse(peer, caller, "rendezvous: the job has begun and all its nodes are here");
  }
  if (const auto why = rendezvous.take(peer, hello)) return refuse(peer, caller, *why);
  const Node wanted{hello.role, hello.rank.value_or(kNoRank)};
  Peer& known = peers[peer];
  known.name = hello.rank ? describe(wanted, hello) : arrival_name(hello);
  known.node.role = hello.role;
  if (hello.role == Role::kWorker && !first_worker_at) first_worker_at = Clock::now();
  known.dedicated = hello.role == Role::kServer && hello.pair.empty();
  liveness.heard(peer, Clock::now());
  set_spare_aside();
  if (phase == Phase::kRendezvous && rendezvous.is_complete()) begin();
}

// Once one worker hosts a server of its own all do, and dedicated servers are not used: they stay, silent,
// until the job ends, and are not awaited.
void Scheduler::State::set_spare_aside() {
  for (auto& [id, peer] : peers) {
    if (!peer.dedicated || !rendezvous.has_pairs()) continue;
    peer.standing = Standing::kSpare;
    liveness.forget(id);
  }
}

void Scheduler::State::on_exchange(const Peer& from, const Frame& frame) {
  if (phase != Phase::kRunning || from.node.role != Role::kWorker) return;
  std::optional<ExchangeReply> reply;
  try {
    const auto ask = static_cast<ExchangeAsk>(frame.header.step);
    reply = exchanges->take(from.node.rank, frame.header.key, ask, payload_text(frame));
  } catch (const CallMismatch& mismatch) {
    return on_mismatch(exchanges->odd(frame.header.key), mismatch.what());
  }
  if (reply) answer(std::move(*reply));
}

// Workers that wait for one another would do so for ever.
void Scheduler::State::on_wait(const Peer& from, const Frame& frame) {
  if (phase != Phase::kRunning || from.node.role != Role::kWorker || from.left) return;
  // Only a report that changes the picture can complete a deadlock.
  if (!waits.take(from.node.rank, parse_wait_report(payload_text(frame)))) return;
  for (const auto& [rank, rounds] : waits.take_questions()) {
    if (const std::string worker = worker_of(peers, rank); !worker.empty())
      sender.send(worker, Kind::kWait, 0, 0, to_buffer(wait_question(rounds)));
  }
  const Deadlock found = waits.deadlock(exchanges->exchanges());
  if (found.workers.empty()) return;
  // Where a veteran is part of it, the newcomers are who does not fit: they leave, and the others go on.
  std::vector<std::uint32_t> odd = found.workers;
  if (odd.front() < veterans) std::erase_if(odd, [this](std::uint32_t rank) { return rank < veterans; });
  on_mismatch(odd.empty() ? found.workers : odd, found.text);
}

// Who was let in while the job ran, and makes other calls than the others, leaves alone.
void Scheduler::State::on_mismatch(const std::vector<std::uint32_t>& ranks, const std::string& why) {
  std::set<std::string> newcomers;
  for (const std::uint32_t rank : ranks) {
    if (rank < veterans) return fail(why, FailureCause::kCalls);
    if (const std::string worker = worker_of(peers, rank); !worker.empty())
      newcomers.insert(peers.at(worker).hello.member);
  }
  if (newcomers.empty()) return fail(why, FailureCause::kCalls);
  dismiss(newcomers, why);
}

void Scheduler::State::answer(ExchangeReply reply) {
  const Buffer payload = to_buffer(std::move(reply.payload));
  for (const std::uint32_t rank : reply.workers) {
    if (const std::string worker = worker_of(peers, rank); !worker.empty())
      sender.send(worker, Kind::kExchangeResult, reply.sequence, static_cast<std::uint64_t>(reply.answer),
                  payload.share());
  }
}

void Scheduler::State::on_goodbye(const std::string& peer, Peer& from, const Frame& frame) {
  sender.acknowledge_goodbye(peer);
  if (from.left) return;  // repeated: its acknowledgement was lost
  if (phase == Phase::kRendezvous) return forget_arrival(peer, "left");
  take_leave(peer, from, parse_error(payload_text(frame)));
}

// Tells the others that they go on without a member whose work is done, or which an error has ended.
void Scheduler::State::take_leave(const std::string& peer, Peer& from, const std::string& error) {
  liveness.forget(peer);
  from.left = true;
  if (phase != Phase::kRunning) return;
  // Servers that nobody used hear it too: from the last one on, they need no scheduler.
  sender.announce(peers, Kind::kGoodbye, static_cast<std::uint64_t>(GoodbyeStage::kLeaving),
                  goodbye_text(from.node) + error_text(error));
  if (from.node.role == Role::kWorker) {
    waits.forget(from.node.rank);
    // Who waits for it in an exchange would wait for ever.
    for (ExchangeReply& reply : exchanges->leave(from.node.rank, error)) answer(std::move(reply));
  }
  if (!workers_left_at && have_all_left(peers, Role::kWorker)) workers_left_at = Clock::now();
  if (workers_left_at && have_all_left(peers, Role::kServer)) finish(Phase::kOver, nullptr);
}

// Says again what was said while its connection was down, and is lost.
void Scheduler::State::on_heartbeat(const std::string& peer, const Peer& from, const Frame& frame) {
  if (!from.farewell.empty()) return sender.send_failure(peer, FailureCause::kFault, from.farewell);
  if (phase == Phase::kFailed) return sender.send_failure(peer, failure_cause, failure);
  if (from.standing == Standing::kFormer) return send_change(peer);
  if (from.hears_news()) sender.send_notices(peer, frame.header.key);
}

void Scheduler::State::send_roster(const std::string& peer) {
  Roster own = roster;
  own.rank = peers.at(peer).node.rank;
  sender.send(peer, Kind::kRoster, 0, 0, to_buffer(to_text(own)));
}

void Scheduler::State::refuse(const std::string& peer, const Caller& caller, const std::string& why) {
  refusals.note(caller.address, why);
  const auto known = peers.find(peer);
  // Members hear every refusal. Others get one answer a connection, or their unread answers would fill
  // memory.
  const bool is_member = known != peers.end() && known->second.standing != Standing::kWaiting;
  if (is_member || may_be_answered(caller)) sender.send(peer, Kind::kReject, 0, 0, to_buffer(why));
}

bool Scheduler::State::may_be_answered(const Caller& stranger) {
  take_connection_events(Clock::now());  // it may be a new connection, with a descriptor that was another's
  return unauthenticated.may_be_answered(stranger.fd);
}

void Scheduler::State::turn_away(const std::string& peer, const Caller& caller, FailureCause cause,
                                 const std::string& why) {
  if (may_be_answered(caller)) sender.send_failure(peer, cause, why);
}

void Scheduler::State::fail(const std::string& text, FailureCause cause) {
  if (phase == Phase::kFailed || phase == Phase::kOver) return;  // the first cause is what counts
  failure = text;
  failure_cause = cause;
  for (const auto& [id, peer] : peers) {
    if (!peer.left) sender.send_failure(id, failure_cause, failure);
  }
  finish(Phase::kFailed, cause == FailureCause::kDeadline ? std::make_exception_ptr(TimeoutError(text))
                                                          : std::make_exception_ptr(TransportError(text)));
}

void Scheduler::State::finish(Phase last, std::exception_ptr error) {
  phase = last;
  if (last == Phase::kOver) dismiss_waiting();
  end.set(std::move(error));
}

Scheduler::Scheduler(const ZmqOptions& options) : state_(std::make_unique<State>(options)) {}
Scheduler::~Scheduler() = default;
std::string Scheduler::endpoint() const { return state_->endpoint; }

std::string Scheduler::address() const {
  const std::string& first = state_->listening.endpoints.front();
  if (is_ipc(first)) return first;
  const std::string host = parse_tcp(first).host;
  return is_unspecified(host) ? "*" : host;
}

ZmqOptions Scheduler::beside(ZmqOptions node) const {
  node.scheduler = endpoint();
  if (is_ipc(node.scheduler)) return node;
  const std::string host = address();
  node.scheduler = to_endpoint({host == "*" ? "127.0.0.1" : host, parse_tcp(node.scheduler).port});
  // Who listens for the whole job on all interfaces does so as a server, too.
  if (host == "*" && node.bind_host.empty() && node.interface.empty()) node.bind_host = "*";
  return node;
}

bool Scheduler::wait_for(milliseconds timeout) { return state_->end.wait_for(timeout); }
void Scheduler::wait() {
  while (!wait_for(std::chrono::hours(1))) {
  }
}
void Scheduler::fail(const std::string& text) { state_->end.ask_to_fail(text); }

}  // namespace gradwire::transport
