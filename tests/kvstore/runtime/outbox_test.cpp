#include "kvstore/runtime/outbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "tests/kvstore/gate.h"
#include "tests/kvstore/job.h"

namespace gradwire::kvstore {
namespace {

using testing::ElementsAre;
using transport::Node;
using transport::Role;

constexpr std::size_t kElements = 64;
constexpr Node kWorker{Role::kWorker, 0};
constexpr Node kServer{Role::kServer, 0};

/// One payload at a time, alone in its message.
EngineOptions narrow_engine() {
  EngineOptions options;
  options.credit_bytes = options.fusion_bytes = 1;
  return options;
}

ServerOptions narrow_server() {
  ServerOptions options;
  options.credit_bytes = options.fusion_bytes = 1;
  return options;
}

/// Six layers, number 0 in front, and one key more.
class Layers {
 public:
  explicit Layers(Engine& engine) : engine_(engine) {
    std::vector<KeySpec> specs;
    for (std::size_t i = 0; i < values_.size(); ++i) specs.push_back({std::to_string(i), {kElements}});
    keys_ = engine.declare(specs);
  }
  /// Makes slots of some layers.
  void bind(const std::vector<std::uint32_t>& layers) {
    std::vector<KeyId> keys;
    std::vector<ArrayView> spans;
    std::vector<std::int32_t> priorities;
    for (const std::uint32_t layer : layers) {
      values_[layer].assign(kElements, 1.0F);
      keys.push_back(keys_[layer]);
      spans.emplace_back(values_[layer]);
      priorities.push_back(-static_cast<std::int32_t>(layer));
    }
    engine_.slots().bind(keys, spans, nullptr, priorities);
  }
  /// The layer's number is its key: declare() numbers keys by name.
  void send(std::uint32_t layer, std::int32_t priority) {
    auto& values = values_[layer];
    values.assign(kElements, 1.0F);
    tickets_[layer] = engine_.push_pull(keys_[layer], values, values, priority);
  }
  void await(std::uint32_t layer) {
    ASSERT_TRUE(tickets_[layer].wait_for(std::chrono::seconds(20)));
    EXPECT_EQ(values_[layer], std::vector<float>(kElements, static_cast<float>(engine_.num_workers())))
        << layer;
  }
  /// Returns when the engine's thread has taken all that was sent.
  void settle() { engine_.residuals().of(keys_.back()); }

 private:
  Engine& engine_;
  std::array<std::vector<float>, 7> values_{};
  std::array<Ticket, 7> tickets_;
  std::vector<KeyId> keys_;
};

std::int32_t front_first(std::uint32_t layer) { return -static_cast<std::int32_t>(layer); }
std::int32_t all_alike(std::uint32_t) { return -3; }

using Priority = std::int32_t (*)(std::uint32_t layer);

/// Layers in the order in which they leave the first worker, when backward() has them from last to first, and
/// the last one is on its way already.
std::vector<std::uint64_t> order_of_pushes(Priority priority) {
  transport::InprocNetwork network(1, 1);
  Gate gate;
  Server server(network.connect(kServer), ServerOptions());
  std::vector<std::uint64_t> order;
  {
    Engine engine(std::make_unique<GatedMessenger>(network.connect(kWorker), gate, kServer), narrow_engine());
    Layers layers(engine);
    layers.send(5, priority(5));
    gate.await_message();
    for (std::uint32_t layer = 5; layer-- > 0;) layers.send(layer, priority(layer));
    layers.settle();
    for (int i = 0; i < 6; ++i) order.push_back(gate.pass().key);
    for (std::uint32_t layer = 0; layer < 6; ++layer) layers.await(layer);
  }
  server.wait();
  return order;
}

/// Likewise, layers in the order in which their sums leave the server for the first of two workers.
std::vector<std::uint64_t> order_of_replies(Priority priority) {
  transport::InprocNetwork network(2, 1);
  Gate gate;
  Server server(std::make_unique<GatedMessenger>(network.connect(kServer), gate, kWorker), narrow_server());
  std::vector<std::uint64_t> order;
  run_workers(2, [&](std::uint32_t rank) {
    Engine engine(network.connect({Role::kWorker, rank}), EngineOptions());
    Layers layers(engine);
    layers.send(5, priority(5));
    if (rank == 0) gate.await_message();
    engine.barrier();
    for (std::uint32_t layer = 5; layer-- > 0;) layers.send(layer, priority(layer));
    if (rank == 1) {  // who has all sums: so the server has made them, and they wait for the other
      for (std::uint32_t layer = 0; layer < 6; ++layer) layers.await(layer);
    }
    engine.barrier();
    if (rank == 1) return;
    for (int i = 0; i < 6; ++i) order.push_back(gate.pass().key);
    for (std::uint32_t layer = 0; layer < 6; ++layer) layers.await(layer);
  });
  server.wait();
  return order;
}

TEST(Outbox, PushesOfFrontLayersOvertakeThoseOfBackLayers) {
  EXPECT_THAT(order_of_pushes(front_first), ElementsAre(5, 0, 1, 2, 3, 4));
}

// As the hook of DDP has it: large gradients travel from memory that is another one in every step.
TEST(Outbox, SlotsKeepTheirPlacesAmongLayersThatAreNone) {
  transport::InprocNetwork network(1, 1);
  Gate gate;
  Server server(network.connect(kServer), ServerOptions());
  std::vector<std::uint64_t> order;
  {
    Engine engine(std::make_unique<GatedMessenger>(network.connect(kWorker), gate, kServer), narrow_engine());
    Layers layers(engine);
    layers.bind({0, 3, 4});
    layers.send(5, front_first(5));
    gate.await_message();
    engine.slots().mark_ready(2);
    engine.slots().mark_ready(1);
    layers.send(2, front_first(2));
    layers.send(1, front_first(1));
    engine.slots().mark_ready(0);
    layers.settle();
    for (int i = 0; i < 6; ++i) order.push_back(gate.pass().key);
    ASSERT_TRUE(engine.slots().drain_for(std::chrono::seconds(20)));
    for (const std::uint32_t layer : {1, 2, 5}) layers.await(layer);
  }
  server.wait();
  EXPECT_THAT(order, ElementsAre(5, 0, 1, 2, 3, 4));
}

TEST(Outbox, RepliesOfFrontLayersOvertakeThoseOfBackLayers) {
  EXPECT_THAT(order_of_replies(front_first), ElementsAre(5, 0, 1, 2, 3, 4));
}

TEST(Outbox, EqualPrioritiesKeepTheirOrderBothWays) {
  EXPECT_THAT(order_of_pushes(all_alike), ElementsAre(5, 4, 3, 2, 1, 0));
  EXPECT_THAT(order_of_replies(all_alike), ElementsAre(5, 4, 3, 2, 1, 0));
}

// A key has one round in flight, so that of an urgent one leaves the link to others while it is at the
// worker.
TEST(Outbox, AnUrgentKeyThatGoesRoundAndRoundDoesNotStarveTheRest) {
  constexpr int kRounds = 20;
  transport::InprocNetwork network(2, 1);
  Gate gate;
  Server server(std::make_unique<GatedMessenger>(network.connect(kServer), gate, kWorker), narrow_server());
  int rounds_meanwhile = 0;  // of the urgent key, until all others were through
  run_workers(2, [&](std::uint32_t rank) {
    Engine engine(network.connect({Role::kWorker, rank}), EngineOptions());
    Layers layers(engine);
    for (std::uint32_t layer = 0; layer < 6; ++layer) layers.send(layer, front_first(layer));
    for (std::uint32_t layer = 0; rank == 1 && layer < 6; ++layer) layers.await(layer);
    engine.barrier();  // the server has all sums
    int others = 0;
    for (int round = 0; round < kRounds;) {
      if (rank == 0 && gate.pass().key != 0) {
        if (++others == 5) rounds_meanwhile = round;
        continue;
      }
      layers.await(0);
      layers.send(0, front_first(0));
      ++round;
      if (rank == 1) layers.await(0);
      engine.barrier();  // and this one's
    }
    while (rank == 0 && gate.pass().key != 0) {
    }
    for (std::uint32_t layer = 0; layer < 6; ++layer) layers.await(layer);
  });
  server.wait();
  EXPECT_GE(rounds_meanwhile, 4) << "it does overtake";
  EXPECT_LT(rounds_meanwhile, kRounds);
}

/// Notes how many frames each message has, and sends none.
class MessageCounter final : public transport::ForwardingMessenger {
 public:
  using transport::ForwardingMessenger::ForwardingMessenger;
  void send(Node /*to*/, std::vector<transport::Frame> frames) override { counts.push_back(frames.size()); }
  std::vector<std::size_t> counts;
};

TEST(Outbox, SmallFramesShareAMessageAndALargeOneIsTheLastOfIts) {
  transport::InprocNetwork network(1, 1);
  MessageCounter messenger(network.connect(kWorker));
  Outbox outbox(messenger, std::make_shared<Loop>(), Role::kServer, 1, 0,
                {.credit_bytes = 1U << 20, .fusion_bytes = 256U << 10});
  std::uint64_t step = 0;
  for (const std::size_t bytes : {1'000, 1'000, 1'000, 20'000, 20'000, 1'000}) {
    transport::Frame frame;
    frame.header.kind = transport::Kind::kPush;
    frame.header.step = step++;
    frame.payload = transport::Buffer::allocate(bytes);
    outbox.add(0, std::move(frame));
  }
  outbox.flush({});
  EXPECT_THAT(messenger.counts, ElementsAre(4, 1, 1))
      << "a message arrives whole, when its last byte has come";
}

TEST(Outbox, PushesThatAreFarAheadWaitForAnswersOrForTime) {
  using std::chrono::milliseconds;
  constexpr std::size_t kBytes = 1U << 20;
  transport::InprocNetwork network(1, 1);
  MessageCounter messenger(network.connect(kWorker));
  Outbox outbox(messenger, std::make_shared<Loop>(), Role::kServer, 1, 0,
                {.credit_bytes = 1U << 30, .fusion_bytes = 0});
  auto add = [&, step = std::uint64_t{0}]() mutable {
    transport::Frame frame;
    frame.header.kind = transport::Kind::kPush;
    frame.header.step = step++;
    frame.payload = transport::Buffer::allocate(kBytes);
    outbox.add(0, std::move(frame));
  };
  const Outbox::Time begin{std::chrono::hours(1)};
  for (int i = 0; i < 7; ++i) add();
  EXPECT_FALSE(outbox.flush(begin)) << "nothing holds up who gets no answers";
  EXPECT_EQ(messenger.counts.size(), 7u);
  EXPECT_EQ(outbox.unanswered_bytes(0), 7 * (kBytes + transport::kHeaderBytes));
  outbox.answered(0, kBytes, begin + milliseconds(5));
  outbox.answered(0, kBytes, begin + milliseconds(40));
  add();
  const auto again = outbox.flush(begin + milliseconds(40));
  EXPECT_EQ(again, begin + milliseconds(40 + 2 * 5 + 10));
  EXPECT_EQ(messenger.counts.size(), 7u);
  outbox.answered(0, kBytes, begin + milliseconds(41));
  outbox.answered(0, kBytes, begin + milliseconds(41));
  outbox.flush(begin + milliseconds(41));
  EXPECT_EQ(messenger.counts.size(), 8u) << "the others have caught up";
  outbox.all_answered();
  EXPECT_EQ(outbox.unanswered_bytes(0), 0u);
}

// On a slow link a request is repeated before its first copy has left.
TEST(Outbox, ALargeFrameThatWaitsIsNotQueuedAgain) {
  transport::InprocNetwork network(1, 1);
  MessageCounter messenger(network.connect(kWorker));
  Outbox outbox(messenger, std::make_shared<Loop>(), Role::kServer, 1, 0,
                {.credit_bytes = 1U << 30, .fusion_bytes = 0});
  const auto add = [&](std::uint32_t poster, std::size_t bytes) {
    transport::Frame frame;
    frame.header.kind = transport::Kind::kPost;
    frame.header.codec_parameters[0] = poster;
    frame.payload = transport::Buffer::allocate(bytes);
    const transport::FrameHeader header = frame.header;
    outbox.add(0, std::move(frame));
    return outbox.holds(0, header, bytes);
  };
  constexpr std::size_t kLarge = 1U << 20;
  EXPECT_TRUE(add(0, kLarge));
  EXPECT_TRUE(add(0, kLarge));
  add(1, kLarge);      // another's
  add(0, kLarge + 1);  // another one
  EXPECT_FALSE(add(0, 8)) << "small ones cost little, and are not looked for";
  add(0, 8);
  outbox.flush({});
  EXPECT_EQ(messenger.counts.size(), 5u);
  add(0, kLarge);
  outbox.flush({});
  EXPECT_EQ(messenger.counts.size(), 6u) << "its first copy has left, and may be lost";
}

}  // namespace
}  // namespace gradwire::kvstore
