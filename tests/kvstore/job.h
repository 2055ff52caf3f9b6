// A whole job inside one process: servers and one thread per worker over the inproc transport.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "compress/codecs.h"
#include "kvstore/engine/engine.h"
#include "kvstore/server/server.h"
#include "transport/inproc/inproc.h"
#include "transport/inproc/inproc_collective.h"
#include "transport/node_pair.h"

namespace gradwire::kvstore {

struct JobSize {
  std::uint32_t workers = 2;
  std::uint32_t servers = 2;
  unsigned server_threads = 1;
  EngineOptions engine{};
};

/// Runs worker(rank) for every rank, each on its own thread, and joins. Rethrows the lowest rank's error.
inline void run_workers(std::uint32_t workers, const std::function<void(std::uint32_t)>& worker) {
  std::vector<std::exception_ptr> errors(workers);
  {
    std::vector<std::jthread> threads;
    for (std::uint32_t rank = 0; rank < workers; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          worker(rank);
        } catch (...) {
          errors[rank] = std::current_exception();
        }
      });
    }
  }
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

/// Leaves the job as a process does at its end: serves the others to theirs.
inline void leave(Engine& engine) {
  engine.close();
  while (!engine.outlast_for(std::chrono::seconds(1))) {
  }
}

using Line = std::unique_ptr<transport::Messenger>;

/// Runs body(engine) as every worker; `wire` may put something into every node's line.
inline void run_wired(const JobSize& size, const std::function<void(Engine&)>& body,
                      const std::function<Line(Line)>& wire) {
  transport::InprocNetwork network(size.workers, size.servers);
  std::vector<std::unique_ptr<Server>> servers;
  ServerOptions server_options;
  server_options.threads = size.server_threads;
  for (std::uint32_t s = 0; s < size.servers; ++s) {
    servers.push_back(
        std::make_unique<Server>(wire(network.connect({transport::Role::kServer, s})), server_options));
  }
  run_workers(size.workers, [&](std::uint32_t rank) {
    Engine engine(wire(network.connect({transport::Role::kWorker, rank})), size.engine);
    body(engine);
  });
  for (auto& server : servers) server->wait();
}

/// Runs body(engine) as every worker.
inline void run_job(const JobSize& size, const std::function<void(Engine&)>& body) {
  run_wired(size, body, [](Line line) { return line; });
}

/// As run_wired, with the servers inside the workers' processes (placement peers). size.servers is ignored.
inline void run_peers_wired(const JobSize& size, const std::function<void(Engine&)>& body,
                            const std::function<Line(Line)>& wire) {
  transport::InprocNetwork network(size.workers, size.workers);
  run_workers(size.workers, [&](std::uint32_t rank) {
    auto [worker, server] = transport::colocate({wire(network.connect({transport::Role::kWorker, rank})),
                                                 wire(network.connect({transport::Role::kServer, rank}))});
    Engine engine(std::move(worker), size.engine,
                  std::make_unique<Server>(std::move(server), ServerOptions()));
    body(engine);
    leave(engine);
  });
}

/// As run_job, with the servers inside the workers' processes.
inline void run_peers(const JobSize& size, const std::function<void(Engine&)>& body) {
  run_peers_wired(size, body, [](Line line) { return line; });
}

using Sums = std::unique_ptr<transport::Collective>;

/// As run_job, with a library that sums (placement native); `wire` may put something before every rank's.
/// size.servers is ignored.
inline void run_native_wired(const JobSize& size, const std::function<void(Engine&)>& body,
                             const std::function<Sums(Sums)>& wire) {
  transport::InprocNetwork network(size.workers, 0);
  transport::InprocCollectives collectives(size.workers);
  run_workers(size.workers, [&](std::uint32_t rank) {
    Engine engine(network.connect({transport::Role::kWorker, rank}), wire(collectives.connect(rank)),
                  size.engine);
    body(engine);
  });
}

inline void run_native(const JobSize& size, const std::function<void(Engine&)>& body) {
  run_native_wired(size, body, [](Sums sums) { return sums; });
}

}  // namespace gradwire::kvstore
