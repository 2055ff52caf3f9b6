// A store over a network that loses, repeats, reorders and damages frames gives what it gives over a good
// one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "kvstore/collectives/collectives.h"
#include "tests/kvstore/job.h"
#include "transport/checksum.h"
#include "transport/decorators/faulty_messenger.h"

namespace gradwire::kvstore {
namespace {

using namespace std::chrono_literals;
using transport::Fault;

constexpr const char* kAllFour = "seed=11,drop=1%,duplicate=1%,reorder=1%,corrupt=1%";

using RunWired = void (*)(const JobSize&, const std::function<void(Engine&)>&,
                          const std::function<Line(Line)>&);

struct Store {
  const char* name;
  RunWired run;
};
constexpr Store kServers{"servers", run_wired};
constexpr Store kPeers{"peers", run_peers_wired};

JobSize quick() {
  JobSize size{2, 2, 1, {}};
  size.engine.retry_timeout = 20ms;
  size.engine.shard_bound_elements = 1 << 16;
  return size;
}

/// The long form is asked for by `make soak`.
int rounds_asked_for() {
  const char* asked = std::getenv("GRADWIRE_FAULT_ROUNDS");
  return asked != nullptr ? std::atoi(asked) : 200;
}

std::vector<float> gradient(std::size_t elements, std::uint32_t rank, int round) {
  std::vector<float> values(elements);
  std::uint32_t state = 2654435761U * (rank + 1) + static_cast<std::uint32_t>(round) * 40503U + 1;
  for (float& value : values) {
    state = state * 1664525U + 1013904223U;
    value = static_cast<float>(state >> 8) * 0x1p-24F - 0.5F;
  }
  return values;
}

using Hashes = std::vector<std::uint32_t>;

/// Sums of every round, as checksums, by rank. Two keys: one of two shards, and a small one.
std::vector<Hashes> train(const Store& store, const std::string& codec, int rounds,
                          const std::shared_ptr<transport::Faults>& faults) {
  std::vector<Hashes> hashes(2);
  const auto body = [&](Engine& engine) {
    const std::string name = codec.substr(0, codec.find(':'));
    const std::string reply = name == "none" ? "fp32" : name == "2bit" ? "exact" : name;
    engine.compression().set(compress::parse_spec(codec), reply);
    const std::vector<KeySpec> specs{{"large", {66'000}}, {"small", {300}}};
    const auto keys = engine.declare(specs);
    std::vector<std::vector<float>> sums{std::vector<float>(66'000), std::vector<float>(300)};
    for (int round = 0; round < rounds; ++round) {
      const std::vector grads{gradient(66'000, engine.rank(), round), gradient(300, engine.rank(), ~round)};
      std::vector<Ticket> tickets;
      for (std::size_t k = 0; k < keys.size(); ++k)
        tickets.push_back(engine.push_pull(keys[k], grads[k], sums[k], 0));
      for (const Ticket& ticket : tickets) ticket.wait();
      for (const auto& sum : sums)
        hashes[engine.rank()].push_back(transport::checksum(std::as_bytes(std::span(sum))));
    }
  };
  store.run(quick(), body, [&](Line line) { return transport::disturbed(std::move(line), faults); });
  return hashes;
}

class Rounds : public ::testing::TestWithParam<std::tuple<Store, std::string>> {};

TEST_P(Rounds, AreTheSameBitForBit) {
  const auto& [store, codec] = GetParam();
  const int rounds = rounds_asked_for();
  const auto faults = std::make_shared<transport::Faults>(transport::parse_faults(kAllFour));
  const auto disturbed = train(store, codec, rounds, faults);
  EXPECT_EQ(disturbed, train(store, codec, rounds, nullptr));
  const auto counts = faults->counts();
  for (const Fault fault : {Fault::kDropped, Fault::kDuplicated, Fault::kReordered, Fault::kCorrupted})
    EXPECT_GT(counts.of(fault), 0U) << to_string(counts);
}

INSTANTIATE_TEST_SUITE_P(Faults, Rounds,
                         testing::Combine(testing::Values(kServers, kPeers),
                                          testing::Values("none", "fp16", "2bit:threshold=0.5",
                                                          "topk:ratio=0.01")),
                         [](const auto& info) {
                           std::string name = std::get<0>(info.param).name;
                           const std::string& codec = std::get<1>(info.param);
                           name += '_';
                           name += codec.substr(0, codec.find(':'));
                           return name;
                         });

class Stores : public ::testing::TestWithParam<Store> {
 protected:
  void run(const std::string& spec, const std::function<void(Engine&)>& body) {
    const auto faults = std::make_shared<transport::Faults>(transport::parse_faults(spec));
    GetParam().run(quick(), body, [&](Line line) { return transport::disturbed(std::move(line), faults); });
  }
};

/// Each engine goes as soon as its own last round is done, and the others may lack that round's answer yet.
TEST_P(Stores, WhoLeavesFirstStillAnswers) {
  for (int seed = 0; seed < 12; ++seed) {
    run("drop=20%,seed=" + std::to_string(seed), [](Engine& engine) {
      const KeySpec spec{"w", {300}};
      const auto key = engine.declare({&spec, 1})[0];
      std::vector<float> sum(300);
      engine.push_pull(key, gradient(300, engine.rank(), 0), sum, 0).wait();
    });
  }
}

/// A push that nobody waits for is on its way when its worker closes.
TEST_P(Stores, APushThatWasLostComesBeforeItsWorkerLeaves) {
  for (int seed = 0; seed < 12; ++seed) {
    run("drop=30%,seed=" + std::to_string(seed), [](Engine& engine) {
      const KeySpec spec{"w", {300}};
      const auto key = engine.declare({&spec, 1})[0];
      const auto grad = gradient(300, engine.rank(), 0);
      if (engine.rank() == 0) {
        engine.push(key, grad, 0);
        return;
      }
      std::vector<float> sum(300);
      engine.push_pull(key, grad, sum, 0).wait();
    });
  }
}

/// A slow link has not taken it all in the two seconds in which rounds may end.
TEST_P(Stores, APushThatIsStillUnderWayComesBeforeItsWorkerLeaves) {
  run("slow=worker:0@2mbit", [](Engine& engine) {
    const KeySpec spec{"w", {300'000}};
    const auto key = engine.declare({&spec, 1})[0];
    const std::vector<float> grad(300'000, 1.0F);
    if (engine.rank() == 0) {
      engine.push(key, grad, 0);
      return;
    }
    std::vector<float> sum(300'000);
    engine.push_pull(key, grad, sum, 0).wait();
    EXPECT_EQ(sum, std::vector<float>(300'000, 2.0F));
  });
}

/// Who has received a blob and left cannot be asked for its receipt again.
TEST_P(Stores, AReceiptThatIsLostAtTheEndFailsNobody) {
  for (int seed = 0; seed < 12; ++seed) {
    run("drop=20%,seed=" + std::to_string(seed), [](Engine& engine) {
      std::vector<float> values(1000, static_cast<float>(engine.rank() + 1));
      const auto bytes = std::as_writable_bytes(std::span(values));
      engine.collectives().all_reduce(bytes, bytes, DataType::kFloat32, ReduceOp::kSum);
      EXPECT_EQ(values.front(), 3.0F);
    });
  }
}

/// What changes servers' settings must neither be lost nor come again later, nor be taken when damaged.
TEST_P(Stores, CommandsAreCarriedOutOnceAndInOrder) {
  for (int seed = 0; seed < 6; ++seed) {
    run("drop=10%,duplicate=30%,reorder=30%,corrupt=10%,delay=30ms@20%,seed=" + std::to_string(seed),
        [](Engine& engine) {
          const KeySpec spec{"w", {300}};
          const auto key = engine.declare({&spec, 1})[0];
          std::vector<float> weight(300, 0.0F);
          engine.init(key, weight);
          float expected = 0;
          for (int round = 0; round < 8; ++round) {
            const float rate = round % 2 == 0 ? 0.5F : 0.125F;
            engine.set_optimizer("sgd learning_rate=" + std::to_string(rate));
            const std::vector<float> grad(300, 1.0F);
            engine.push_pull(key, grad, weight, 0).wait();
            expected -= 2 * rate;
            EXPECT_EQ(weight, std::vector<float>(300, expected)) << "round " << round;
          }
        });
  }
}

/// An acknowledgement that comes again is none of the next request's.
TEST_P(Stores, FirstValuesThatAreLostAreNotTakenForThoseBefore) {
  for (int seed = 0; seed < 12; ++seed) {
    run("drop=10%,duplicate=50%,reorder=20%,delay=30ms@20%,seed=" + std::to_string(seed), [](Engine& engine) {
      const KeySpec spec{"w", {300}};
      const auto key = engine.declare({&spec, 1})[0];
      std::vector<float> out(300);
      for (int i = 0; i < 8; ++i) {
        const std::vector<float> values(300, static_cast<float>(i));
        engine.init(key, values);
        engine.pull(key, out, 0).wait();
        EXPECT_EQ(out, values);
        engine.barrier();
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, Stores, testing::Values(kServers, kPeers),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace gradwire::kvstore
