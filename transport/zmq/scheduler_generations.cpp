// Later generations of a job that goes on without those that die, and takes in newcomers.
#include "transport/nodes.h"
#include "transport/zmq/scheduler_state.h"

namespace gradwire::transport {

void Scheduler::State::await_next() {
  next.emplace(Regroup::Limits{options.min_workers, options.regroup_timeout, options.regroup_patience},
               rendezvous.has_pairs(), rendezvous.servers(), settings);
}

// Whoever comes after the first rendezvous waits for the next, which may be open already.
void Scheduler::State::on_later_hello(const std::string& peer, const Caller& caller, const Hello& hello) {
  if (phase == Phase::kOver)
    return turn_away(peer, caller, FailureCause::kFault, "rendezvous: the job is over");
  if (const auto known = peers.find(peer); known != peers.end()) {
    // It says hello anew once it has heard that its generation is over, under another routing id.
    if (known->second.standing == Standing::kFormer) return;
    if (known->second.standing == Standing::kMember) return send_roster(peer);
  }
  if (const auto why = next->take(peer, hello)) return refuse(peer, caller, *why);
  const bool is_new = !peers.contains(peer);
  Peer& known = peers[peer];
  known.standing = Standing::kWaiting;
  known.node = {hello.role, kNoRank};
  known.hello = hello;
  known.name = arrival_name(hello);
  liveness.heard(peer, Clock::now());
  if (is_new && phase == Phase::kRunning) log(known.name + " waits to be taken in");
  if (phase == Phase::kRegroup) tick_regroup(Clock::now());
}

namespace {

/// Whether a node ends by itself, and not with its generation: it says no goodbye then.
bool is_own_failure(const Frame& frame) {
  if (frame.header.kind != Kind::kFailure) return false;
  const bool is_of_membership = frame.header.key == static_cast<std::uint64_t>(FailureCause::kMembership);
  return !is_of_membership || frame.header.step == static_cast<std::uint64_t>(Parting::kLeaves);
}

}  // namespace

// Until it has noticed the end of its generation: it computes, and lives.
void Scheduler::State::on_former(const std::string& peer, const Frame& frame) {
  const Peer& from = peers.at(peer);
  const bool has_failed = is_own_failure(frame);
  if (!has_failed && frame.header.kind != Kind::kGoodbye) {
    // It lives: the longer of the two patiences holds for it, since it may be in a long computation.
    if (phase == Phase::kRegroup) next->heard(from.hello.member, Clock::now());
    if (frame.header.kind == Kind::kHeartbeat) on_heartbeat(peer, from, frame);
    return;
  }
  if (has_failed) log(from.name + ": " + payload_text(frame));
  // A hosted server's end is its worker's affair, who says its own.
  const bool is_hosted = from.node.role == Role::kServer && !from.hello.pair.empty();
  if (phase == Phase::kRegroup && !is_hosted) next->drop(from.hello.member);  // it ended before it heard
  if (!has_failed) sender.acknowledge_goodbye(peer);
}

void Scheduler::State::on_waiting(const std::string& peer, const Caller& caller, const Frame& frame) {
  if (frame.header.kind != Kind::kGoodbye)
    return refuse(peer, caller, "rendezvous: who waits to be taken in says hello, and no more");
  sender.acknowledge_goodbye(peer);
  forget_waiting(peer, "left");
}

void Scheduler::State::forget_waiting(const std::string& peer, const std::string& why) {
  log(peers.at(peer).name + " " + why + " before it was taken in");
  next->forget(peer);
  liveness.forget(peer);
  peers.erase(peer);
}

void Scheduler::State::on_regroup(const std::string& peer, const Frame& frame) {
  const Peer& from = peers.at(peer);
  if (phase != Phase::kRunning || from.node.role != Role::kWorker || from.left) return;
  const bool leaves = frame.header.step == static_cast<std::uint64_t>(Parting::kLeaves);
  const std::string why = payload_text(frame);
  if (leaves) return go_on_without({from.hello.member}, from.name + " " + why);
  regroup(why);
}

void Scheduler::State::go_on_without(const std::set<std::string>& members, const std::string& why) {
  // Nobody is left who would need another generation: the work of the others is done.
  if (!have_all_workers_left_but(peers, members)) return regroup(why, members);
  log(why + "; all others have come to the end of the job");
  for (auto& [id, peer] : peers) {
    const bool goes = peer.counts() && members.contains(peer.hello.member);
    if (goes) take_leave(id, peer);
  }
}

// Ends this generation, and calls those that live to the next.
void Scheduler::State::regroup(const std::string& why, const std::set<std::string>& leavers) {
  const auto now = Clock::now();
  change = why;
  log(why + "; the job goes on (on_failure=continue)");
  std::erase_if(peers, [](const auto& entry) {
    const Peer& peer = entry.second;
    return peer.left && peer.standing == Standing::kMember;
  });
  for (auto& [id, peer] : peers) {
    if (peer.standing != Standing::kMember) continue;
    const bool is_hosted = peer.node.role == Role::kServer && !peer.hello.pair.empty();
    // A hosted server comes back with its worker, and need not be awaited beside it.
    if (!is_hosted && !leavers.contains(peer.hello.member)) next->expect(peer.hello.member, peer.node, now);
    peer.standing = Standing::kFormer;
    liveness.forget(id);
    send_change(id);
  }
  workers_left_at.reset();
  phase = Phase::kRegroup;
  next_progress = now + kProgressEvery;
  next->open(now);
}

void Scheduler::State::send_change(const std::string& peer) {
  sender.send_failure(peer, FailureCause::kMembership, change + "; the job goes on (on_failure=continue)");
}

void Scheduler::State::dismiss(const std::set<std::string>& members, const std::string& why) {
  std::string names;
  for (auto& [id, peer] : peers) {
    if (!peer.counts() || !members.contains(peer.hello.member)) continue;
    peer.farewell = why + "; the job, which had begun before it came, goes on without " + peer.name;
    sender.send_failure(id, FailureCause::kFault, peer.farewell);
    if (peer.node.role == Role::kWorker) names += (names.empty() ? "" : " and ") + peer.name;
  }
  go_on_without(members, names + " does not do what the others do (" + why + ")");
}

void Scheduler::State::tick_regroup(Clock::time_point now) {
  while (const auto lost = liveness.check(now)) forget_waiting(lost->id, lost->why);
  switch (next->judge(now)) {
    case Regroup::Verdict::kComplete:
      return begin_next();
    case Regroup::Verdict::kFailed:
      return fail("regroup: " + next->fault() + "; the job had to go on since " + change,
                  FailureCause::kFault);
    case Regroup::Verdict::kWaiting:
      break;
  }
  if (now < next_progress) return;
  next_progress = now + kProgressEvery;
  log("waiting for " + next->awaited());
}

void Scheduler::State::begin_next() {
  const auto members = next->members();
  std::uint32_t workers = 0;
  for (const auto& member : members) workers += member.node.role == Role::kWorker ? 1 : 0;
  const std::uint32_t servers = rendezvous.has_pairs() ? workers : rendezvous.servers();
  veterans = next->back();
  ++generation;
  exchanges = std::make_unique<ExchangeCoordinator>(workers);
  waits = {};
  call(members, workers, servers);
  await_next();
  for (const auto& [id, peer] : peers) {  // who came halfway, and waits on
    if (peer.standing == Standing::kWaiting) next->take(id, peer.hello);
  }
  log("generation " + std::to_string(generation) + ": " + std::to_string(workers) + " workers are here");
}

void Scheduler::State::beat() {
  for (const auto& [id, peer] : peers) {
    if (peer.left) continue;
    const bool is_told = next && phase == Phase::kRunning;
    sender.send(id, Kind::kHeartbeat, is_told ? next->newcomers() : 0,
                is_told && peer.standing == Standing::kWaiting ? 1 : 0);
  }
}

void Scheduler::State::dismiss_waiting() {
  for (const auto& [id, peer] : peers) {
    if (peer.standing == Standing::kWaiting)
      sender.send_failure(id, FailureCause::kFault,
                          "rendezvous: the job was over before it could take this worker in");
  }
}

}  // namespace gradwire::transport
