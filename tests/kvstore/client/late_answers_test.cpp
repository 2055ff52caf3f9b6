// Requests that nobody answered in time are sent again, and so may be answered twice: the second answer,
// late, is none to what was asked next.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <mutex>

#include "kvstore/checkpoint/optimizer_file.h"
#include "tests/kvstore/job.h"
#include "transport/decorators/forwarding_messenger.h"

namespace gradwire::kvstore {
namespace {

using transport::Frame;
using transport::Kind;
using transport::Node;

/// A line on which what is received before the first push comes once more, when that push has just been asked
/// for.
class EchoingLine final : public transport::ForwardingMessenger {
 public:
  using transport::ForwardingMessenger::ForwardingMessenger;

  void send(Node to, std::vector<Frame> frames) override {
    const bool pushes =
        std::ranges::any_of(frames, [](const Frame& frame) { return frame.header.kind == Kind::kPush; });
    if (pushes) transport::ForwardingMessenger::on_frames(to, take());
    transport::ForwardingMessenger::send(to, std::move(frames));
  }

 protected:
  void on_frames(Node from, std::vector<Frame> frames) override {
    {
      const std::lock_guard lock(mutex_);
      for (const Frame& frame : frames) echo_.push_back({frame.header, frame.payload.share()});
    }
    transport::ForwardingMessenger::on_frames(from, std::move(frames));
  }

 private:
  std::vector<Frame> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(echo_, {});
  }

  std::mutex mutex_;
  std::vector<Frame> echo_;
};

constexpr std::size_t kElements = 1000;

void after_a_pull(const JobSize& size, const std::function<void(Engine&, KeyId)>& body) {
  const auto pull_first = [&](Engine& engine) {
    const KeySpec spec{"w", {kElements}};
    const KeyId key = engine.declare({&spec, 1})[0];
    engine.init(key, std::vector<float>(kElements, 7.0F));
    if (size.engine.async) engine.set_optimizer("test rescale_grad=1");
    std::vector<float> weight(kElements);
    engine.pull(key, weight, 0).wait();
    EXPECT_EQ(weight, std::vector<float>(kElements, 7.0F));
    body(engine, key);
  };
  run_wired(size, pull_first, [](auto line) { return std::make_unique<EchoingLine>(std::move(line)); });
}

TEST(LateAnswers, ToAPullAreNoSum) {
  after_a_pull({1, 1}, [](Engine& engine, KeyId key) {
    const std::vector<float> ones(kElements, 1.0F);
    std::vector<float> sum(kElements);
    engine.push_pull(key, ones, sum, 0).wait();
    EXPECT_EQ(sum, ones);
  });
}

TEST(LateAnswers, ToAPullAreNoWordAboutAPushThatAsksForNone) {
  JobSize size{1, 1};
  size.engine.async = AsyncPolicy{};
  after_a_pull(size, [](Engine& engine, KeyId key) {
    engine.push(key, std::vector<float>(kElements, 1.0F), 0).wait();
    std::vector<float> weight(kElements);
    engine.pull(key, weight, 0).wait();
    EXPECT_EQ(weight, std::vector<float>(kElements, 8.0F));
  });
}

TEST(LateAnswers, ToALoadOfAnOptimizersStatesAreNoWeight) {
  const auto load_between_pushes = [](Engine& engine) {
    const KeySpec spec{"w", {kElements}};
    const KeyId key = engine.declare({&spec, 1})[0];
    engine.init(key, std::vector<float>(kElements));
    engine.set_optimizer("sgd learning_rate=1 momentum=0.5");
    const std::vector<float> ones(kElements, 1.0F);
    std::vector<float> weight(kElements);
    engine.push_pull(key, ones, weight, 0).wait();
    const std::string path = testing::TempDir() + "gradwire_late_answers.states";
    engine.optimizer_states().save(path, Dump::kStates);
    engine.optimizer_states().load(path);
    engine.push_pull(key, ones, weight, 0).wait();
    EXPECT_EQ(weight, std::vector<float>(kElements, -2.5F));
    std::filesystem::remove(path);
  };
  run_wired({1, 1}, load_between_pushes,
            [](auto line) { return std::make_unique<EchoingLine>(std::move(line)); });
}

}  // namespace
}  // namespace gradwire::kvstore
