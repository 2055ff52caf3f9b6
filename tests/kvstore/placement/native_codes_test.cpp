// Placement native and codecs whose codes are integers: gathered or added, the bits are those of servers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <mutex>

#include "compress/payload/integer_sums.h"
#include "kvstore/placement/native.h"
#include "kvstore/placement/sum_trailer.h"
#include "tests/kvstore/job.h"
#include "tests/kvstore/placement/counted_collective.h"
#include "tests/kvstore/sums.h"

namespace gradwire::kvstore {
namespace {

using testing::HasSubstr;

class NativeCodes : public testing::TestWithParam<std::uint32_t> {};

TEST_P(NativeCodes, HaveTheBitsOfServersGatheredAndAdded) {
  JobSize size{GetParam()};
  const Results by_servers = results_of_codes(size, run_job);
  for (const CodeSums code_sums : {CodeSums::kGather, CodeSums::kIntegers, CodeSums::kFewestBits}) {
    size.engine.code_sums = code_sums;
    EXPECT_EQ(results_of_codes(size, run_native), by_servers) << to_string(code_sums);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, NativeCodes, testing::Values(1, 2, 3, 5, 8, 9, 16));

/// Bytes that a rank gives to the library in one round of n elements, after a first one.
std::pair<std::uint64_t, std::uint64_t> gathered_and_integer_bytes(std::uint32_t ranks, CodeSums code_sums,
                                                                   const std::string& codec, std::size_t n) {
  MovedBytes moved;
  std::atomic<std::uint64_t> gathered_before{0};
  JobSize size{ranks};
  size.engine.code_sums = code_sums;
  run_native_wired(
      size,
      [&](Engine& engine) {
        engine.compression().set(spec(codec), "exact");
        const auto keys = engine.declare(std::vector<KeySpec>{{"w", {n}}});
        std::vector<float> values(n, 1.0F);
        engine.push_pull(keys[0], values, values, 0).wait();
        engine.barrier();
        if (engine.rank() == 0) {
          gathered_before = moved.gathered.load();
          moved.integers = 0;
        }
        engine.barrier();
        engine.push_pull(keys[0], values, values, 0).wait();
      },
      [&](Sums sums) { return std::make_unique<CountedCollective>(std::move(sums), moved); });
  EXPECT_EQ(moved.floats, 0U);
  return {(moved.gathered - gathered_before) / ranks, moved.integers / ranks};
}

TEST(NativeCodesBytes, AreThoseOfTheFormula) {
  constexpr std::size_t kElements = compress::kUnitElements;  // one partition
  constexpr std::size_t kCodeBytes = kElements / 4;
  constexpr std::size_t kUnitHeads = 8 + 16;
  constexpr std::size_t kTail = SumTrailer::kElements;
  using Bytes = std::pair<std::uint64_t, std::uint64_t>;
  const std::string fixed = "2bit:threshold=0.5";
  const std::string agreed = "2bit:threshold=auto";
  EXPECT_EQ(gathered_and_integer_bytes(3, CodeSums::kGather, fixed, kElements),
            Bytes(transport::kHeaderBytes + kCodeBytes, 0));
  EXPECT_EQ(gathered_and_integer_bytes(3, CodeSums::kIntegers, fixed, kElements),
            Bytes(0, kElements + kTail));
  EXPECT_EQ(gathered_and_integer_bytes(3, CodeSums::kIntegers, agreed, kElements),
            Bytes(kUnitHeads, kElements + kTail));
  EXPECT_EQ(gathered_and_integer_bytes(8, CodeSums::kFewestBits, agreed, kElements),
            Bytes(transport::kHeaderBytes + kUnitHeads + kCodeBytes, 0));
  EXPECT_EQ(gathered_and_integer_bytes(9, CodeSums::kFewestBits, agreed, kElements),
            Bytes(kUnitHeads, kElements + kTail));
}

TEST(NativeCodesMany, Int16SumsWhatInt8CannotHold) {
  constexpr std::uint32_t kRanks = 130;
  MovedBytes moved;
  run_native_wired(
      {kRanks},
      [](Engine& engine) {
        engine.compression().set(spec("2bit:threshold=0.5"), "exact");
        const auto keys = engine.declare(std::vector<KeySpec>{{"w", {100}}});
        std::vector<float> values(100, 0.5F);
        values[7] = -1.0F;
        engine.push_pull(keys[0], values, values, 0).wait();
        for (std::size_t i = 0; i < values.size(); ++i)
          ASSERT_EQ(values[i], i == 7 ? -65.0F : 65.0F) << engine.rank();
      },
      [&](Sums sums) { return std::make_unique<CountedCollective>(std::move(sums), moved); });
  EXPECT_EQ(moved.integers, kRanks * 2 * (100 + SumTrailer::kElements));
  EXPECT_EQ(moved.gathered, 0U);
}

TEST(NativeCodesNonFinite, ReachesAllRanksAndStaysOutOfSums) {
  for (const std::string codec : {"2bit:threshold=0.5", "2bit:threshold=auto"}) {
    for (const CodeSums code_sums : {CodeSums::kGather, CodeSums::kIntegers}) {
      JobSize size{3};
      size.engine.code_sums = code_sums;
      run_native(size, [&](Engine& engine) {
        engine.compression().set(spec(codec), "exact");
        const auto keys = engine.declare(std::vector<KeySpec>{{"w", {100}}});
        for (unsigned step = 0; step < 4; ++step) {
          auto values = random_floats(100, step + engine.rank());
          const bool bad = step == 2;
          if (bad && engine.rank() == 1) values[13] = std::numeric_limits<float>::quiet_NaN();
          const Ticket sum = engine.push_pull(keys[0], values, values, 0);
          sum.wait();
          EXPECT_EQ(sum.nonfinite(), bad) << codec << ' ' << to_string(code_sums) << " step " << step;
          EXPECT_TRUE(std::ranges::all_of(values, [](float v) { return std::isfinite(v); }));
        }
      });
    }
  }
}

// Small tensors that are sealed together are one payload of segments.
TEST(NativeCodesSlots, ThatTravelTogetherHaveTheBitsOfServers) {
  const auto received = [](const JobRunner& run, CodeSums code_sums, const std::string& codec) {
    JobSize size{3};
    size.engine.code_sums = code_sums;
    std::vector<float> all;
    run(size, [&](Engine& engine) {
      engine.compression().set(spec(codec), "exact");
      std::vector<KeySpec> specs;
      std::vector<std::vector<float>> values;
      for (unsigned i = 0; i < 20; ++i) {
        specs.push_back({std::to_string(i), {100 + 37 * i}});
        values.emplace_back(specs.back().elements());
      }
      const auto keys = engine.declare(specs);
      engine.slots().bind(keys, std::vector<ArrayView>(values.begin(), values.end()));
      for (unsigned step = 0; step < 4; ++step) {
        for (unsigned i = 0; i < values.size(); ++i)
          std::ranges::copy(random_floats(values[i].size(), 100 * step + 4 * i + engine.rank()),
                            values[i].begin());
        for (unsigned i = 0; i < values.size(); ++i) engine.slots().mark_ready(i);
        ASSERT_TRUE(engine.slots().drain_for(std::chrono::seconds(20)));
        for (const auto& value : values) {
          if (engine.rank() == 0) all.insert(all.end(), value.begin(), value.end());
        }
      }
    });
    return all;
  };
  for (const std::string codec : {"2bit:threshold=0.25", "2bit:threshold=auto"}) {
    const auto by_servers = received(run_job, CodeSums::kFewestBits, codec);
    EXPECT_EQ(received(run_native, CodeSums::kGather, codec), by_servers) << codec;
    MovedBytes moved;
    const auto run_counted = [&](const JobSize& size, const std::function<void(Engine&)>& body) {
      run_native_wired(
          size, body, [&](Sums sums) { return std::make_unique<CountedCollective>(std::move(sums), moved); });
    };
    EXPECT_EQ(received(run_counted, CodeSums::kIntegers, codec), by_servers) << codec;
    EXPECT_GT(moved.integers, 0U);
  }
}

TEST(NativeCodesOptimizer, UpdatesFromSumsOfIntegers) {
  const auto weights = [](const JobRunner& run, CodeSums code_sums) {
    JobSize size{3};
    size.engine.code_sums = code_sums;
    std::vector<float> weight(kCodeKeys[1].elements());
    run(size, [&](Engine& engine) {
      engine.compression().set(spec("2bit:threshold=0.5"), "exact");
      const auto keys = engine.declare(std::vector<KeySpec>{kCodeKeys[1]});
      std::vector<float> out(kCodeKeys[1].elements());
      engine.init(keys[0], out);
      engine.set_optimizer("sgd learning_rate=0.1 momentum=0.9");
      for (unsigned step = 0; step < 4; ++step)
        engine.push_pull(keys[0], random_floats(out.size(), step + engine.rank()), out, 0).wait();
      if (engine.rank() == 0) weight = out;
    });
    return weight;
  };
  EXPECT_EQ(weights(run_native, CodeSums::kIntegers), weights(run_job, CodeSums::kFewestBits));
}

TEST(NativeCodesSettings, ThatDifferBetweenRanksAreOneError) {
  transport::InprocNetwork network(2, 0);
  transport::InprocCollectives collectives(2);
  run_workers(2, [&](std::uint32_t rank) {
    EngineOptions options;
    options.code_sums = rank == 0 ? CodeSums::kGather : CodeSums::kIntegers;
    try {
      Engine engine(network.connect({transport::Role::kWorker, rank}), collectives.connect(rank), options);
      FAIL();
    } catch (const std::invalid_argument& error) {
      EXPECT_THAT(error.what(), HasSubstr("worker 0 has code_sums=gather, worker 1 has code_sums=integers"));
    }
  });
}

// Levels that differ would be added as if they were one.
TEST(NativeCodesHash, CoversTheCodecsParameters) {
  std::vector<std::byte> sum(SumTrailer::size_bytes(1));
  std::vector<std::byte> one(sum.size());
  transport::FrameHeader header;
  header.codec = 3;
  for (const std::uint32_t threshold : {1U, 2U}) {
    header.codec_parameters[0] = threshold;
    SumTrailer::write(header, transport::ElementType::kInt8, one);
    for (std::size_t i = 0; i < sum.size(); ++i)
      sum[i] = static_cast<std::byte>(std::to_integer<int>(sum[i]) + std::to_integer<int>(one[i]));
  }
  EXPECT_FALSE(SumTrailer::read(sum, transport::ElementType::kInt8, header, 2).same);
}

}  // namespace
}  // namespace gradwire::kvstore
