// A whole job inside one process whose servers mirror each other, and what disturbs it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "tests/kvstore/job.h"
#include "transport/decorators/forwarding_messenger.h"

namespace gradwire::kvstore {

inline JobSize mirrored_size(std::uint32_t workers, std::uint32_t servers) {
  JobSize size{workers, servers};
  size.engine.replicas = 1;
  size.engine.shard_bound_elements = 1'000;
  return size;
}

/// Runs body as every worker; line(rank, messenger) may put something into a server's.
using Wire = std::function<Line(std::uint32_t rank, Line)>;
inline void run_mirrored(
    const JobSize& size, transport::InprocNetwork& network, std::set<std::uint32_t> victims,
    const std::function<void(Engine&)>& body,
    const Wire& wire = [](std::uint32_t, Line line) { return line; }, ServerOptions options = {}) {
  options.threads = size.server_threads;
  std::vector<std::unique_ptr<Server>> servers;
  for (std::uint32_t s = 0; s < size.servers; ++s)
    servers.push_back(
        std::make_unique<Server>(wire(s, network.connect({transport::Role::kServer, s})), options));
  run_workers(size.workers, [&](std::uint32_t rank) {
    Engine engine(network.connect({transport::Role::kWorker, rank}), size.engine);
    body(engine);
  });
  for (std::uint32_t s = 0; s < size.servers; ++s) {
    if (!victims.contains(s)) servers[s]->wait();
  }
}

/// Takes some frames out of what a node sends.
class Without final : public transport::ForwardingMessenger {
 public:
  using Which = std::function<bool(transport::Node to, const transport::FrameHeader&)>;
  Without(Line line, Which which)
      : transport::ForwardingMessenger(std::move(line)), which_(std::move(which)) {}

  void send(transport::Node to, std::vector<transport::Frame> frames) override {
    std::erase_if(frames, [&](const transport::Frame& frame) { return which_(to, frame.header); });
    if (!frames.empty()) transport::ForwardingMessenger::send(to, std::move(frames));
  }

 private:
  const Which which_;
};

}  // namespace gradwire::kvstore
