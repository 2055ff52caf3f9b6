// A job whose ranks are spread over hosts that sum first, in one process: a small inproc job beside the main
// one for each host.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/kvstore/job.h"
#include "transport/decorators/host_link.h"

namespace gradwire::kvstore {

/// The links of all hosts; identities[r] names rank r's host.
class InprocHosts {
 public:
  explicit InprocHosts(const std::vector<std::string>& identities)
      : hosts_(transport::group_by_host(identities)) {
    for (const auto& members : hosts_)
      jobs_.push_back(
          std::make_unique<transport::InprocNetwork>(static_cast<std::uint32_t>(members.size()), 1));
  }

  ConnectHost connector() {
    return [this](transport::Messenger& job) { return connect(job); };
  }

 private:
  transport::HostLink connect(transport::Messenger& job) {
    using transport::Role;
    transport::HostLink link;
    link.hosts = hosts_;
    const std::uint32_t rank = job.self().rank;
    const auto& members = transport::host_of(hosts_, rank);
    transport::InprocNetwork& host = *jobs_[static_cast<std::size_t>(&members - hosts_.data())];
    const auto index = static_cast<std::uint32_t>(std::ranges::find(members, rank) - members.begin());
    transport::NodePair nodes{host.connect({Role::kWorker, index}), nullptr};
    if (index == 0) nodes = transport::colocate({std::move(nodes.worker), host.connect({Role::kServer, 0})});
    const auto patience = std::chrono::milliseconds(500);
    link.worker = transport::with_ranks_of(job, members, std::move(nodes.worker), patience);
    if (nodes.server) link.server = transport::with_ranks_of(job, members, std::move(nodes.server), patience);
    return link;
  }

  const transport::Hosts hosts_;
  std::vector<std::unique_ptr<transport::InprocNetwork>> jobs_;
};

using Identities = std::vector<std::string>;

/// As run_job, for as many workers as there are identities. A job may fail: its ranks see that.
inline void run_hosts(JobSize size, const Identities& identities, const std::function<void(Engine&)>& body) {
  size.workers = static_cast<std::uint32_t>(identities.size());
  transport::InprocNetwork network(size.workers, size.servers);
  InprocHosts hosts(identities);
  std::vector<std::unique_ptr<Server>> servers;
  ServerOptions server_options;
  server_options.threads = size.server_threads;
  for (std::uint32_t s = 0; s < size.servers; ++s)
    servers.push_back(
        std::make_unique<Server>(network.connect({transport::Role::kServer, s}), server_options));
  run_workers(size.workers, [&](std::uint32_t rank) {
    Engine engine(network.connect({transport::Role::kWorker, rank}), size.engine, nullptr, hosts.connector());
    body(engine);
    leave(engine);
  });
  for (auto& server : servers) {
    try {
      server->wait();
    } catch (const transport::TransportError&) {  // NOLINT(bugprone-empty-catch): the ranks have seen it
    }
  }
}

/// Likewise as run_peers.
inline void run_peer_hosts(const JobSize& size, const Identities& identities,
                           const std::function<void(Engine&)>& body) {
  const auto workers = static_cast<std::uint32_t>(identities.size());
  transport::InprocNetwork network(workers, workers);
  InprocHosts hosts(identities);
  run_workers(workers, [&](std::uint32_t rank) {
    auto [worker, server] = transport::colocate({network.connect({transport::Role::kWorker, rank}),
                                                 network.connect({transport::Role::kServer, rank})});
    Engine engine(std::move(worker), size.engine,
                  std::make_unique<Server>(std::move(server), ServerOptions()), hosts.connector());
    body(engine);
    leave(engine);
  });
}

}  // namespace gradwire::kvstore
