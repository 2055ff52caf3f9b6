// A job inside one process whose nodes trace, each with a clock of its own.
#pragma once

#include <memory>
#include <vector>

#include "kvstore/trace/trace.h"
#include "tests/kvstore/job.h"

namespace gradwire::kvstore {

struct TracedJob {
  std::vector<std::shared_ptr<Trace>> workers, servers;
};

inline std::vector<std::shared_ptr<Trace>> started_traces(std::size_t count, std::chrono::nanoseconds apart) {
  std::vector<std::shared_ptr<Trace>> traces;
  for (std::size_t i = 0; i < count; ++i) {
    TraceOptions options;
    options.clock_offset = apart * static_cast<std::int64_t>(i);
    traces.push_back(std::make_shared<Trace>(options));
    traces.back()->start();
  }
  return traces;
}

/// As run_job. The clock of worker or server r is r times `apart` ahead of that of rank 0.
inline TracedJob run_traced(const JobSize& size, std::chrono::nanoseconds apart,
                            const std::function<void(Engine&)>& body) {
  TracedJob job{started_traces(size.workers, apart), started_traces(size.servers, apart)};
  transport::InprocNetwork network(size.workers, size.servers);
  std::vector<std::unique_ptr<Server>> servers;
  for (std::uint32_t s = 0; s < size.servers; ++s) {
    ServerOptions options;
    options.threads = size.server_threads;
    options.trace = job.servers[s];
    servers.push_back(std::make_unique<Server>(network.connect({transport::Role::kServer, s}), options));
  }
  run_workers(size.workers, [&](std::uint32_t rank) {
    EngineOptions options = size.engine;
    options.trace = job.workers[rank];
    Engine engine(network.connect({transport::Role::kWorker, rank}), options);
    body(engine);
  });
  for (auto& server : servers) server->wait();
  return job;
}

/// As run_peers; `servers` stays empty, since a worker's trace has its server's spans.
inline TracedJob run_traced_peers(const JobSize& size, std::chrono::nanoseconds apart,
                                  const std::function<void(Engine&)>& body) {
  TracedJob job{started_traces(size.workers, apart), {}};
  transport::InprocNetwork network(size.workers, size.workers);
  run_workers(size.workers, [&](std::uint32_t rank) {
    auto [worker, server] = transport::colocate({network.connect({transport::Role::kWorker, rank}),
                                                 network.connect({transport::Role::kServer, rank})});
    EngineOptions options = size.engine;
    ServerOptions server_options;
    options.trace = server_options.trace = job.workers[rank];
    Engine engine(std::move(worker), options, std::make_unique<Server>(std::move(server), server_options));
    body(engine);
  });
  return job;
}

}  // namespace gradwire::kvstore
