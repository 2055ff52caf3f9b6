// Who leaves a job with replicas while its pushes are under way.
#include <gtest/gtest.h>

#include <atomic>

#include "tests/kvstore/mirrored_job.h"

namespace gradwire::kvstore {
namespace {

using namespace std::chrono_literals;
using transport::InprocNetwork;
using transport::Kind;
using transport::Node;
using Values = std::vector<float>;

constexpr std::size_t kSmall = 300;

/// A server's line that takes in no push, and dies when a worker has asked for what became of its own so
/// often.
class Deaf final : public transport::ForwardingMessenger {
 public:
  Deaf(Line line, InprocNetwork& network, int probes)
      : transport::ForwardingMessenger(std::move(line)), network_(network), probes_(probes) {}

 private:
  void on_frames(Node from, std::vector<transport::Frame> frames) override {
    std::erase_if(frames, [&](const transport::Frame& frame) {
      const bool is_probe = frame.header.kind == Kind::kProbe;
      if (is_probe && from.rank == 1 && --probes_ == 0) network_.lose(self().rank);
      return is_probe || frame.header.kind == Kind::kPush;
    });
    if (!frames.empty()) transport::ForwardingMessenger::on_frames(from, std::move(frames));
  }

  InprocNetwork& network_;
  int probes_;
};

TEST(RoundThreadDeparture, WhoClosesItsStoreStaysUntilItsPushCanBeLostNoMore) {
  JobSize size = mirrored_size(2, 2);
  size.engine.retry_timeout = 1s;
  InprocNetwork network(2, 2, 1);
  run_mirrored(
      size, network, {0},
      [](Engine& engine) {
        const auto key = engine.declare(std::vector<KeySpec>{{"w", {kSmall}}})[0];  // at server 0
        Values values(kSmall, 1.0F);
        if (engine.rank() == 0) {
          engine.push(key, values, 0);
          return engine.close();
        }
        engine.push_pull(key, values, values, 0).wait();
        EXPECT_EQ(values, Values(kSmall, 2.0F));
      },
      [&](std::uint32_t rank, Line line) -> Line {
        if (rank != 0) return line;
        return std::make_unique<Deaf>(std::move(line), network,
                                      5);  // after 5 s: close() once gave up after 2
      });
}

TEST(RoundThreadDeparture, WhoClosesItsStoreNeedNotAwaitTheRound) {
  InprocNetwork network(2, 2, 1);
  std::atomic<bool> has_left{false};
  run_mirrored(mirrored_size(2, 2), network, {}, [&](Engine& engine) {
    const auto key = engine.declare(std::vector<KeySpec>{{"w", {kSmall}}})[0];
    Values values(kSmall, 1.0F);
    if (engine.rank() == 0) {
      engine.push(key, values, 0);
      engine.close();
      has_left = true;
      has_left.notify_all();
      return;
    }
    has_left.wait(false);
    engine.push_pull(key, values, values, 0).wait();
    EXPECT_EQ(values, Values(kSmall, 2.0F));
  });
}

}  // namespace
}  // namespace gradwire::kvstore
