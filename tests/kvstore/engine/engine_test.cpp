#include "kvstore/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <future>
#include <map>
#include <mutex>

#include "compress/dense/dense_scalar.h"
#include "compress/share_sent.h"
#include "tests/kvstore/job.h"
#include "tests/kvstore/sums.h"
#include "transport/decorators/forwarding_messenger.h"

namespace gradwire::kvstore {
namespace {

using testing::HasSubstr;

TEST(Engine, PushPullSumsInRankOrderInPlace) {
  run_job({3, 2}, [](Engine& engine) {
    const std::vector<KeySpec> specs = {{"small", {7}}, {"large", {1'200'001}}};
    const auto keys = engine.declare(specs);
    for (int step = 0; step < 3; ++step) {
      for (std::size_t k = 0; k < keys.size(); ++k) {
        const auto n = specs[k].elements();
        auto values = random_floats(n, 100 * step + engine.rank());
        engine.push_pull(keys[k], values, values, 0).wait();
        EXPECT_EQ(values, rank_order_sum(n, 100 * step, 3));
      }
    }
  });
}

// Section 5 of MXNet's own nightly test: 7 workers, 2 servers, T=.5, rate 2 gives 0, 0, N, N, 2N, 3N.
TEST(Engine, TwoBitAcceptanceOfMxnet) {
  static constexpr float kWorkers = 7;
  run_job({7, 2}, [](Engine& engine) {
    engine.compression().set(spec("2bit:threshold=0.5"), "exact");
    const std::vector<KeySpec> specs = {{"a", {2, 3}}, {"b", {1211, 1211}}, {"c", {1200, 1200}}};
    const auto keys = engine.declare(specs);
    for (std::size_t k = 0; k < keys.size(); ++k) {
      const std::vector<float> zeros(specs[k].elements(), 0.0F);
      engine.init(keys[k], zeros);
    }
    engine.set_optimizer("test rescale_grad=2");
    const std::pair<float, float> rounds[] = {
        {0.0F, 0}, {0.4F, 0}, {0.1F, kWorkers}, {0.2F, kWorkers}, {0.3F, 2 * kWorkers}, {0.5F, 3 * kWorkers}};
    for (std::size_t k = 0; k < keys.size(); ++k) {
      std::vector<float> out(specs[k].elements());
      engine.pull(keys[k], out, 0).wait();
      EXPECT_EQ(out, std::vector<float>(out.size(), 0.0F));
      for (const auto& [pushed, expected] : rounds) {
        const std::vector<float> grad(out.size(), pushed);
        engine.push(keys[k], grad, 0);
        engine.pull(keys[k], out, 0).wait();
        EXPECT_EQ(out, std::vector<float>(out.size(), expected)) << "after pushing " << pushed;
      }
    }
  });
}

TEST(Engine, NeitherPartitionSizeNorServersNorThreadsChangeABit) {
  JobSize size{2, 2};
  const auto reference = results_of(size);
  EXPECT_EQ(results_of(size), reference) << "a second run";
  size.engine.partition_elements = compress::kUnitElements;
  size.engine.codec_threads = 3;
  EXPECT_EQ(results_of(size), reference) << "other partitions, more threads";
  size.servers = 1;
  size.server_threads = 2;
  EXPECT_EQ(results_of(size), reference) << "one server of two threads";
  size.servers = 3;
  size.engine.shard_bound_elements = 200;
  EXPECT_EQ(results_of(size), reference) << "three servers, everything sharded";
}

TEST(Engine, NorDoTheyWithResidualsInBfloat16) {
  JobSize size{2, 2};
  size.engine.residual_type = ElementType::kBfloat16;
  const auto reference = results_of(size);
  size.engine.partition_elements = compress::kUnitElements;
  size.engine.codec_threads = 3;
  EXPECT_TRUE(results_of(size) == reference);
  run_job(size, [](Engine& engine) {
    engine.compression().set(spec("int8"), "fp32");
    const KeyId key = engine.declare(std::vector<KeySpec>{{"w", {300}}}).front();
    auto values = random_floats(300, engine.rank());
    engine.push_pull(key, values, values, 0).wait();
    const std::vector<float> residual = engine.residuals().of(key);
    EXPECT_GT(compress::squares_of({}, residual), 0);
    for (const float kept : residual)
      EXPECT_EQ(kept, compress::dense::float_from_bf16(compress::dense::bf16_from_float(kept)));
  });
}

TEST(Engine, WithoutResidualsEachRoundIsAsTheFirst) {
  JobSize size{2, 2};
  size.engine.residual_type = std::nullopt;
  const auto reference = results_of(size);
  size.engine.partition_elements = compress::kUnitElements;
  EXPECT_TRUE(results_of(size) == reference);
  run_job(size, [](Engine& engine) {
    engine.residuals().keep_rollback(true);
    engine.compression().set(spec("topk:ratio=0.1"), "fp32");
    const KeyId key = engine.declare(std::vector<KeySpec>{{"w", {300}}}).front();
    const auto given = random_floats(300, engine.rank());
    auto first = given, second = given;
    engine.push_pull(key, first, first, 0).wait();
    engine.residuals().roll_back(std::vector{key});
    engine.residuals().set(key, given);
    engine.residuals().add(key, given);
    EXPECT_TRUE(engine.residuals().of(key).empty());
    engine.push_pull(key, second, second, 0).wait();
    EXPECT_EQ(second, first);
    EXPECT_EQ(engine.residuals().norm(), 0);
    EXPECT_EQ(engine.residuals().share_sent(), std::nullopt) << "nobody knows what was lost";
  });
}

TEST(Engine, SlotsExchangeEveryStep) {
  JobSize size{2, 2};
  size.engine.fusion_bytes = 4096;
  run_job(size, [](Engine& engine) {
    std::vector<KeySpec> specs;
    std::vector<std::vector<float>> values;
    for (unsigned i = 0; i < 40; ++i) {
      specs.push_back({std::to_string(i), {1 + i * 37}});
      values.emplace_back(specs.back().elements());
    }
    const auto keys = engine.declare(specs);
    std::vector<ArrayView> spans(values.begin(), values.end());
    engine.slots().bind(keys, spans);
    engine.slots().set_scale(0.5F);
    EXPECT_EQ(engine.slots().unmarked().size(), 40U);
    EXPECT_THROW(engine.slots().drain_for(std::chrono::seconds(1)), std::logic_error);
    for (int step = 0; step < 5; ++step) {
      for (auto& v : values) std::fill(v.begin(), v.end(), static_cast<float>(step + engine.rank()));
      for (unsigned i = 40; i-- > 0;) engine.slots().mark_ready(i);
      EXPECT_THROW(engine.slots().mark_ready(3), std::logic_error);
      ASSERT_TRUE(engine.slots().drain_for(std::chrono::seconds(20)));
      for (const auto& v : values)
        EXPECT_EQ(v, std::vector<float>(v.size(), static_cast<float>(step) + 0.5F));
    }
  });
}

/// What 30 slots of up to 4000 elements hold on rank 0 after four steps.
std::vector<std::vector<float>> slots_after_steps(const std::string& codec, const std::string& reply,
                                                  std::uint64_t fusion_bytes,
                                                  void (*run)(const JobSize&,
                                                              const std::function<void(Engine&)>&)) {
  JobSize size{3, 2};
  size.engine.fusion_bytes = fusion_bytes;
  std::vector<std::vector<float>> result;
  run(size, [&](Engine& engine) {
    engine.compression().set(spec(codec), reply);
    std::vector<KeySpec> specs;
    std::vector<std::vector<float>> values;
    for (unsigned i = 0; i < 30; ++i) {
      specs.push_back({std::to_string(i), {1 + i * i * 4}});
      values.emplace_back(specs.back().elements());
    }
    specs.push_back({"large", {70'000}});
    values.emplace_back(70'000);
    const auto keys = engine.declare(specs);
    engine.slots().bind(keys, std::vector<ArrayView>(values.begin(), values.end()));
    engine.slots().set_scale(0.5F);
    for (unsigned step = 0; step < 4; ++step) {
      for (unsigned i = 0; i < values.size(); ++i)
        std::ranges::copy(random_floats(values[i].size(), 100 * step + 3 * i + engine.rank()),
                          values[i].begin());
      for (unsigned i = 0; i < values.size(); ++i) engine.slots().mark_ready((i * 7) % 31);
      ASSERT_TRUE(engine.slots().drain_for(std::chrono::seconds(20)));
    }
    if (engine.rank() == 0) result = values;
  });
  return result;
}

TEST(Engine, FusingTensorsChangesNoBit) {
  for (const auto& [codec, reply] :
       std::vector<std::pair<std::string, std::string>>{{"none", "none"},
                                                        {"fp16", "fp16"},
                                                        {"2bit:threshold=0.25", "exact"},
                                                        {"2bit:threshold=auto", "2bit"}}) {
    const auto alone = slots_after_steps(codec, reply, 0, run_job);
    ASSERT_EQ(alone.size(), 31U);
    for (const std::uint64_t bytes : {4096, 65536, 1 << 20}) {
      EXPECT_EQ(slots_after_steps(codec, reply, bytes, run_job), alone) << codec << ", " << bytes;
      EXPECT_EQ(slots_after_steps(codec, reply, bytes, run_peers), alone) << codec << ", peers, " << bytes;
      if (codec == "fp16") continue;  // which a library adds as fp16
      EXPECT_EQ(slots_after_steps(codec, reply, bytes, run_native), alone) << codec << ", native, " << bytes;
    }
  }
}

/// Counts what is sent.
class CountingMessenger final : public transport::ForwardingMessenger {
 public:
  CountingMessenger(Line line, std::atomic<int>& pushes)
      : transport::ForwardingMessenger(std::move(line)), pushes_(pushes) {}
  void send(transport::Node to, std::vector<transport::Frame> frames) override {
    for (const transport::Frame& frame : frames)
      pushes_ += frame.header.kind == transport::Kind::kPush ? 1 : 0;
    transport::ForwardingMessenger::send(to, std::move(frames));
  }

 private:
  std::atomic<int>& pushes_;
};

TEST(Engine, FusedTensorsAreOneFrame) {
  std::atomic<int> pushes{0};
  const auto body = [](Engine& engine) {
    std::vector<KeySpec> specs;
    for (int i = 0; i < 200; ++i) specs.push_back({std::to_string(i), {256}});
    const auto keys = engine.declare(specs);
    std::vector<std::vector<float>> values(200, std::vector<float>(256, 1.0F));
    engine.slots().bind(keys, std::vector<ArrayView>(values.begin(), values.end()));
    for (unsigned i = 0; i < 200; ++i) engine.slots().mark_ready(i);
    ASSERT_TRUE(engine.slots().drain_for(std::chrono::seconds(20)));
    for (const auto& v : values) EXPECT_EQ(v, std::vector<float>(256, 2.0F));
  };
  run_wired({2, 1}, body,
            [&](Line line) { return std::make_unique<CountingMessenger>(std::move(line), pushes); });
  EXPECT_EQ(pushes, 2);
}

TEST(Engine, WithAnOptimizerOnTheServersEverySlotIsAWeight) {
  run_job({2, 1}, [](Engine& engine) {
    const auto keys = engine.declare(std::vector<KeySpec>{{"a", {2}}, {"b", {2}}});
    std::vector<std::vector<float>> values(2, std::vector<float>(2, 10.0F));
    for (std::size_t i = 0; i < 2; ++i) engine.init(keys[i], values[i]);
    engine.set_optimizer("test rescale_grad=1");
    engine.slots().bind(keys, std::vector<ArrayView>(values.begin(), values.end()));
    for (auto& v : values) std::ranges::fill(v, 1.0F);
    for (unsigned i = 0; i < 2; ++i) engine.slots().mark_ready(i);
    ASSERT_TRUE(engine.slots().drain_for(std::chrono::seconds(20)));
    for (const auto& v : values) EXPECT_EQ(v, std::vector<float>(2, 12.0F));
  });
}

TEST(Engine, SlotsOfAClosedStoreAreRefused) {
  run_job({1, 1}, [](Engine& engine) {
    const auto keys = engine.declare(std::vector<KeySpec>{{"a", {2}}, {"b", {2}}});
    std::vector<std::vector<float>> values(2, std::vector<float>(2));
    engine.slots().bind(keys, std::vector<ArrayView>(values.begin(), values.end()));
    engine.close();
    EXPECT_THROW(engine.slots().mark_ready(0), std::logic_error);
  });
}

TEST(Engine, WorkersMayPushTheirKeysInAnyOrder) {
  JobSize size{2, 1};
  size.engine.credit_bytes = 1;
  run_job(size, [](Engine& engine) {
    std::vector<KeySpec> specs;
    for (int i = 0; i < 20; ++i) specs.push_back({std::to_string(i), {100'000}});
    const auto keys = engine.declare(specs);
    std::vector<std::vector<float>> out(keys.size(), std::vector<float>(100'000));
    const std::vector<float> ones(100'000, 1.0F);
    std::vector<Ticket> tickets;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const std::size_t k = engine.rank() == 0 ? i : keys.size() - 1 - i;
      tickets.push_back(engine.push_pull(keys[k], ones, out[k], 0));
    }
    for (const auto& ticket : tickets) ticket.wait();
    for (const auto& values : out) EXPECT_EQ(values, std::vector<float>(100'000, 2.0F));
  });
}

TEST(Engine, SeveralPushesBeforeAPullAreSeveralRounds) {
  run_job({2, 1}, [](Engine& engine) {
    const std::vector<KeySpec> specs = {{"w", {5}}};
    const auto key = engine.declare(specs)[0];
    for (float v = 1; v <= 3; ++v) {
      std::vector<float> grad(5, v);
      engine.push(key, grad, 0);
      std::fill(grad.begin(), grad.end(), 99.0F);  // taken already
    }
    std::vector<float> out(5);
    engine.pull(key, out, 0).wait();
    EXPECT_EQ(out, std::vector<float>(5, 6.0F));
  });
}

/// Every worker's error text, all the same.
std::string error_of_all(std::uint32_t workers, const std::function<void(Engine&)>& body) {
  std::mutex mutex;
  std::vector<std::string> texts;
  run_job({workers, 1}, [&](Engine& engine) {
    try {
      body(engine);
    } catch (const std::invalid_argument& error) {
      const std::lock_guard lock(mutex);
      texts.emplace_back(error.what());
    }
    engine.barrier();
  });
  EXPECT_EQ(texts.size(), workers);
  for (const auto& text : texts) EXPECT_EQ(text, texts[0]);
  return texts.empty() ? "" : texts[0];
}

TEST(Engine, DifferencesBetweenRanksAreTheSameErrorOnAll) {
  EXPECT_THAT(error_of_all(3,
                           [](Engine& engine) {
                             const std::vector<KeySpec> specs = {{"w", {engine.rank() == 2 ? 4U : 5U}}};
                             engine.declare(specs);
                           }),
              HasSubstr("worker 2 has 'w' float32 (4)"));
  EXPECT_THAT(error_of_all(2,
                           [](Engine& e) {
                             e.compression().set(spec(e.rank() == 1 ? "2bit:threshold=1" : "2bit"), "exact");
                           }),
              HasSubstr("threshold=1"));
  EXPECT_THAT(
      error_of_all(2, [](Engine& e) { e.compression().set(spec("2bit"), e.rank() == 1 ? "2bit" : "exact"); }),
      HasSubstr("reply="));
  EXPECT_THAT(
      error_of_all(3,
                   [](Engine& e) {
                     const auto keys = e.declare(std::vector<KeySpec>{{"a", {3}}, {"b", {3}}, {"c", {3}}});
                     std::vector<std::vector<float>> values(3, std::vector<float>(3));
                     std::vector<KeyId> order = {keys[0], keys[1], keys[2]};
                     if (e.rank() == 2) std::swap(order[0], order[1]);
                     e.slots().bind(order, std::vector<ArrayView>(values.begin(), values.end()));
                   }),
      HasSubstr("worker 0 has a bucket of keys c, b, a, worker 2 has a bucket of keys c, a, b"));
  EXPECT_THAT(error_of_all(2, [](Engine& e) { e.set_optimizer(e.rank() == 1 ? "test" : "sgd"); }),
              HasSubstr("differ"));
}

// And to servers, which then do not end as if all were well.
TEST(Engine, AWorkerThatStopsEarlyIsNamedToThoseWhoWait) {
  std::string text, at_server;
  try {
    run_job({2, 1}, [&](Engine& engine) {
      const std::vector<KeySpec> specs = {{"w", {5}}};
      const auto key = engine.declare(specs)[0];
      std::vector<float> values(5, 1.0F);
      engine.push_pull(key, values, values, 0).wait();
      if (engine.rank() == 1) return;
      try {
        engine.push_pull(key, values, values, 0).wait();
      } catch (const transport::TransportError& error) {
        text = error.what();
      }
    });
  } catch (const transport::TransportError& error) {
    at_server = error.what();
  }
  EXPECT_THAT(text, HasSubstr("worker 1 left the job before step 1"));
  EXPECT_THAT(at_server, HasSubstr("worker 1 left the job before step 1"));
}

TEST(Engine, SlowWorkerIsNamedThenTheJobGivesUp) {
  JobSize size{2, 1};
  size.engine.slow_warning = std::chrono::milliseconds(600);
  size.engine.slow_abort = std::chrono::milliseconds(2'000);
  size.engine.retry_timeout = std::chrono::milliseconds(100);
  std::string text, notice;
  try {
    run_job(size, [&](Engine& engine) {
      const std::vector<KeySpec> specs = {{"w", {5}}};
      const auto key = engine.declare(specs)[0];
      std::vector<float> values(5, 1.0F);
      if (engine.rank() == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(3'000));
        return;
      }
      try {
        engine.push_pull(key, values, values, 0).wait();
      } catch (const transport::TimeoutError& error) {
        text = error.what();
      }
      for (const auto& line : engine.metrics().take_notices()) notice += line;
    });
  } catch (
      const transport::TransportError&) {  // NOLINT(bugprone-empty-catch): rank 1 and the server hear of it
  }
  EXPECT_THAT(notice, HasSubstr("key 'w' step 0 has waited 1 s for worker 1"));
  EXPECT_THAT(text, HasSubstr("for worker 1"));
}

// Who is awaited was asked after retry_timeout alone, so that a warning before that blamed the server.
TEST(Engine, AWarningBeforeAnyRetryNamesTheSlowWorker) {
  JobSize size{2, 1};
  size.engine.slow_warning = std::chrono::seconds(2);
  size.engine.retry_timeout = std::chrono::seconds(100);
  std::vector<std::string> notices;
  std::promise<void> warned;
  auto is_warned = warned.get_future().share();
  run_job(size, [&](Engine& engine) {
    const std::vector<KeySpec> specs = {{"w", {5}}};
    const auto key = engine.declare(specs)[0];
    std::vector<float> values(5, 1.0F);
    if (engine.rank() == 1) is_warned.wait_for(std::chrono::seconds(60));
    const Ticket sum = engine.push_pull(key, values, values, 0);
    while (engine.rank() == 0 && notices.empty() && !sum.wait_for(std::chrono::milliseconds(20)))
      notices = engine.metrics().take_notices();
    if (engine.rank() == 0) warned.set_value();
    sum.wait();
  });
  EXPECT_THAT(notices, testing::ElementsAre(
                           testing::ContainsRegex("^key 'w' step 0 has waited [0-9]+ s for worker 1$")));
}

TEST(Engine, BadCallsAreNamed) {
  run_job({1, 1}, [](Engine& engine) {
    const std::vector<KeySpec> specs = {{"w", {5}}};
    const auto key = engine.declare(specs)[0];
    std::vector<float> four(4), five(5);
    EXPECT_THAT([&] { engine.push(key, four, 0); },
                testing::ThrowsMessage<std::invalid_argument>(HasSubstr("'w' has 5 elements, 4 given")));
    EXPECT_THROW(engine.pull(99, five, 0), std::invalid_argument);
    EXPECT_THROW(engine.declare(specs), std::invalid_argument);
    const std::vector<KeySpec> empty = {{"e", {0}}};
    EXPECT_THROW(engine.declare(empty), std::invalid_argument);
    EXPECT_THROW(engine.pull(key, five, 0).wait(), std::invalid_argument);  // neither init nor push
    engine.push_pull(key, five, five, 0).wait();                            // and the engine goes on
    engine.close();
    EXPECT_THROW(engine.push(key, five, 0), std::logic_error);
  });
}

TEST(Engine, NonfiniteIsReportedOnEveryRank) {
  run_job({2, 1}, [](Engine& engine) {
    engine.compression().set(spec("2bit:threshold=0.5"), "exact");
    const std::vector<KeySpec> specs = {{"w", {5}}};
    const auto key = engine.declare(specs)[0];
    std::vector<float> values(5, 1.0F);
    if (engine.rank() == 1) values[2] = NAN;
    const Ticket bad = engine.push_pull(key, values, values, 0);
    bad.wait();
    EXPECT_TRUE(bad.nonfinite());
    EXPECT_EQ(values, (std::vector<float>{1, 1, 0.5F, 1, 1}));
    std::vector<float> zeros(5, 0.0F);
    const Ticket good = engine.push_pull(key, zeros, zeros, 0);
    good.wait();
    EXPECT_FALSE(good.nonfinite());
    if (engine.rank() == 1) zeros[2] = INFINITY;
    engine.push(key, zeros, 0);
    const Ticket pulled = engine.pull(key, values, 0);
    pulled.wait();
    EXPECT_TRUE(pulled.nonfinite());
  });
}

}  // namespace
}  // namespace gradwire::kvstore
