// The scheduler of a job with replicas: what it does when a server dies whose mirror lives.
#include "transport/nodes.h"
#include "transport/zmq/scheduler_state.h"

namespace gradwire::transport {

// Whether the lost node is a server whose mirror serves from now on. Should it live after all, it is told to
// end.
bool Scheduler::State::replace(const std::string& id, const std::string& why) {
  Peer& lost = peers.at(id);
  if (!mirrors || lost.node.role != Role::kServer) return false;
  const auto mirror = mirrors->lose(lost.node.rank);
  if (!mirror) return false;
  lost.farewell = lost.name + " " + why + "; the job goes on with its mirror in its place";
  send_farewell(id);
  liveness.forget(id);
  lost.left = true;
  tell(Kind::kDeparture, mirrors->deaths(), to_text(Departure{lost.node.rank, *mirror}));
  log(lost.name + " " + why + "; its mirror, " + to_string(Node{Role::kServer, *mirror}) +
      ", serves in its place, and the job goes on");
  return true;
}

}  // namespace gradwire::transport
