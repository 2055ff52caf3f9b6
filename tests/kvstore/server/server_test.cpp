#include "kvstore/server/server.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>

#include "kvstore/trace/trace.h"
#include "tests/kvstore/job.h"
#include "transport/decorators/forwarding_messenger.h"

namespace gradwire::kvstore {
namespace {

/// A server's line that keeps its thread busy with the first answer until so many requests are here.
class BusyMessenger final : public transport::ForwardingMessenger {
 public:
  BusyMessenger(Line line, std::size_t requests)
      : transport::ForwardingMessenger(std::move(line)), requests_(requests) {}

  void send(transport::Node to, std::vector<transport::Frame> frames) override {
    {
      std::unique_lock lock(mutex_);
      arrived_.wait_for(lock, std::chrono::seconds(20), [this] { return seen_ >= requests_; });
    }
    transport::ForwardingMessenger::send(to, std::move(frames));
  }

 private:
  void on_frames(transport::Node from, std::vector<transport::Frame> frames) override {
    const std::size_t count = frames.size();
    transport::ForwardingMessenger::on_frames(from, std::move(frames));
    const std::lock_guard lock(mutex_);
    seen_ += count;
    arrived_.notify_all();
  }

  const std::size_t requests_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::size_t seen_ = 0;
};

// However many requests wait: the link is not to be idle while the server's thread adds what comes later.
TEST(Server, AnAnswerLeavesBeforeTheNextSumIsMade) {
  constexpr std::size_t kKeys = 5;
  const auto trace = std::make_shared<Trace>();
  trace->start();
  transport::InprocNetwork network(1, 1);
  ServerOptions options;
  options.trace = trace;
  Server server(std::make_unique<BusyMessenger>(network.connect({transport::Role::kServer, 0}), kKeys),
                options);
  {
    EngineOptions alone;
    alone.fusion_bytes = 1;  // each push a message
    Engine engine(network.connect({transport::Role::kWorker, 0}), alone);
    std::vector<KeySpec> specs;
    for (std::size_t k = 0; k < kKeys; ++k) specs.push_back({std::to_string(k), {8}});
    const auto keys = engine.declare(specs);
    std::vector<std::vector<float>> values(kKeys, std::vector<float>(8, 1.0F));
    std::vector<Ticket> tickets;
    for (std::size_t k = 0; k < kKeys; ++k)
      tickets.push_back(engine.push_pull(keys[k], values[k], values[k], 0));
    for (const Ticket& ticket : tickets) ASSERT_TRUE(ticket.wait_for(std::chrono::seconds(20)));
  }
  server.wait();
  std::vector<Span> sums;  // in order of their beginning
  std::map<std::uint64_t, Span> answers;
  for (const Span& span : trace->take_spans()) {
    if (span.stage == Stage::kSum) sums.push_back(span);
    if (span.stage == Stage::kReplyQueue) answers[span.key] = span;
  }
  ASSERT_EQ(sums.size(), kKeys);
  ASSERT_EQ(answers.size(), kKeys);
  for (std::size_t i = 1; i < kKeys; ++i)
    EXPECT_LE(answers.at(sums[i - 1].key).end, sums[i].begin) << "sum number " << i;
}

}  // namespace
}  // namespace gradwire::kvstore
