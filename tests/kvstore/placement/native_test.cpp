// Placement native: a library sums.
#include "kvstore/placement/native.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <thread>

#include "tests/kvstore/job.h"
#include "tests/kvstore/sums.h"

namespace gradwire::kvstore {
namespace {

using testing::HasSubstr;

// The library here adds in rank order, so that even dense sums are those of servers.
TEST(Native, GivesTheBitsOfServers) {
  for (const std::uint32_t workers : {1U, 2U, 3U}) {
    const JobSize size{workers, 2};
    auto native = results_of(size, run_native);
    auto servers = results_of(size, run_job);
    // 16-bit sums are rounded after each addition, so their bits differ from a sum of widened values.
    for (const char* rounded : {"fp16fp16", "bf16fp32"}) {
      native.erase(rounded);
      servers.erase(rounded);
    }
    EXPECT_EQ(native, servers);
  }
}

TEST(Native, SixteenBitSumsAreWithinTheirRounding) {
  run_native({3}, [](Engine& engine) {
    for (const std::string codec : {"fp16", "bf16"}) {
      engine.compression().set(spec(codec), codec);
      const auto keys = engine.declare(std::vector<KeySpec>{{codec, {10'000}}});
      auto values = random_floats(10'000, engine.rank());
      engine.push_pull(keys[0], values, values, 0).wait();
      const auto exact = rank_order_sum(10'000, 0, 3);
      const float ulp = codec == "fp16" ? 0x1p-10F : 0x1p-7F;
      for (std::size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(values[i], exact[i], 3 * 2 * ulp);
    }
  });
}

TEST(Native, WorldSizesAndSmallKeys) {
  for (const std::uint32_t workers : {1U, 2U, 5U, 8U}) {
    run_native({workers}, [workers](Engine& engine) {
      const auto keys = engine.declare(std::vector<KeySpec>{{"a", {1}}, {"b", {70'001}}});
      for (unsigned step = 0; step < 3; ++step) {
        for (std::size_t k = 0; k < 2; ++k) {
          const std::size_t n = k == 0 ? 1 : 70'001;
          auto values = random_floats(n, 50 * step + engine.rank());
          engine.push_pull(keys[k], values, values, 0).wait();
          EXPECT_EQ(values, rank_order_sum(n, 50 * step, workers));
        }
      }
    });
  }
}

TEST(Native, InitIsRootsOnEveryRankAndOptimizersRunEverywhere) {
  run_native({3}, [](Engine& engine) {
    const auto keys = engine.declare(std::vector<KeySpec>{{"w", {5}}});
    const std::vector<float> mine(5, static_cast<float>(10 * engine.rank()));
    engine.init(keys[0], mine, 2);
    engine.set_optimizer("test rescale_grad=2");
    std::vector<float> out(5);
    engine.pull(keys[0], out, 0).wait();
    EXPECT_EQ(out, std::vector<float>(5, 20.0F));
    const std::vector<float> grad(5, 1.0F);
    engine.push(keys[0], grad, 0);
    engine.pull(keys[0], out, 0).wait();
    EXPECT_EQ(out, std::vector<float>(5, 26.0F));
  });
}

// A long one goes in several exchanges.
TEST(Native, AFirstValueOfAnyLengthIsRoots) {
  run_native({3}, [](Engine& engine) {
    const std::uint64_t elements = (std::uint64_t{9} << 20) / sizeof(float) + 3;
    const auto keys = engine.declare(std::vector<KeySpec>{{"w", {elements}}});
    engine.init(keys[0], random_floats(elements, engine.rank()), 1);
    std::vector<float> out(elements);
    engine.pull(keys[0], out, 0).wait();
    EXPECT_EQ(out, random_floats(elements, 1));
  });
}

// Autograd may finish layers in another order on each rank; buckets go in the same one everywhere.
TEST(Native, SlotsGoInTheSameOrderHoweverTheyAreMarked) {
  JobSize size{2};
  size.engine.fusion_bytes = 0;
  run_native(size, [](Engine& engine) {
    std::vector<KeySpec> specs;
    std::vector<std::vector<float>> values;
    for (unsigned i = 0; i < 9; ++i) {
      specs.push_back({std::to_string(i), {100 + i}});
      values.emplace_back(specs.back().elements());
    }
    const auto keys = engine.declare(specs);
    engine.slots().bind(keys, std::vector<ArrayView>(values.begin(), values.end()));
    for (unsigned step = 0; step < 4; ++step) {
      for (unsigned i = 0; i < 9; ++i)  // in place: slots stay where they are
        std::ranges::copy(random_floats(values[i].size(), 40 * step + 4 * i + engine.rank()),
                          values[i].begin());
      for (unsigned i = 0; i < 9; ++i) engine.slots().mark_ready(engine.rank() == 0 ? i : 8 - i);
      ASSERT_TRUE(engine.slots().drain_for(std::chrono::seconds(20)));
      for (unsigned i = 0; i < 9; ++i)
        EXPECT_EQ(values[i], rank_order_sum(values[i].size(), 40 * step + 4 * i, 2)) << i;
    }
  });
}

class NativeOrder : public testing::TestWithParam<std::pair<const char*, CodeSums>> {};

TEST_P(NativeOrder, AnotherOrderOnOneRankIsAnErrorOnAll) {
  const auto [codec, code_sums] = GetParam();
  std::atomic<int> failed{0};
  JobSize size{3};
  size.engine.code_sums = code_sums;
  run_native(size, [&, codec = std::string(codec)](Engine& engine) {
    engine.compression().set(spec(codec), codec == "none" ? "none" : "exact");
    const auto keys = engine.declare(std::vector<KeySpec>{{"a", {1000}}, {"b", {1000}}});
    std::vector<float> a(1000, 1.0F), b(1000, 2.0F);
    const bool turned = engine.rank() == 1;
    const Ticket first = engine.push_pull(keys[turned ? 1 : 0], a, a, 0);
    const Ticket second = engine.push_pull(keys[turned ? 0 : 1], b, b, 0);
    for (const Ticket& ticket : {first, second}) {
      try {
        ticket.wait();
        ADD_FAILURE() << "two different keys were summed";
      } catch (const transport::TransportError& error) {
        EXPECT_THAT(error.what(), HasSubstr("every rank must push the same keys in the same order"));
        ++failed;
      }
    }
    engine.close();  // what has failed may read its arrays until then
  });
  EXPECT_EQ(failed, 6);
}

std::string order_name(const testing::TestParamInfo<std::pair<const char*, CodeSums>>& info) {
  constexpr const char* kNames[] = {"Summed", "Gathered", "AddedAsIntegers"};
  return kNames[info.index];
}

INSTANTIATE_TEST_SUITE_P(Codecs, NativeOrder,
                         testing::Values(std::pair("none", CodeSums::kFewestBits),
                                         std::pair("2bit:threshold=0.5", CodeSums::kGather),
                                         std::pair("2bit:threshold=0.5", CodeSums::kIntegers)),
                         order_name);

TEST(Native, ARankThatNeverComesIsAskedForByName) {
  JobSize size{2};
  size.engine.slow_warning = std::chrono::milliseconds(300);
  size.engine.slow_abort = std::chrono::milliseconds(1500);
  size.engine.retry_timeout = std::chrono::milliseconds(100);
  run_native(size, [](Engine& engine) {
    const auto keys = engine.declare(std::vector<KeySpec>{{"a", {1000}}});
    std::vector<float> a(1000, 1.0F);
    if (engine.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2500));
      return;
    }
    try {
      engine.push_pull(keys[0], a, a, 0).wait();
      FAIL();
    } catch (const transport::TimeoutError& error) {
      EXPECT_THAT(error.what(), HasSubstr("for worker 1"));
    }
  });
}

/// A library that fails, as one does whose peer has closed its connection.
class FailingCollective final : public transport::Collective {
 public:
  std::string_view name() const noexcept override { return "failing"; }
  std::uint32_t rank() const noexcept override { return 0; }
  std::uint32_t size() const noexcept override { return 2; }
  void all_reduce(transport::Buffer values, transport::ElementType, Done done) override {
    done(std::move(values), std::make_exception_ptr(transport::TransportError("connection closed")));
  }
  void all_gather(transport::Buffer block, Done done) override {
    all_reduce(std::move(block), transport::ElementType::kInt8, std::move(done));
  }
};

class FirstFailure final : public transport::Sink {
 public:
  void on_frames(transport::Node, std::vector<transport::Frame>) override {}
  void on_failure(const std::string& text) override { text_.set_value(text); }
  void on_goodbye(transport::Node, const std::string&) override {}
  std::string await() {
    return heard_.wait_for(std::chrono::seconds(30)) == std::future_status::ready ? heard_.get() : "";
  }

 private:
  std::promise<std::string> text_;
  std::future<std::string> heard_ = text_.get_future();
};

// The library says that a connection was closed, and at once; who has died is known a moment later.
TEST(Native, WhoHasDiedIsToldInPlaceOfWhatTheLibrarySaysOfIt) {
  for (const bool has_died : {true, false}) {
    transport::InprocNetwork network(2, 0);
    const auto native = make_native(network.connect({transport::Role::kWorker, 0}),
                                    std::make_unique<FailingCollective>(), CodeSums::kGather);
    const auto other = network.connect({transport::Role::kWorker, 1});
    FirstFailure failure;
    native->attach(failure);
    std::vector<transport::Frame> push(1);
    push[0].header.kind = transport::Kind::kPush;
    native->send({transport::Role::kServer, 0}, std::move(push));
    if (has_died) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      other->fail("worker 1 is gone");
    }
    EXPECT_THAT(failure.await(), HasSubstr(has_died ? "worker 1 is gone" : "connection closed"));
    native->detach();
  }
}

/// A library that takes its time for each call.
class SlowCollective final : public transport::Collective {
 public:
  std::string_view name() const noexcept override { return "slow"; }
  std::uint32_t rank() const noexcept override { return 0; }
  std::uint32_t size() const noexcept override { return 2; }
  void all_reduce(transport::Buffer, transport::ElementType, Done) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  void all_gather(transport::Buffer block, Done done) override {
    all_reduce(std::move(block), transport::ElementType::kInt8, std::move(done));
  }
};

// An engine's caller frees its arrays when close() has returned, also those of rounds that have failed.
TEST(Native, AfterDetachNoPushedMemoryIsRead) {
  transport::InprocNetwork network(2, 0);
  const auto native = make_native(network.connect({transport::Role::kWorker, 0}),
                                  std::make_unique<SlowCollective>(), CodeSums::kGather);
  FirstFailure sink;
  native->attach(sink);
  const std::vector<std::byte> values(4000);
  std::atomic<int> released{0};
  std::vector<transport::Frame> pushes(3);
  for (std::size_t i = 0; i < pushes.size(); ++i) {
    pushes[i].header.kind = transport::Kind::kPush;
    pushes[i].header.step = i;
    pushes[i].payload = transport::Buffer::borrow(values, [&released] { ++released; });
  }
  native->send({transport::Role::kServer, 0}, std::move(pushes));
  native->detach();
  EXPECT_EQ(released, 3);
}

// A push that is encoded early waits for its turn here, longer than a question about it would.
TEST(Native, WhatWaitsForItsTurnIsNotSentOutOfTurn) {
  JobSize size{2};
  size.engine.retry_timeout = std::chrono::milliseconds(50);
  run_native(size, [](Engine& engine) {
    // Of equal sizes, so that a library can mix them up.
    const auto keys = engine.declare(std::vector<KeySpec>{{"a", {1000}}, {"b", {1000}}});
    if (engine.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(600));
    const auto value = static_cast<float>(1 + engine.rank());
    const std::vector<float> first(1000, value), second(1000, 10 * value), other(1000, 100 * value);
    engine.push(keys[0], first, 0);
    engine.push(keys[0], second, 0);
    engine.push(keys[1], other, 0);
    std::vector<float> a(1000), b(1000);
    engine.pull(keys[0], a, 0).wait();
    engine.pull(keys[1], b, 0).wait();
    EXPECT_EQ(a, std::vector<float>(1000, 30.0F));
    EXPECT_EQ(b, std::vector<float>(1000, 300.0F));
  });
}

// As over servers: that a worker is slow is no failure.
TEST(Native, AWorkerThatEndsWaitsForThoseThatHaveNotPushedYet) {
  run_native({3}, [](Engine& engine) {
    const auto keys = engine.declare(std::vector<KeySpec>{{"w", {1000}}});
    const std::vector<float> grad(1000, 1.0F);
    if (engine.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2'700));
    engine.push(keys[0], grad, 0);
    if (engine.rank() != 1) return;  // and ends
    std::vector<float> sum(1000);
    engine.pull(keys[0], sum, 0).wait();
    EXPECT_EQ(sum, std::vector<float>(1000, 3.0F));
  });
}

TEST(Native, APushThatOthersNeverMakeDoesNotKeepItsWorker) {
  run_native({2}, [](Engine& engine) {  // ends long before slow_abort, half an hour
    const auto keys = engine.declare(std::vector<KeySpec>{{"w", {1000}}});
    const std::vector<float> grad(1000, 1.0F);
    engine.push(keys[0], grad, 0).wait();
    if (engine.rank() == 0) engine.push(keys[0], grad, 0);
  });
}

}  // namespace
}  // namespace gradwire::kvstore
