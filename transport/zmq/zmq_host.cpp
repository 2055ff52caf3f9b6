#include "transport/zmq/zmq_host.h"

#include <algorithm>
#include <future>
#include <utility>

#include "transport/address.h"
#include "transport/inproc/inproc.h"
#include "transport/nodes.h"
#include "transport/zmq/scheduler.h"

namespace gradwire::transport {
namespace {

constexpr const char* kLoopback = "127.0.0.1";

/// The leader's two nodes, which must both be there before either is.
NodePair connect_leader(const ZmqOptions& worker) {
  ZmqOptions server = worker;
  server.role = Role::kServer;
  // On another thread, since connect_zmq() returns only when all nodes are there, and these two are each
  // other's.
  auto served = std::async(std::launch::async, [server] { return connect_zmq(server); });
  auto own = connect_zmq(worker);
  return colocate({std::move(own), served.get()});
}

NodePair connect_alone() {
  // The messengers keep what they share of the network, so it may go.
  InprocNetwork network(1, 1);
  return colocate({network.connect({Role::kWorker, 0}), network.connect({Role::kServer, 0})});
}

}  // namespace

HostLink connect_zmq_host(Messenger& job, const ZmqOptions& options) {
  const auto identity = machine_identity(host_name(options.host));
  HostLink link;
  link.hosts = group_by_host(job.exchange("hosts", identity, options.rendezvous_timeout));
  // All workers have the same answer to this from the same blobs, so nobody enters the next exchange alone.
  if (link.hosts.size() == job.world().workers) return link;
  const std::uint32_t rank = job.self().rank;
  const auto& members = host_of(link.hosts, rank);
  const bool leads = members.front() == rank;

  ZmqOptions own = options;
  own.role = Role::kWorker;
  own.workers = static_cast<std::uint32_t>(members.size());
  own.servers = 1;
  own.rank = static_cast<std::uint32_t>(std::ranges::find(members, rank) - members.begin());
  // Also where the main job listens elsewhere: nothing of this job leaves the host.
  own.bind_host = kLoopback;
  own.interface.clear();
  own.pair.clear();
  own.servers_optional = false;
  own.slow_exchange.notify = nullptr;  // it would name workers by their ranks here
  // Port 0: several jobs, or hosts that are network namespaces of one machine, need no number of their own.
  own.scheduler = "tcp://" + std::string(kLoopback) + ":0";
  own.scheduler_name = to_string(Node{Role::kWorker, members.front()}) + ", which serves its host,";
  std::shared_ptr<Scheduler> scheduler;  // owner: the link
  // Before the exchange, which gives its endpoint to the others: it listens when they get it.
  if (leads && members.size() > 1) scheduler = std::make_shared<Scheduler>(own);
  const auto endpoints =
      job.exchange("host links", scheduler ? scheduler->endpoint() : "", options.rendezvous_timeout);
  own.scheduler = endpoints[members.front()];

  NodePair nodes;
  try {
    // Alone on its host it still gets a link, so that the layers above need not distinguish.
    if (members.size() == 1) {
      nodes = connect_alone();
    } else if (leads) {
      nodes = connect_leader(own);
    } else {
      nodes.worker = connect_zmq(own);
    }
  } catch (const TimeoutError& error) {
    // The text names ranks of the host's job, which are not the ranks that people know.
    throw TimeoutError("host of " + list_workers(members) + " (counted from 0 here): " + error.what());
  }
  // Longer than the main job needs to find out who died.
  const auto patience = 2 * options.liveness_timeout;
  // Kept by the link: destroying it would end the host's job.
  link.rendezvous = std::move(scheduler);
  link.worker = with_ranks_of(job, members, std::move(nodes.worker), patience);
  if (nodes.server) link.server = with_ranks_of(job, members, std::move(nodes.server), patience);
  return link;
}

}  // namespace gradwire::transport
