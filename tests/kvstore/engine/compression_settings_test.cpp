// Codecs by key, and residuals: saved, restored, rolled back, and theirs whatever bucket they travel in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kvstore/engine/engine.h"
#include "tests/kvstore/folder.h"
#include "tests/kvstore/job.h"
#include "tests/kvstore/placement/hosts.h"
#include "tests/kvstore/sums.h"

namespace gradwire::kvstore {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Not;
using Runner = void (*)(const JobSize&, const std::function<void(Engine&)>&);

constexpr auto kLong = std::chrono::seconds(20);

/// Slots of their own memory, bound to an engine.
struct Model {
  std::vector<KeyId> keys;
  std::vector<std::vector<float>> values;

  Model(Engine& engine, const std::vector<std::uint64_t>& elements) {
    std::vector<KeySpec> specs;
    for (std::size_t i = 0; i < elements.size(); ++i) specs.push_back({std::to_string(i), {elements[i]}});
    keys = engine.declare(specs);
    for (const std::uint64_t n : elements) values.emplace_back(n);
  }
  void bind(Engine& engine, const std::vector<std::size_t>& order) {
    std::vector<KeyId> ids;
    std::vector<ArrayView> spans;
    for (const std::size_t i : order) {
      ids.push_back(keys[i]);
      spans.emplace_back(values[i]);
    }
    engine.slots().bind(ids, spans);
  }
  void step(Engine& engine, unsigned seed) {
    for (std::size_t i = 0; i < values.size(); ++i)
      std::ranges::copy(random_floats(values[i].size(), seed + 10 * static_cast<unsigned>(i) + engine.rank()),
                        values[i].begin());
    for (std::size_t i = 0; i < values.size(); ++i) engine.slots().mark_ready(static_cast<std::uint32_t>(i));
    ASSERT_TRUE(engine.slots().drain_for(kLong));
  }
  std::vector<std::vector<float>> residuals(Engine& engine) const {
    std::vector<std::vector<float>> all;
    for (const KeyId key : keys) all.push_back(engine.residuals().of(key));
    return all;
  }
};

class Placements : public testing::TestWithParam<Runner> {};
constexpr const char* kPlacementNames[] = {"Servers", "Peers", "Native"};
INSTANTIATE_TEST_SUITE_P(All, Placements, testing::Values(run_job, run_peers, run_native),
                         [](const auto& info) { return kPlacementNames[info.index]; });

TEST_P(Placements, AKeyMayHaveACodecOfItsOwn) {
  GetParam()({2, 2}, [](Engine& engine) {
    engine.compression().set(spec("2bit:threshold=0.25"), "exact");
    Model model(engine, {500, 7, 600, 9});
    engine.compression().set_of_keys(std::vector{model.keys[1], model.keys[3]}, spec("none"), "none");
    model.bind(engine, {0, 1, 2, 3});
    for (unsigned step = 0; step < 3; ++step) {
      model.step(engine, 100 * step);
      EXPECT_EQ(model.values[1], rank_order_sum(7, 100 * step + 10, 2));
      EXPECT_EQ(model.values[3], rank_order_sum(9, 100 * step + 30, 2));
      for (const float value : model.values[0]) ASSERT_EQ(std::fmod(value, 0.25F), 0.0F);
    }
    EXPECT_TRUE(engine.residuals().of(model.keys[1]).empty());
    EXPECT_THAT(engine.residuals().of(model.keys[0]), testing::SizeIs(500));
    engine.compression().set(spec("none"), "none");  // of the others
    model.step(engine, 800);                         // with what is left (leftover_test.cpp)
    model.step(engine, 900);
    EXPECT_EQ(model.values[0], rank_order_sum(500, 900, 2));
  });
}

TEST_P(Placements, ResidualsGoWithTheirTensorsFromBucketToBucket) {
  GetParam()({2, 2}, [](Engine& engine) {
    engine.compression().set(spec("2bit:threshold=0.25"), "exact");
    Model model(engine, {500, 70, 600, 90});
    model.bind(engine, {0, 1, 2, 3});
    model.step(engine, 0);
    const auto before = model.residuals(engine);
    for (const auto& residual : before) EXPECT_THAT(residual, Not(Each(0.0F)));
    model.bind(engine, {3, 1, 0, 2});
    EXPECT_EQ(model.residuals(engine), before);
    model.bind(engine, {0, 1, 2, 3});
    EXPECT_EQ(model.residuals(engine), before);
  });
}

TEST_P(Placements, AResidualThatWasSavedGoesOnWhereItWas) {
  GetParam()({2, 2}, [](Engine& engine) {
    engine.compression().set(spec("2bit:threshold=0.25"), "exact");
    Model model(engine, {500, 70, 300'000});
    model.bind(engine, {0, 1, 2});
    model.step(engine, 0);
    const auto saved = model.residuals(engine);
    model.step(engine, 100);
    const auto sums = model.values;
    model.step(engine, 200);
    for (std::size_t i = 0; i < saved.size(); ++i) engine.residuals().set(model.keys[i], saved[i]);
    model.step(engine, 100);
    EXPECT_EQ(model.values, sums);
  });
}

TEST_P(Placements, ARoundThatIsRolledBackLeavesNoTrace) {
  GetParam()({2, 2}, [](Engine& engine) {
    engine.compression().set(spec("2bit:threshold=0.25"), "exact");
    engine.residuals().keep_rollback(true);
    Model model(engine, {500, 70, 300'000});
    model.bind(engine, {0, 1, 2});
    model.step(engine, 0);
    const auto before = model.residuals(engine);
    model.step(engine, 100);
    EXPECT_NE(model.residuals(engine), before);
    engine.residuals().roll_back(model.keys);
    EXPECT_EQ(model.residuals(engine), before);
    engine.residuals().roll_back(model.keys);  // there is nothing more to undo
    EXPECT_EQ(model.residuals(engine), before);
  });
}

TEST(EngineCompression, KeysThatAreNotRolledBackStay) {
  run_job({2, 2}, [](Engine& engine) {
    engine.compression().set(spec("2bit:threshold=0.25"), "exact");
    engine.residuals().keep_rollback(true);
    const auto keys = engine.declare(std::vector<KeySpec>{{"taken", {100}}, {"vetoed", {100}}});
    const auto round = [&](KeyId key) {
      auto values = random_floats(100, engine.rank());
      engine.push_pull(key, values, values, 0).wait();
      return engine.residuals().of(key);
    };
    const auto taken = round(keys[0]);
    EXPECT_THAT(round(keys[1]), Not(Each(0.0F)));
    engine.residuals().roll_back(std::vector{keys[1]});
    EXPECT_EQ(engine.residuals().of(keys[0]), taken);
    EXPECT_THAT(engine.residuals().of(keys[1]), Each(0.0F));
  });
}

TEST(EngineCompression, WhereHostsSumFirstResidualsAreTheLeaders) {
  run_peer_hosts({}, {"a", "a", "b"}, [](Engine& engine) {
    engine.compression().set(spec("2bit:threshold=0.25"), "exact");
    Model model(engine, {500, 70, 300'000, 5});
    engine.compression().set_of_keys(std::vector{model.keys[3]}, spec("none"), "none");
    model.bind(engine, {0, 1, 2, 3});
    model.step(engine, 0);
    const auto saved = model.residuals(engine);
    EXPECT_TRUE(saved[3].empty());
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(saved[i].empty(), engine.rank() == 1) << i;
    model.step(engine, 100);
    const auto sums = model.values;
    for (std::size_t i = 0; i < 3; ++i) {
      if (!saved[i].empty()) engine.residuals().set(model.keys[i], saved[i]);
    }
    engine.barrier();
    model.step(engine, 100);
    EXPECT_EQ(model.values, sums);
  });
}

TEST(EngineCompression, AResidualThatIsNotFiniteIsRefusedButWithMxnetsRule) {
  run_job({1, 1}, [](Engine& engine) {
    engine.compression().set(spec("2bit:threshold=0.25"), "exact");
    const auto keys = engine.declare(std::vector<KeySpec>{{"w", {4}}, {"v", {4}}});
    std::vector<float> values(4, 0.125F);
    engine.push_pull(keys[0], values, values, 0).wait();
    engine.push_pull(keys[1], values, values, 0).wait();
    const auto before = engine.residuals().of(keys[0]);
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      const std::vector<float> residual{0, 1, bad, 2};
      EXPECT_THAT([&] { engine.residuals().set(keys[0], residual); },
                  testing::ThrowsMessage<std::invalid_argument>(HasSubstr("element 2 of key")));
      EXPECT_EQ(engine.residuals().of(keys[0]), before);
      engine.compression().set_of_keys(std::vector{keys[1]}, spec("2bit:threshold=0.25,nonfinite=mxnet"),
                                       "exact");
      engine.residuals().set(keys[1], residual);
      EXPECT_EQ(engine.residuals().of(keys[1])[3], 2);
    }
  });
}

TEST_P(Placements, ABucketChangesItsCodecAsAWhole) {
  GetParam()({2, 2}, [](Engine& engine) {
    engine.compression().set(spec("none"), "none");
    Model model(engine, {5, 6, 7});
    engine.compression().set_of_keys(model.keys, spec("none"), "none");
    model.bind(engine, {0, 1, 2});
    model.step(engine, 1);
    EXPECT_THAT(model.residuals(engine), Each(testing::IsEmpty()));
    engine.compression().set_of_keys(model.keys, spec("2bit:threshold=100"), "exact");
    model.step(engine, 2);
    EXPECT_THAT(model.residuals(engine), Each(testing::Not(testing::IsEmpty())));
    EXPECT_THAT(model.values, Each(Each(0.0F)));
  });
}

TEST(EngineCompression, MisuseIsNamed) {
  run_job({2, 1}, [](Engine& engine) {
    Model model(engine, {5, 6});
    model.bind(engine, {0, 1});
    const auto message = [](const std::function<void()>& call) {
      try {
        call();
      } catch (const std::exception& error) {
        return std::string(error.what());
      }
      return std::string("nothing was thrown");
    };
    EXPECT_THAT(
        message([&] { engine.compression().set_of_keys(std::vector{model.keys[1]}, spec("fp16"), "fp16"); }),
        AllOf(HasSubstr("key 0 is not given"), HasSubstr("set it before bind_slots")));
    // By one rank alone it is the same error on all, at once and not after slow_abort.
    const std::vector<KeyId> some(model.keys.begin(),
                                  model.keys.end() - static_cast<int>(engine.rank()));  // rank 1: part of it
    EXPECT_THAT(message([&] { engine.compression().set_of_keys(some, spec("fp16"), "fp16"); }),
                HasSubstr("key 1 is not given"));
    EXPECT_THAT(message([&] { engine.residuals().set(model.keys[0], std::vector<float>(6)); }),
                HasSubstr("has 5 elements, 6 given"));
    EXPECT_THAT(message([&] { engine.residuals().of(99); }), HasSubstr("99 was not declared"));
    const auto lone = engine.declare(std::vector<KeySpec>{{"lone", {4}}});
    const auto differing = engine.rank() == 0 ? spec("fp16") : spec("bf16");
    EXPECT_THAT(message([&] { engine.compression().set_of_keys(lone, differing, "fp32"); }),
                HasSubstr("set_key_compression"));
    std::vector<float> values(4, 1.0F);
    if (engine.rank() == 0) {  // a round that waits for the other rank
      const Ticket ticket = engine.push_pull(lone[0], values, values, 0);
      EXPECT_THAT(message([&] { engine.residuals().of(lone[0]); }),
                  HasSubstr("a round of key 'lone' is in progress"));
      engine.barrier();
      ticket.wait();
    } else {
      engine.barrier();
      engine.push_pull(lone[0], values, values, 0).wait();
    }
  });
}

// What was accepted stays accepted: only the last round may be undone, and it had nothing to undo.
TEST_P(Placements, ARoundWithoutResidualIsNotRolledBackIntoTheOneBefore) {
  GetParam()({2, 2}, [](Engine& engine) {
    engine.residuals().keep_rollback(true);
    engine.compression().set(spec("2bit:threshold=0.25"), "exact");
    const auto key = engine.declare(std::vector<KeySpec>{{"w", {500}}}).front();
    auto values = random_floats(500, engine.rank());
    engine.push_pull(key, values, values, 0).wait();
    const auto kept = engine.residuals().of(key);
    engine.compression().set(spec("none"), "none");
    engine.push_pull(key, values, values, 0).wait();
    engine.residuals().roll_back(std::vector{key});
    EXPECT_EQ(engine.residuals().of(key), kept);
    EXPECT_THAT(kept, testing::Contains(testing::Ne(0.0F)));
  });
}

TEST_P(Placements, AResidualThatMovesIntoABucketIsNotSentFromItsOldPlaceToo) {
  GetParam()({2, 2}, [](Engine& engine) {
    engine.compression().set(spec("2bit:threshold=0.5"), "exact");
    Model model(engine, {300, 200});
    std::vector<float> values(300, 0.3F);
    engine.push_pull(model.keys[0], values, values, 0).wait();  // 0.3 is kept
    model.bind(engine, {0, 1});
    for (auto& v : model.values) std::ranges::fill(v, 0.0F);
    for (std::uint32_t slot : {0U, 1U}) engine.slots().mark_ready(slot);
    ASSERT_TRUE(engine.slots().drain_for(kLong));
    std::ranges::fill(values, 0.3F);
    engine.push_pull(model.keys[0], values, values, 0).wait();  // apart: 0.3 again, not 0.6
    EXPECT_THAT(values, Each(0.0F));
  });
}

TEST_P(Placements, ABucketBoundAgainHasTheCodecThatItsKeysHaveNow) {
  GetParam()({2, 2}, [](Engine& engine) {
    engine.compression().set(spec("2bit:threshold=0.25"), "exact");
    Model model(engine, {50, 100'000, 60});
    const auto bind = [&](const std::vector<std::size_t>& order) { model.bind(engine, order); };
    bind({0, 2});
    bind({0, 1, 2});
    engine.compression().set_of_keys(std::vector{model.keys[0], model.keys[2]}, spec("none"), "none");
    bind({0, 2});
    std::ranges::copy(random_floats(50, engine.rank()), model.values[0].begin());
    for (std::uint32_t slot : {0U, 1U}) engine.slots().mark_ready(slot);
    ASSERT_TRUE(engine.slots().drain_for(kLong));
    EXPECT_EQ(model.values[0], rank_order_sum(50, 0, 2));
  });
}

// The second push of a key waits for the round of the first. What waits for another key's codec is of the one
// before, too, and of the same bits on every rank in every run.
TEST_P(Placements, PushesThatAreUnderWayAreOfTheCodecThatWasSetBeforeThem) {
  GetParam()({2, 2}, [](Engine& engine) {
    const std::uint64_t elements = 300'000;
    const auto keys = engine.declare(std::vector<KeySpec>{{"a", {elements}}, {"b", {elements}}});
    const std::vector<float> grad(elements, 0.7F);
    std::vector<float> out(elements);
    for (int round = 0; round < 10; ++round) {
      engine.compression().set(spec("none"), "none");
      engine.compression().set_of_keys(std::vector{keys[1]}, spec("none"), "none");
      for (const KeyId key : {keys[0], keys[0], keys[1], keys[1]}) engine.push(key, grad, 0);
      if (round % 2 == 0) {
        engine.compression().set(spec("2bit:threshold=0.5"), "exact");
        engine.compression().set_of_keys(std::vector{keys[1]}, spec("int8"), "fp32");
      } else {
        engine.compression().set_of_keys(std::vector{keys[1]}, spec("int8"), "fp32");
        engine.compression().set(spec("2bit:threshold=0.5"), "exact");
      }
      for (const KeyId key : keys) {
        engine.pull(key, out, 0).wait();
        ASSERT_THAT(out, Each(1.4F)) << "key " << key << ", round " << round;
      }
    }
    engine.push(keys[0], grad, 0);
    engine.pull(keys[0], out, 0).wait();
    EXPECT_THAT(out, Each(1.0F));
  });
}

/// Weights do not tell the scale of the next round.
TEST_P(Placements, ACodecThatAgreesItsScaleDoesNotGoWithAnOptimizer) {
  GetParam()({2, 2}, [](Engine& engine) {
    const auto is_refusal = testing::ThrowsMessage<std::invalid_argument>(
        testing::AllOf(HasSubstr("2bit:threshold=auto"), HasSubstr("answer with weights; give a threshold")));
    const auto keys = engine.declare(std::vector<KeySpec>{{"a", {5}}, {"b", {5}}});
    for (const KeyId key : keys) engine.init(key, std::vector<float>(5, 1.0F));
    engine.compression().set_of_keys(std::vector{keys[1]}, spec("2bit:threshold=auto"), "exact");
    EXPECT_THAT([&] { engine.set_optimizer("sgd"); }, is_refusal);
    engine.compression().set_of_keys(std::vector{keys[1]}, spec("none"), "none");
    engine.compression().set(spec("2bit:threshold=auto"), "exact");
    EXPECT_THAT([&] { engine.set_optimizer("sgd"); }, is_refusal);
    engine.compression().set(spec("none"), "none");
    engine.set_optimizer("sgd");
    EXPECT_THAT([&] { engine.compression().set(spec("2bit:threshold=auto"), "exact"); }, is_refusal);
    EXPECT_THAT([&] { engine.compression().set_of_keys(keys, spec("2bit:threshold=auto"), "exact"); },
                is_refusal);
    engine.set_optimizer("sgd learning_rate=0.5");
  });
}

// A first round in float32 in place of the scales that were agreed would show in every bit after it.
TEST_P(Placements, AgreedScalesGoOnWhereTheirCodecIsSetAgainOrAfterTheCheckpoint) {
  const Folder folder;
  const auto set = [](Engine& engine) { engine.compression().set(spec("2bit:threshold=auto"), "exact"); };
  const auto declare = [](Engine& engine) {
    const KeySpec key{"w", {100'000}};
    return engine.declare({&key, 1})[0];
  };
  const auto steps = [](Engine& engine, KeyId key, unsigned first, unsigned end) {
    std::vector<float> all;
    for (unsigned number = first; number < end; ++number) {
      auto values = random_floats(100'000, 10 * number + engine.rank());
      engine.push_pull(key, values, values, 0).wait();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  std::vector<float> undisturbed;
  GetParam()({2, 2}, [&](Engine& engine) {
    set(engine);
    const KeyId key = declare(engine);
    steps(engine, key, 0, 3);
    engine.checkpoints().save(folder.path());
    const auto sums = steps(engine, key, 3, 5);
    if (engine.rank() == 0) undisturbed = sums;
  });
  GetParam()({2, 2}, [&](Engine& engine) {
    set(engine);
    const KeyId key = declare(engine);
    steps(engine, key, 0, 3);
    set(engine);
    EXPECT_EQ(steps(engine, key, 3, 5), undisturbed);
  });
  GetParam()({2, 2}, [&](Engine& engine) {
    const KeyId key = declare(engine);
    engine.checkpoints().load(folder.path());
    engine.compression().set(spec("topk"), "fp32");  // which does not want them
    set(engine);
    EXPECT_EQ(steps(engine, key, 3, 5), undisturbed);
  });
  GetParam()({2, 2}, [&](Engine& engine) {  // those of another codec are agreed anew
    const KeyId key = declare(engine);
    engine.checkpoints().load(folder.path());
    engine.compression().set(spec("2bit:threshold=auto,scale=2"), "exact");
    EXPECT_NE(steps(engine, key, 3, 5), undisturbed);
  });
}

}  // namespace
}  // namespace gradwire::kvstore
