#include "fusion/simulation.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <stdexcept>

namespace gradwire::fusion {
namespace {

// One worker, one server apart, nothing cut, 4000 bytes a second, 0.1 s from host to host.
SimulationSetup plain() {
  SimulationSetup setup;
  setup.layers = {{1000, 1, 1}};
  setup.network = {Topology::kServersApart, 1, 1, 4000, 0.1, 0};
  setup.limits = {.partition_elements = 1'000'000,
                  .unit_elements = 1,
                  .least_pieces = 1,
                  .shortest_piece_elements = 1,
                  .shard_bound_elements = 1,
                  .fusion_bytes = 0};
  setup.message_bytes = 0;
  return setup;
}

TEST(Simulation, AStepIsBackwardPushReplyForward) {
  const Simulated step = simulate(plain());
  EXPECT_NEAR(step.step_seconds, 1 + (1 + 0.1) + (1 + 0.1) + 1, 1e-9);
  EXPECT_NEAR(step.compute_seconds, 2, 1e-12);
  EXPECT_NEAR(step.layers[0].ready_seconds, 1, 1e-9);
  EXPECT_NEAR(step.layers[0].arrived_seconds, 3.2, 1e-9);
  EXPECT_NEAR(step.layers[0].forward_seconds, 3.2, 1e-9);
  EXPECT_NEAR(step.sent_bytes, 4000, 1e-6);
  EXPECT_NEAR(step.received_bytes, 4000, 1e-6);
  EXPECT_NEAR(step.busiest_link, 1 / 4.2, 1e-9);
}

TEST(Simulation, PartsOverlapPushAndReply) {
  SimulationSetup setup = plain();
  setup.limits.partition_elements = 250;
  EXPECT_NEAR(simulate(setup).step_seconds, 1 + 1 + 0.1 + 0.25 + 0.1 + 1, 1e-9);
}

TEST(Simulation, WorkersShareTheLinkOfOneServer) {
  SimulationSetup setup = plain();
  setup.network.workers = 4;
  EXPECT_NEAR(simulate(setup).step_seconds, 1 + 4.1 + 4.1 + 1, 1e-9);
  setup.network.servers = 4;
  EXPECT_NEAR(simulate(setup).step_seconds, 1 + 1.1 + 1.1 + 1, 1e-9);
}

TEST(Simulation, CodecsAndMessagesTakeTheirTime) {
  SimulationSetup setup = plain();
  setup.codec = {1, 2, 1e-3, 2e-3, 3e-3};  // bytes up and down; encode 1 s, decode 2 s, sum 3 s
  setup.network.message_seconds = 0.01;
  EXPECT_NEAR(simulate(setup).step_seconds, 1 + 1.01 + 0.25 + 0.1 + 3.02 + 0.5 + 0.1 + 2.01 + 1, 1e-9);
  setup.message_bytes = 400;
  EXPECT_NEAR(simulate(setup).sent_bytes, 1400, 1e-6);
}

TEST(Simulation, AMessageThatFindsItsThreadAsleepTakesLonger) {
  SimulationSetup setup = plain();
  setup.network.wakeup_seconds = 0.05;
  const double one = 1 + 0.05 + 1 + 0.1 + 0.05 + 1 + 0.1 + 0.05 + 1;
  EXPECT_NEAR(simulate(setup).step_seconds, one, 1e-9);
  // Of four parts the last pays: the first one has woken the codec's thread for all of them.
  setup.limits.partition_elements = 250;
  EXPECT_NEAR(simulate(setup).step_seconds, one - 0.75, 1e-9);
  // A server that sums longer than parts are apart sleeps before the first alone.
  setup.codec.sum_seconds = 4e-3;
  EXPECT_NEAR(simulate(setup).step_seconds, 1 + 0.05 + 0.25 + 0.1 + 0.05 + 4 + 0.25 + 0.1 + 0.05 + 1, 1e-9);
  // Each worker's push wakes it.
  setup.codec.sum_seconds = 0;
  setup.limits.partition_elements = 1000;
  setup.network.workers = 4;
  EXPECT_NEAR(simulate(setup).step_seconds, 1 + 0.05 + 4 + 0.1 + 4 * 0.05 + 4 + 0.1 + 0.05 + 1, 1e-9);
}

TEST(Simulation, ARingTakesItsLatencyInEveryRound) {
  SimulationSetup setup = plain();
  setup.network = {Topology::kRing, 4, 1, 4000, 0.1, 0};
  EXPECT_NEAR(simulate(setup).step_seconds, 1 + 1.5 + 6 * 0.1 + 1, 1e-9);
}

TEST(Simulation, ARingHasAsManySumsUnderWayAsItsCreditAllows) {
  SimulationSetup setup = plain();
  setup.network = {Topology::kRing, 4, 1, 4000, 0.1, 0};
  setup.limits.partition_elements = 250;
  EXPECT_NEAR(simulate(setup).step_seconds, 1 + 1.5 + 6 * 0.1 + 1, 1e-9);
  setup.credit_bytes = 1;
  EXPECT_NEAR(simulate(setup).step_seconds, 1 + 4 * (0.375 + 6 * 0.1) + 1, 1e-9);
}

TEST(Simulation, ARingsMessagesAndAnswersTakeOneThread) {
  SimulationSetup setup = plain();
  setup.network = {Topology::kRing, 4, 1, 4000, 0, 0.1};
  setup.limits.partition_elements = 250;
  // encode 0.1, first on the wire until 1.475; then 6 messages of each of 4 parts; decode 0.1
  EXPECT_NEAR(simulate(setup).step_seconds, 1.475 + 4 * 0.6 + 0.1 + 1, 1e-9);
  setup.codec.sum_seconds = 1e-3;
  EXPECT_NEAR(simulate(setup).step_seconds, 1.475 + 4 * 0.85 + 0.1 + 1, 1e-9);
}

// Backward of the front layer runs beside the encoding of the back layer's gradient, forward of the front
// layer beside the decoding of the back layer's sum.
SimulationSetup with_codec() {
  SimulationSetup setup = plain();
  setup.layers = {{1000, 2, 2}, {1000, 1, 1}};
  setup.network.latency_seconds = 0;
  setup.codec = {0.4, 0.4, 1e-3, 1e-3, 0};  // encode 1 s, push 0.1 s, reply 0.1 s, decode 1 s
  return setup;
}

TEST(Simulation, CodecsSlowComputeWhereTheyShareItsCore) {
  SimulationSetup setup = with_codec();
  const double alone = simulate(setup).step_seconds;
  setup.machine = {.cores = 2, .compute_threads = 1, .workers = 1};
  EXPECT_NEAR(simulate(setup).step_seconds, alone, 1e-9) << "a core for each";
  setup.machine.cores = 1;
  // Six seconds of layers and four of the codec on one core; 0.2 s in which it waits for the front layer's
  // bytes.
  EXPECT_NEAR(simulate(setup).step_seconds, 10.2, 1e-9);
  EXPECT_NEAR(simulate(setup).compute_seconds, 6, 1e-9) << "what it takes alone";
  setup.machine = {.cores = 2, .compute_threads = 1, .workers = 2};
  EXPECT_NEAR(simulate(setup).step_seconds, 10.2, 1e-9) << "two workers on two cores";
  setup.machine.compute_threads = 0;
  EXPECT_NEAR(simulate(setup).step_seconds, alone, 1e-9) << "a device computes";
}

TEST(Simulation, SumsAndBytesTakeCoresOnlyWhereTheyAre) {
  SimulationSetup setup = with_codec();
  setup.codec.sum_seconds = 1e-3;
  setup.machine = {.cores = 1, .compute_threads = 1, .workers = 1};
  const double apart = simulate(setup).step_seconds;
  setup.machine.servers_share = 1;
  EXPECT_GT(simulate(setup).step_seconds, apart + 0.4);
  setup.machine.servers_share = 0;
  setup.machine.byte_seconds = 1.0 / 4000;  // a core for a link
  EXPECT_GT(simulate(setup).step_seconds, apart + 0.05);
}

// The back layer is ready first. Its two parts and the front layer's one take 1 s each, up and down; the
// front layer's gradient comes while the first of them is under way.
SimulationSetup two_layers() {
  SimulationSetup setup = plain();
  setup.network.latency_seconds = 0;
  setup.layers = {{1000, 2, 0.5}, {2000, 2, 0.5}};
  setup.limits.partition_elements = 1000;
  setup.credit_bytes = 1;
  return setup;
}

TEST(Simulation, TheFrontLayerOvertakesWhatHasNotLeft) {
  const Simulated step = simulate(two_layers());
  EXPECT_NEAR(step.layers[0].arrived_seconds, 0.5 + 1 + 1 + 1, 1e-9);
  EXPECT_NEAR(step.layers[1].arrived_seconds, 0.5 + 3 + 1, 1e-9);
  EXPECT_LT(step.layers[0].forward_seconds, step.layers[1].arrived_seconds);
  EXPECT_NEAR(step.step_seconds, 3.5 + 2 + 2, 1e-9);
}

TEST(Simulation, InOrderOrWithUnboundedCreditItWaitsForAllBeforeIt) {
  SimulationSetup fifo = two_layers();
  fifo.order = SendOrder::kFifo;
  SimulationSetup unbounded = two_layers();
  unbounded.credit_bytes = 1'000'000;
  for (const SimulationSetup& setup : {fifo, unbounded}) {
    EXPECT_NEAR(simulate(setup).layers[0].arrived_seconds, 0.5 + 3 + 1, 1e-9);
  }
}

TEST(Simulation, DrainedForwardWaitsForAllSums) {
  SimulationSetup setup = two_layers();
  setup.next_forward = NextForward::kDrained;
  EXPECT_NEAR(simulate(setup).layers[0].forward_seconds, 4.5, 1e-9);
  EXPECT_NEAR(simulate(setup).step_seconds, 4.5 + 4, 1e-9);
}

SimulationSetup random_setup(std::mt19937& random) {
  std::uniform_real_distribution<double> seconds(0, 0.2);
  SimulationSetup setup = plain();
  setup.layers.clear();
  const std::size_t layers = 1 + random() % 8;
  for (std::size_t i = 0; i < layers; ++i)
    setup.layers.push_back({1 + random() % 4000, seconds(random), seconds(random)});
  const std::uint32_t workers = 2 + static_cast<std::uint32_t>(random() % 6);
  switch (random() % 4) {
    case 0:
      setup.network = {
          Topology::kServersApart, workers, 1 + static_cast<std::uint32_t>(random() % 9), 4e4, 0, 0};
      break;
    case 1:
      setup.network = {Topology::kServersBeside, workers, workers, 4e4, 0, 0};
      break;
    case 2:
      setup.network = {Topology::kServersBeside, workers, 1, 4e4, 0, 0};
      break;
    default:
      setup.network = {Topology::kRing, workers, 1, 4e4, 0, 0};
  }
  setup.order = random() % 2 ? SendOrder::kFifo : SendOrder::kPriority;
  setup.next_forward = random() % 2 ? NextForward::kDrained : NextForward::kPerLayer;
  setup.credit_bytes = 1 + random() % 4000;
  setup.limits.partition_elements = 1 + random() % 2000;
  setup.limits.fusion_bytes = random() % 3000;
  setup.codec.push_bytes = 0.25 * static_cast<double>(1 + random() % 16);
  setup.codec.reply_bytes = 0.25 * static_cast<double>(1 + random() % 16);
  return setup;
}

TEST(Simulation, FewerCoresAreNeverFaster) {
  std::mt19937 random(15);
  for (int trial = 0; trial < 100; ++trial) {
    SimulationSetup setup = random_setup(random);
    setup.codec.encode_seconds = setup.codec.decode_seconds = 1e-5;
    const double free = simulate(setup).step_seconds;
    setup.machine = {.cores = 1, .compute_threads = 1, .workers = 1, .servers_share = 1};
    EXPECT_GE(simulate(setup).step_seconds, free * (1 - 1e-3)) << "trial " << trial;
  }
}

TEST(Simulation, NoScheduleBeatsTheBound) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 300; ++trial) {
    const SimulationSetup setup = random_setup(random);
    EXPECT_GE(simulate(setup).step_seconds, least_step_seconds(setup) * (1 - 1e-9)) << "trial " << trial;
  }
}

TEST(Simulation, SmallPartsInOrderOfPriorityReachTheBound) {
  std::mt19937 random(12);
  for (int trial = 0; trial < 100; ++trial) {
    SimulationSetup setup = random_setup(random);
    if (setup.network.topology == Topology::kServersBeside && setup.network.servers == 1) continue;
    setup.order = SendOrder::kPriority;
    setup.credit_bytes = 1;
    setup.limits.partition_elements = 4;
    setup.limits.fusion_bytes = 0;
    for (SimulatedLayer& layer : setup.layers) layer.elements += 2000;
    setup.codec.reply_bytes = setup.codec.push_bytes = 4;
    EXPECT_LE(simulate(setup).step_seconds, least_step_seconds(setup) * 1.05) << "trial " << trial;
  }
}

TEST(Simulation, EveryByteArrives) {
  std::mt19937 random(13);
  for (int trial = 0; trial < 100; ++trial) {
    const SimulationSetup setup = random_setup(random);
    if (setup.network.topology == Topology::kRing) continue;
    double elements = 0;
    for (const SimulatedLayer& layer : setup.layers) elements += static_cast<double>(layer.elements);
    const NetworkModel& network = setup.network;
    const Simulated step = simulate(setup);
    const double rounding = 2.0 * static_cast<double>(step.events);  // a part is whole bytes
    double sent = elements * setup.codec.push_bytes;
    double received = elements * setup.codec.reply_bytes;
    if (network.topology == Topology::kServersBeside) {
      sent = received = (1.0 - 1.0 / network.workers) * (sent + received);
    }
    EXPECT_NEAR(step.sent_bytes, sent, rounding);
    EXPECT_NEAR(step.received_bytes, received, rounding);
    EXPECT_LE(step.busiest_link, 1 + 1e-9);
  }
}

TEST(Simulation, OneWorkerThatIsItsOwnServerNeedsNoWire) {
  SimulationSetup setup = plain();
  setup.network = {Topology::kServersBeside, 1, 1, 1, 0, 0};
  EXPECT_NEAR(simulate(setup).step_seconds, 2, 1e-9);
  EXPECT_EQ(simulate(setup).sent_bytes, 0);
}

TEST(Simulation, EqualSetupsGiveEqualResults) {
  std::mt19937 random(14);
  for (int trial = 0; trial < 20; ++trial) {
    const SimulationSetup setup = random_setup(random);
    EXPECT_EQ(simulate(setup).step_seconds, simulate(setup).step_seconds);
  }
}

TEST(Simulation, NamesWhatNoJobHas) {
  const auto spoiled = [](void (*spoil)(SimulationSetup&)) {
    SimulationSetup setup = plain();
    spoil(setup);
    return setup;
  };
  using ::testing::HasSubstr;
  using ::testing::ThrowsMessage;
  const auto refuses = [](const std::string& text) {
    return ThrowsMessage<std::invalid_argument>(HasSubstr(text));
  };
  EXPECT_THAT([&] { simulate(spoiled([](SimulationSetup& s) { s.layers.clear(); })); }, refuses("no layers"));
  EXPECT_THAT([&] { simulate(spoiled([](SimulationSetup& s) { s.layers[0].elements = 0; })); },
              refuses("layer 0 has elements=0"));
  EXPECT_THAT([&] { simulate(spoiled([](SimulationSetup& s) { s.codec.push_bytes = -1; })); },
              refuses("negative or infinite cost"));
  EXPECT_THAT([&] { simulate(spoiled([](SimulationSetup& s) { s.steps = 0; })); }, refuses("steps=0"));
  EXPECT_THAT([&] { simulate(spoiled([](SimulationSetup& s) { s.credit_bytes = 0; })); },
              refuses("credit_bytes=0"));
  EXPECT_THAT([&] { simulate(spoiled([](SimulationSetup& s) { s.network.workers = 0; })); },
              refuses("workers=0"));
  EXPECT_THAT([&] { simulate(spoiled([](SimulationSetup& s) { s.steps = 4294967295U; })); },
              refuses("at most 1000000 steps"));
  EXPECT_THAT([&] { simulate(spoiled([](SimulationSetup& s) { s.layers[0].elements = 1ULL << 41; })); },
              refuses("elements"));
  EXPECT_THAT([&] { simulate(spoiled([](SimulationSetup& s) { s.network.bytes_per_second = 1e-310; })); },
              refuses("a rate of at least 1"));
  EXPECT_THAT([&] { simulate(spoiled([](SimulationSetup& s) { s.layers[0].forward_seconds = 1e308; })); },
              refuses("infinity"));
}

}  // namespace
}  // namespace gradwire::fusion
