#include "transport/membership/regroup.h"

#include <algorithm>

#include "transport/nodes.h"

namespace gradwire::transport {

void Regroup::expect(const std::string& member, Node former, Time now) { awaited_[member] = {former, now}; }

void Regroup::heard(const std::string& member, Time now) {
  const auto found = awaited_.find(member);
  // A newcomer, or a member that was dropped as dead, is not awaited: its heartbeats change nothing.
  if (found != awaited_.end()) found->second.sign_of_life = now;
}

std::optional<std::string> Regroup::take(const std::string& peer, const Hello& hello) {
  const auto known = std::ranges::find(arrivals_, peer, &Arrival::peer);
  if (known != arrivals_.end()) {
    if (known->hello == hello) return std::nullopt;
    return "rendezvous: " + host_and_pid(hello) +
           " has changed what it says about itself; leave and come again";
  }
  if (auto why = objection(hello)) return why;
  // One that comes again has given up its earlier connection.
  std::erase_if(arrivals_, [&](const Arrival& arrival) {
    return arrival.hello.member == hello.member && arrival.hello.role == hello.role;
  });
  arrivals_.push_back({peer, hello});
  return std::nullopt;
}

std::optional<std::string> Regroup::objection(const Hello& hello) const {
  const bool is_server = hello.role == Role::kServer;
  const std::string prefix =
      std::string("rendezvous: ") + (is_server ? "a server" : "a worker") + " (" + host_and_pid(hello) + ") ";
  if (hello.version != kVersion) {
    return prefix + "says version=" + std::to_string(hello.version) +
           " where the job has version=" + std::to_string(kVersion) +
           "; install the same gradwire everywhere";
  }
  // Such a node would end at the first death, where the others go on.
  if (hello.member.empty()) {
    return prefix +
           "says on_failure=abort, where the job goes on without those that fail; start it with "
           "on_failure=continue (GRADWIRE_ON_FAILURE)";
  }
  // The first generation has settled whether workers host servers, and where the state of the job is kept.
  if (hello.pair.empty() == pairs_) {
    return prefix + (pairs_ ? "hosts no server" : "hosts a server of its own") +
           ", unlike the job's workers; give every rank the same store";
  }
  // A new server has none of the state that workers expect of its rank, and no death of a server is survived.
  if (is_server && !pairs_ && !awaited_.contains(hello.member)) {
    return prefix + "is one too many: the job has " + std::to_string(servers_) +
           " servers, and takes in workers alone";
  }
  if (is_server && hello.endpoint.empty()) return prefix + "gave no endpoint";
  // Members were compared with each other when the job began. A hosted server has its worker's settings.
  const bool is_new = !is_server && !awaited_.contains(hello.member);
  if (const auto words = is_new ? difference(hello) : std::nullopt) return prefix + *words;
  return std::nullopt;
}

// Where a newcomer's settings are not the job's, which would end the job if it were let in.
std::optional<std::string> Regroup::difference(const Hello& worker) const {
  const std::size_t count = std::max(settings_.size(), worker.settings.size());
  for (std::size_t i = 0; i < count; ++i) {
    const std::string ours = i < settings_.size() ? settings_[i] : "nothing";
    const std::string theirs = i < worker.settings.size() ? worker.settings[i] : "nothing";
    if (ours == theirs) continue;
    return "says " + theirs + " where the job has " + ours +
           "; give it the job's settings (gradwire run --join ... --env " + ours +
           "), as the job said when it began";
  }
  return std::nullopt;
}

void Regroup::forget(const std::string& peer) {
  const auto found = std::ranges::find(arrivals_, peer, &Arrival::peer);
  if (found == arrivals_.end()) return;
  // A worker may drop the server that it hosts, and come again; its own connection tells that it is dead.
  const bool is_hosted = found->hello.role == Role::kServer && !found->hello.pair.empty();
  const std::string member = found->hello.member;
  // A dedicated server or a worker that had come back on this connection is dead. It is not awaited again, so
  // the next generation can begin without waiting for its silence.
  arrivals_.erase(found);
  if (!is_hosted) awaited_.erase(member);
}

const Regroup::Arrival* Regroup::find(const std::string& member) const {
  const auto found = std::ranges::find_if(arrivals_, [&](const Arrival& arrival) {
    // A hosted server has its worker's member name, and must not be taken for the worker.
    const bool is_hosted = arrival.hello.role == Role::kServer && !arrival.hello.pair.empty();
    return arrival.hello.member == member && !is_hosted;
  });
  return found == arrivals_.end() ? nullptr : &*found;
}

const Regroup::Arrival* Regroup::server_of(const Hello& worker) const {
  const auto found = std::ranges::find_if(arrivals_, [&](const Arrival& arrival) {
    return arrival.hello.role == Role::kServer && arrival.hello.pair == worker.pair;
  });
  return found == arrivals_.end() ? nullptr : &*found;
}

std::vector<const Regroup::Arrival*> Regroup::workers_back() const {
  std::vector<std::pair<Node, const Arrival*>> back;
  for (const auto& [member, awaited] : awaited_) {
    const Arrival* arrival = awaited.former.role == Role::kWorker ? find(member) : nullptr;
    if (arrival != nullptr && is_whole(arrival->hello)) back.emplace_back(awaited.former, arrival);
  }
  // awaited_ is in the order of names. Ranks follow the former ranks, so that worker 0 stays worker 0 if it
  // lives.
  std::ranges::sort(back, {}, &std::pair<Node, const Arrival*>::first);
  std::vector<const Arrival*> ordered;
  for (const auto& [former, arrival] : back) ordered.push_back(arrival);
  return ordered;
}

std::vector<const Regroup::Arrival*> Regroup::workers_new() const {
  std::vector<const Arrival*> found;
  for (const Arrival& arrival : arrivals_) {
    const bool is_new = arrival.hello.role == Role::kWorker && !awaited_.contains(arrival.hello.member);
    // A worker whose hosted server has not said hello yet would be a rank without a shard.
    if (is_new && is_whole(arrival.hello)) found.push_back(&arrival);
  }
  return found;
}

std::uint32_t Regroup::newcomers() const { return static_cast<std::uint32_t>(workers_new().size()); }

std::vector<std::pair<std::string, Regroup::Awaited>> Regroup::absent() const {
  std::vector<std::pair<std::string, Awaited>> missing;
  for (const auto& [member, awaited] : awaited_) {
    const Arrival* arrival = find(member);
    // find() returns dedicated servers as well, which are whole by themselves.
    const bool is_back =
        arrival != nullptr && (arrival->hello.role == Role::kServer || is_whole(arrival->hello));
    if (!is_back) missing.emplace_back(member, awaited);
  }
  return missing;
}

Regroup::Verdict Regroup::judge(Time now) {
  const auto missing = absent();
  const auto is_overdue = [&](const auto& entry) {
    // Silence counts from the last sign of life, patience from the end of the generation. A member that
    // computes sends heartbeats all the time, and is overdue by the second only.
    return now - entry.second.sign_of_life >= limits_.silence || now - opened_ >= limits_.patience;
  };
  // One member that may still come is reason enough to wait: going on without it would cost a second regroup.
  if (!std::ranges::all_of(missing, is_overdue)) return Verdict::kWaiting;
  for (const auto& [member, awaited] : missing) {
    // Hosted servers are not awaited by themselves, so this one is dedicated. Workers hold no copy of its
    // state.
    if (awaited.former.role == Role::kServer && !pairs_) {
      return fail(to_string(awaited.former) + " did not come back within " + in_seconds(limits_.silence) +
                  ", and what it kept is lost with it");
    }
  }
  // A server that came back and then died, or left, is not awaited any more (forget, drop) and is not in
  // `missing`.
  const auto servers_back = std::ranges::count_if(
      awaited_, [](const auto& entry) { return entry.second.former.role == Role::kServer; });
  if (!pairs_ && servers_back < static_cast<std::ptrdiff_t>(servers_)) {
    return fail("a server is dead, and what it kept is lost with it");
  }
  const std::size_t back = workers_back().size();
  // Newcomers get the weights from a veteran: alone they would begin the training anew without a word.
  if (back == 0) return fail("no worker is left of those that had the weights; go on from a checkpoint");
  if (back + workers_new().size() >= limits_.min_workers) return Verdict::kComplete;
  // Replacements of the dead may be starting. They get as long as a silent member does.
  if (now - opened_ < limits_.silence) return Verdict::kWaiting;
  return fail(std::to_string(back + workers_new().size()) + " workers are there after " +
              in_seconds(limits_.silence) +
              ", fewer than min_workers=" + std::to_string(limits_.min_workers) +
              "; start others in time (--restarts), or lower min_workers");
}

Regroup::Verdict Regroup::fail(std::string why) {
  fault_ = std::move(why);
  return Verdict::kFailed;
}

std::string Regroup::awaited() const {
  std::vector<Node> nodes;
  for (const auto& [member, awaited] : absent()) nodes.push_back(awaited.former);
  std::ranges::sort(nodes);
  const std::size_t here = workers_back().size() + workers_new().size();
  const std::string count = std::to_string(here) + (here == 1 ? " worker is here)" : " workers are here)");
  if (nodes.empty())
    return "newcomers, up to min_workers=" + std::to_string(limits_.min_workers) + " (" + count;
  return list_nodes(nodes) + " to come back (" + count;
}

std::vector<Rendezvous::Member> Regroup::members() const {
  std::vector<Rendezvous::Member> members;
  std::vector<const Arrival*> workers = workers_back();
  const auto newcomers = workers_new();
  workers.insert(workers.end(), newcomers.begin(), newcomers.end());
  for (std::uint32_t rank = 0; rank < workers.size(); ++rank) {
    const Arrival& worker = *workers[rank];
    members.push_back({worker.peer, {Role::kWorker, rank}, worker.hello});
    if (!pairs_) continue;
    const Arrival& server = *server_of(worker.hello);
    members.push_back({server.peer, {Role::kServer, rank}, server.hello});
  }
  // Only dedicated servers, which keep their ranks: the keys that they store are spread by rank.
  for (const auto& [member, awaited] : awaited_) {
    if (awaited.former.role != Role::kServer) continue;
    if (const Arrival* server = find(member))
      members.push_back({server->peer, awaited.former, server->hello});
  }
  return members;
}

}  // namespace gradwire::transport
