// Keys of float64, wherever their sums are made: to the bit with codec none, in float32 with others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "kvstore/wire/codec_cache.h"
#include "kvstore/wire/protocol.h"
#include "tests/kvstore/folder.h"
#include "tests/kvstore/job.h"
#include "tests/kvstore/placement/hosts.h"
#include "tests/kvstore/sums.h"

namespace gradwire::kvstore {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;
using Doubles = std::vector<double>;
using Run = void (*)(const JobSize&, const std::function<void(Engine&)>&);

/// Numbers that float32 can neither hold nor count.
Doubles random_doubles(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, 1e100);
  Doubles values(n);
  for (double& value : values) value = normal(random);
  return values;
}

Doubles rank_order_sum64(std::size_t n, unsigned seed, std::uint32_t ranks) {
  Doubles sum = random_doubles(n, seed);
  for (std::uint32_t rank = 1; rank < ranks; ++rank) {
    const Doubles theirs = random_doubles(n, seed + rank);
    for (std::size_t i = 0; i < n; ++i) sum[i] += theirs[i];
  }
  return sum;
}

KeySpec wide(const std::string& name, std::uint64_t elements) { return {name, {elements}, "float64"}; }

/// Two hosts, whose workers sum first: of three, in the same order.
void run_two_hosts(const JobSize& size, const std::function<void(Engine&)>& body) {
  Identities identities;
  for (std::uint32_t rank = 0; rank < size.workers; ++rank) identities.push_back(rank < 2 ? "a" : "b");
  run_hosts(size, identities, body);
}

class Float64 : public testing::TestWithParam<std::pair<const char*, Run>> {
 protected:
  /// Of three workers.
  static void run(const std::function<void(Engine&)>& body) {
    JobSize size{3, 2};
    size.engine.shard_bound_elements = compress::kUnitElements;
    size.engine.partition_elements = compress::kUnitElements;
    GetParam().second(size, body);
  }
};

INSTANTIATE_TEST_SUITE_P(Placements, Float64,
                         testing::Values(std::pair("Servers", &run_job), std::pair("Peers", &run_peers),
                                         std::pair("Native", &run_native),
                                         std::pair("Hosts", &run_two_hosts)),
                         [](const auto& info) { return info.param.first; });

TEST_P(Float64, PushPullSumsInRankOrder) {
  run([](Engine& engine) {
    const std::vector<KeySpec> specs = {wide("one", 1), wide("small", 7), wide("large", 300'001)};
    const auto keys = engine.declare(specs);
    for (unsigned step = 0; step < 3; ++step) {
      for (std::size_t k = 0; k < keys.size(); ++k) {
        const auto n = specs[k].elements();
        auto values = random_doubles(n, 100 * step + engine.rank());
        engine.push_pull(keys[k], values, values, 0).wait();
        EXPECT_EQ(values, rank_order_sum64(n, 100 * step, 3)) << specs[k].name;
      }
    }
  });
}

TEST_P(Float64, PushesAreTakenWhileOthersAreOnTheirWay) {
  run([](Engine& engine) {
    const auto keys = engine.declare(std::vector<KeySpec>{wide("a", 100'000)});
    for (unsigned step = 0; step < 4; ++step) {
      Doubles values = random_doubles(100'000, 10 * step + engine.rank());
      engine.push(keys[0], values, 0);
      std::ranges::fill(values, 0.0);
    }
    Doubles sum(100'000);
    engine.pull(keys[0], sum, 0).wait();
    EXPECT_EQ(sum, rank_order_sum64(100'000, 30, 3));
    std::vector<float> rounded(100'000);
    engine.pull(keys[0], rounded, 0).wait();
    for (std::size_t i = 0; i < 100; ++i) EXPECT_EQ(rounded[i], static_cast<float>(sum[i]));
  });
}

TEST_P(Float64, AScaleMultipliesTheSum) {
  run([](Engine& engine) {
    const auto keys = engine.declare(std::vector<KeySpec>{wide("a", 10)});
    auto values = random_doubles(10, engine.rank());
    engine.push_pull(keys[0], values, values, 0, 0.25F).wait();
    Doubles expected = rank_order_sum64(10, 0, 3);
    for (double& value : expected) value *= 0.25;
    EXPECT_EQ(values, expected);
  });
}

TEST_P(Float64, FirstValuesAreKeptToTheBit) {
  run([](Engine& engine) {
    const auto keys = engine.declare(std::vector<KeySpec>{wide("a", 100'000)});
    engine.init(keys[0], random_doubles(100'000, engine.rank()), 1);
    Doubles value(100'000);
    engine.pull(keys[0], value, 0).wait();
    EXPECT_EQ(value, random_doubles(100'000, 1));
  });
}

TEST_P(Float64, FloatsAreWidenedAndSumsRoundedForThem) {
  run([](Engine& engine) {
    const auto keys = engine.declare(std::vector<KeySpec>{wide("a", 2)});
    std::vector<float> values = {engine.rank() == 0 ? 1.0F : 0x1p-24F, 3};
    engine.push_pull(keys[0], values, values, 0).wait();  // in float32 each addition would round to 1
    EXPECT_THAT(values, testing::ElementsAre(1 + 0x1p-23F, 9));
    Doubles sum(2);
    engine.push(keys[0], std::vector<float>{engine.rank() == 0 ? 1.0F : 0x1p-30F, 0}, 0);
    engine.pull(keys[0], sum, 0).wait();
    EXPECT_EQ(sum[0], 1 + 0x1p-29);
  });
}

TEST_P(Float64, CodecsWorkInFloat32) {
  run([](Engine& engine) {
    engine.compression().set(spec("topk:ratio=1"), "fp32");  // sends each float as it is
    const auto keys = engine.declare(std::vector<KeySpec>{wide("a", 3)});
    Doubles values = {0.1, 1 + 0x1p-40, -3};
    engine.push_pull(keys[0], values, values, 0).wait();
    EXPECT_NEAR(values[0], 0.3, 1e-7);
    EXPECT_NE(values[0], 0.1 + 0.1 + 0.1);
    EXPECT_EQ(values[1], 3);
    EXPECT_EQ(values[2], -9);
  });
}

TEST_P(Float64, ACodecGivesWayToNoneAndBack) {
  run([](Engine& engine) {
    const auto keys = engine.declare(std::vector<KeySpec>{wide("a", 3)});
    for (const char* codec : {"int8", "none", "int8", "none"}) {
      engine.compression().set(spec(codec), codec);
      auto values = random_doubles(3, engine.rank());
      for (double& value : values) value /= 1e100;
      Doubles expected = rank_order_sum64(3, 0, 3);
      engine.push_pull(keys[0], values, values, 0).wait();
      for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(values[i], expected[i] / 1e100, 0.1);
    }
  });
}

TEST(Float64Keys, WhatACodecHasNotSentGoesWithNone) {
  run_peers({2}, [](Engine& engine) {
    const auto keys = engine.declare(std::vector<KeySpec>{wide("a", 2)});
    engine.compression().set(spec("2bit:threshold=4"), "fp32");
    Doubles values = {1, 3};
    engine.push_pull(keys[0], values, values, 0).wait();
    EXPECT_EQ(values, (Doubles{0, 0}));
    engine.compression().set(spec("none"), "none");
    values = {10, std::nan("")};
    engine.push_pull(keys[0], values, values, 0).wait();
    EXPECT_EQ(values[0], 22);
    EXPECT_TRUE(std::isnan(values[1]));
    EXPECT_EQ(engine.residuals().of(keys[0]), (std::vector<float>{0, 3}));  // of what was not finite it stays
    values = {0, 0};
    engine.push(keys[0], values, 0);
    engine.pull(keys[0], values, 0).wait();
    EXPECT_EQ(values, (Doubles{0, 6}));
  });
}

TEST(Float64Keys, AreTheOnlyOnesThatTakeIt) {
  run_peers({1}, [](Engine& engine) {
    const auto keys = engine.declare(std::vector<KeySpec>{{"a", {2}}, {"b", {2}, "bfloat16"}});
    Doubles values(2);
    EXPECT_THAT([&] { engine.push(keys[0], values, 0); },
                ThrowsMessage<std::invalid_argument>(AllOf(HasSubstr("push: key 'a' was declared as float32"),
                                                           HasSubstr("declare it as float64"))));
    EXPECT_THROW(engine.pull(keys[1], values, 0), std::invalid_argument);
    EXPECT_THROW(engine.push_pull(keys[1], values, values, 0), std::invalid_argument);
    EXPECT_THROW(engine.init(keys[1], values), std::invalid_argument);
    EXPECT_THROW(engine.push(keys[0], Doubles(3), 0), std::invalid_argument);
  });
}

TEST(Float64Keys, ServersWithAnOptimizerKeepFloat32) {
  run_job({2, 1}, [](Engine& engine) {
    const auto keys = engine.declare(std::vector<KeySpec>{wide("a", 2)});
    engine.init(keys[0], Doubles{1 + 0x1p-40, 2});
    engine.set_optimizer("sgd learning_rate=1");
    Doubles weight(2);
    engine.pull(keys[0], weight, 0).wait();
    EXPECT_EQ(weight, (Doubles{1, 2}));
    // In float32 the two would be infinite before they cancel.
    const Doubles gradient = engine.rank() == 0 ? Doubles{1e60, 1} : Doubles{-1e60, 0.5};
    engine.push_pull(keys[0], gradient, weight, 0).wait();
    EXPECT_EQ(weight, (Doubles{1, 0.5}));
  });
}

TEST(Float64Keys, AnOptimizerGoesOnFromTheLastSum) {
  run_job({2, 1}, [](Engine& engine) {
    const auto keys = engine.declare(std::vector<KeySpec>{wide("a", 1)});
    engine.push(keys[0], Doubles{3 + 0x1p-40}, 0);
    engine.set_optimizer("sgd learning_rate=1");
    Doubles weight(1);
    engine.pull(keys[0], weight, 0).wait();
    EXPECT_EQ(weight, (Doubles{6}));
  });
}

TEST(Float64Keys, FirstValuesGoThroughACheckpointOfAnotherShape) {
  const Folder folder;
  const auto value = random_doubles(200'000, 3);
  JobSize before{2, 2}, after{3, 1};
  before.engine.shard_bound_elements = before.engine.partition_elements = compress::kUnitElements;
  run_job(before, [&](Engine& engine) {
    const auto keys = engine.declare(std::vector<KeySpec>{wide("a", value.size())});
    engine.init(keys[0], value);
    engine.checkpoints().save(folder.path());
  });
  run_job(after, [&](Engine& engine) {
    const auto keys = engine.declare(std::vector<KeySpec>{wide("a", value.size())});
    engine.init(keys[0], Doubles(value.size()));
    engine.checkpoints().load(folder.path());
    Doubles there(value.size());
    engine.pull(keys[0], there, 0).wait();
    EXPECT_EQ(there, value);
  });
}

TEST(Float64Keys, WhatFloat32CannotHoldIsNoticedOnce) {
  run_peers({1}, [](Engine& engine) {
    engine.compression().set(spec("int8"), "int8");
    const auto keys = engine.declare(std::vector<KeySpec>{wide("a", 2)});
    for (int step = 0; step < 2; ++step) {
      Doubles values = {1e60, 1};
      const Ticket sum = engine.push_pull(keys[0], values, values, 0);
      sum.wait();
      EXPECT_TRUE(sum.nonfinite());
      EXPECT_EQ(values[0], 0);
    }
    const auto notices = engine.metrics().take_notices();
    ASSERT_EQ(notices.size(), 1U);
    EXPECT_THAT(notices[0], AllOf(HasSubstr("key 'a'"), HasSubstr("3.4e38"), HasSubstr("codec int8")));
  });
}

TEST(Float64Keys, FramesOfAnotherDtypeAreRefused) {
  transport::FrameHeader header;
  header.dtype = 1;
  EXPECT_NE(codec_named_by(header)->as_float64(), nullptr);
  header.dtype = 2;
  EXPECT_THROW(codec_named_by(header), compress::DecodeError);
  header.dtype = 1;
  header.codec = static_cast<std::uint8_t>(compress::WireId::kInt8);
  EXPECT_THROW(codec_named_by(header), compress::DecodeError);
}

// ---- what a step brought and nobody used -----------------------------------------------------------------

TEST(AddedResiduals, TravelOnceMore) {
  run_peers({3}, [](Engine& engine) {
    engine.compression().set(spec("topk:ratio=1"), "fp32");
    const auto keys = engine.declare(std::vector<KeySpec>{{"a", {4}}});
    std::vector<float> values = {1, 2, 3, 4};
    engine.push_pull(keys[0], values, values, 0, 1.0F / 3).wait();
    engine.residuals().add(keys[0], values);  // nobody uses the mean
    std::vector<float> zeros(4);
    engine.push_pull(keys[0], zeros, zeros, 0, 1.0F / 3).wait();
    EXPECT_EQ(zeros, values);
  });
}

TEST(AddedResiduals, TheLeaderAddsThoseOfItsHost) {
  const Identities identities = {"a", "b", "a", "a"};
  run_hosts({4, 1}, identities, [](Engine& engine) {
    engine.compression().set(spec("topk:ratio=1"), "fp32");
    const auto keys = engine.declare(std::vector<KeySpec>{{"a", {2}}});
    std::vector<float> values = {4, 8};
    engine.push_pull(keys[0], values, values, 0, 0.25F).wait();
    engine.residuals().add(keys[0], values);
    std::vector<float> zeros(2);
    engine.push_pull(keys[0], zeros, zeros, 0, 0.25F).wait();
    EXPECT_EQ(zeros, values);
  });
}

}  // namespace
}  // namespace gradwire::kvstore
