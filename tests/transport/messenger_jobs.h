// Every transport there is, as a job whose nodes are Messengers of this process: what the conformance suites
// run on. A new transport joins with one line at the bottom.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "transport/inproc/inproc.h"
#include "transport/zmq/scheduler.h"
#include "transport/zmq/zmq_messenger.h"

namespace gradwire::transport {

/// A job whose every node is a Messenger of this process.
class Job {
 public:
  virtual ~Job() { nodes_.clear(); }
  Messenger& worker(std::uint32_t rank) { return *nodes_.at({Role::kWorker, rank}); }
  Messenger& server(std::uint32_t rank) { return *nodes_.at({Role::kServer, rank}); }
  void end(Node node) { nodes_.erase(node); }

 protected:
  std::map<Node, std::unique_ptr<Messenger>> nodes_;
};

inline std::vector<Node> all_nodes(std::uint32_t workers, std::uint32_t servers) {
  std::vector<Node> nodes;
  for (std::uint32_t rank = 0; rank < workers; ++rank) nodes.push_back({Role::kWorker, rank});
  for (std::uint32_t rank = 0; rank < servers; ++rank) nodes.push_back({Role::kServer, rank});
  return nodes;
}

class InprocJob final : public Job {
 public:
  InprocJob(std::uint32_t workers, std::uint32_t servers) {
    InprocNetwork network(workers, servers);
    for (const Node node : all_nodes(workers, servers)) nodes_[node] = network.connect(node);
  }
};

class ZmqJob final : public Job {
 public:
  ZmqJob(ZmqOptions options, std::uint32_t workers, std::uint32_t servers) {
    options.workers = workers;
    options.servers = servers;
    scheduler_ = std::make_unique<Scheduler>(options);
    options.scheduler = scheduler_->endpoint();
    std::map<Node, std::future<std::unique_ptr<Messenger>>> joining;
    for (const Node node : all_nodes(workers, servers)) {
      options.role = node.role;
      options.rank = node.rank;
      joining[node] = std::async(std::launch::async, [options] { return connect_zmq(options); });
    }
    for (auto& [node, future] : joining) nodes_[node] = future.get();
  }
  ~ZmqJob() override {
    // Workers first, as in a job: the scheduler ends it, and servers need not wait for anyone.
    for (auto it = nodes_.rbegin(); it != nodes_.rend(); ++it) it->second->leave(std::chrono::seconds(2));
  }

 private:
  std::unique_ptr<Scheduler> scheduler_;
};

inline ZmqOptions zmq_options(const std::string& scheduler, std::uint32_t streams = 1) {
  ZmqOptions options;
  options.scheduler = scheduler;
  options.streams_per_peer = streams;
  options.rendezvous_timeout = std::chrono::seconds(20);
  return options;
}

struct Transport {
  const char* name;
  std::unique_ptr<Job> (*start)(std::uint32_t workers, std::uint32_t servers);
  bool keeps_order_across_keys = true;
};

inline std::unique_ptr<Job> start_inproc(std::uint32_t workers, std::uint32_t servers) {
  return std::make_unique<InprocJob>(workers, servers);
}
inline std::unique_ptr<Job> start_tcp(std::uint32_t workers, std::uint32_t servers) {
  return std::make_unique<ZmqJob>(zmq_options("tcp://127.0.0.1:*"), workers, servers);
}
inline std::unique_ptr<Job> start_tcp6(std::uint32_t workers, std::uint32_t servers) {
  return std::make_unique<ZmqJob>(zmq_options("tcp://[::1]:0"), workers, servers);
}
inline std::unique_ptr<Job> start_streams(std::uint32_t workers, std::uint32_t servers) {
  return std::make_unique<ZmqJob>(zmq_options("tcp://localhost:*", 3), workers, servers);
}
inline std::unique_ptr<Job> start_ipc(std::uint32_t workers, std::uint32_t servers) {
  static std::atomic<int> count{0};
  const std::string path =
      ::testing::TempDir() + "gradwire-" + std::to_string(getpid()) + "-" + std::to_string(count++);
  return std::make_unique<ZmqJob>(zmq_options("ipc://" + path), workers, servers);
}

inline std::unique_ptr<Job> start_curve(std::uint32_t workers, std::uint32_t servers) {
  ZmqOptions options = zmq_options("tcp://127.0.0.1:*");
  options.key = JobKey::make();
  options.ipc = false;  // or workers would go round what is to be tested
  return std::make_unique<ZmqJob>(options, workers, servers);
}

inline constexpr std::array kTransports = {Transport{"Inproc", start_inproc},
                                           Transport{"ZmqTcp", start_tcp},
                                           Transport{"ZmqTcp6", start_tcp6},
                                           Transport{"ZmqIpc", start_ipc},
                                           Transport{"ZmqStreams", start_streams, false},
                                           Transport{"ZmqCurve", start_curve}};

class TransportConformance : public ::testing::TestWithParam<Transport> {
 protected:
  std::unique_ptr<Job> start(std::uint32_t workers, std::uint32_t servers) {
    return GetParam().start(workers, servers);
  }
};

inline std::string transport_name(const ::testing::TestParamInfo<Transport>& info) { return info.param.name; }

}  // namespace gradwire::transport
