// A whole job inside one process: servers and one thread per worker over the inproc transport.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "kvstore/engine.h"
#include "kvstore/server.h"
#include "transport/inproc.h"
#include "transport/node_pair.h"

namespace gradwire::kvstore {

struct JobSize {
  std::uint32_t workers = 2;
  std::uint32_t servers = 2;
  unsigned server_threads = 1;
  EngineOptions engine{};
};

/// Runs body(engine) as every worker, each on its own thread, and joins. Rethrows the lowest rank's error.
inline void run_job(const JobSize& size, const std::function<void(Engine&)>& body) {
  transport::InprocNetwork network(size.workers, size.servers);
  std::vector<std::unique_ptr<Server>> servers;
  ServerOptions server_options;
  server_options.threads = size.server_threads;
  for (std::uint32_t s = 0; s < size.servers; ++s) {
    servers.push_back(
        std::make_unique<Server>(network.connect({transport::Role::kServer, s}), server_options));
  }
  std::vector<std::exception_ptr> errors(size.workers);
  {
    std::vector<std::jthread> workers;
    for (std::uint32_t rank = 0; rank < size.workers; ++rank) {
      workers.emplace_back([&, rank] {
        try {
          Engine engine(network.connect({transport::Role::kWorker, rank}), size.engine);
          body(engine);
        } catch (...) {
          errors[rank] = std::current_exception();
        }
      });
    }
  }
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  for (auto& server : servers) server->wait();
}

/// As run_job, with the servers inside the workers' processes (placement peers). size.servers is ignored.
inline void run_peers(const JobSize& size, const std::function<void(Engine&)>& body) {
  transport::InprocNetwork network(size.workers, size.workers);
  std::vector<std::exception_ptr> errors(size.workers);
  {
    std::vector<std::jthread> workers;
    for (std::uint32_t rank = 0; rank < size.workers; ++rank) {
      workers.emplace_back([&, rank] {
        try {
          auto [worker, server] = transport::colocate({network.connect({transport::Role::kWorker, rank}),
                                                       network.connect({transport::Role::kServer, rank})});
          Engine engine(std::move(worker), size.engine,
                        std::make_unique<Server>(std::move(server), ServerOptions()));
          body(engine);
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

}  // namespace gradwire::kvstore
