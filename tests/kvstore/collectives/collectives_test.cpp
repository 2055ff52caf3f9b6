#include "kvstore/collectives/collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <set>

#include "tests/kvstore/job.h"
#include "tests/kvstore/sums.h"
#include "transport/decorators/faulty_messenger.h"

namespace gradwire::kvstore {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using namespace std::chrono_literals;
using Runner = void (*)(const JobSize&, const std::function<void(Engine&)>&);

/// Above one piece of 256 KiB in every share, and no whole number of anything.
constexpr std::uint64_t kLarge = 700'003;

template <typename T>
std::span<const std::byte> bytes(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

template <typename T>
std::span<std::byte> writable(std::vector<T>& values) {
  return std::as_writable_bytes(std::span(values));
}

template <typename T>
std::vector<T> values_of(const Blocks& blocks) {
  std::vector<T> values(blocks.bytes.size_bytes() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), blocks.bytes.bytes().data(), blocks.bytes.size_bytes());
  return values;
}

/// What a rank gives: small numbers of both signs, so that nothing that is defined overflows.
template <typename T>
std::vector<T> given(std::uint64_t elements, std::uint32_t rank, unsigned seed = 0) {
  std::minstd_rand random(1000 * seed + rank + 1);
  std::vector<T> values(elements);
  for (T& value : values) value = static_cast<T>(static_cast<double>(random() % 2001) / 1000 - 1);
  if constexpr (std::is_integral_v<T>) {
    for (T& value : values) value = static_cast<T>(random());
  }
  return values;
}

/// The plain oracle, one element after the other in rank order.
template <typename T>
std::vector<T> oracle(std::uint64_t elements, std::uint32_t workers, ReduceOp op, unsigned seed = 0) {
  using Safe = std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;
  auto result = given<T>(elements, 0, seed);
  for (std::uint32_t rank = 1; rank < workers; ++rank) {
    const auto next = given<T>(elements, rank, seed);
    for (std::uint64_t i = 0; i < elements; ++i) {
      const auto a = static_cast<Safe>(result[i]), b = static_cast<Safe>(next[i]);
      if (op == ReduceOp::kMin) result[i] = std::min(result[i], next[i]);
      if (op == ReduceOp::kMax) result[i] = std::max(result[i], next[i]);
      if (op == ReduceOp::kProduct) result[i] = static_cast<T>(a * b);
      if (op == ReduceOp::kSum || op == ReduceOp::kAverage) result[i] = static_cast<T>(a + b);
    }
  }
  if (op == ReduceOp::kAverage) {
    for (T& value : result) value /= static_cast<T>(workers);
  }
  return result;
}

struct Placement {
  const char* name;
  Runner run;
  JobSize size;
};

class EveryPlacement : public testing::TestWithParam<Placement> {
 protected:
  void run(const std::function<void(Engine&)>& body) {
    JobSize size = GetParam().size;
    size.engine.partition_elements = compress::kUnitElements;
    GetParam().run(size, body);
  }
  std::uint32_t workers() const { return GetParam().size.workers; }

  template <typename T>
  void reduces(Engine& engine, DataType type, ReduceOp op, std::uint64_t elements) {
    const auto in = given<T>(elements, engine.rank());
    const auto expected = oracle<T>(elements, workers(), op);
    std::vector<T> out(elements);
    engine.collectives().all_reduce(bytes(in), writable(out), type, op);
    EXPECT_EQ(out, expected) << name_of(op) << " " << name_of(type) << " " << elements;
    auto in_place = in;
    engine.collectives().all_reduce(bytes(in_place), writable(in_place), type, op);
    EXPECT_EQ(in_place, expected) << "in place";

    const auto mine = near_equal_share(elements, workers(), engine.rank());
    std::vector<T> share(mine.count);
    engine.collectives().reduce_scatter(bytes(in), writable(share), type, op);
    const auto* begin = expected.data() + mine.offset;
    EXPECT_EQ(share, std::vector<T>(begin, begin + mine.count)) << "reduce_scatter";
  }
};

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};

TEST_P(EveryPlacement, ReducesEveryTypeByEveryOp) {
  run([this](Engine& engine) {
    for (const std::uint64_t elements : {0U, 1U, 37U}) {  // fewer than ranks, too
      for (const ReduceOp op : kOps) {
        reduces<std::uint8_t>(engine, DataType::kUint8, op, elements);
        reduces<std::int8_t>(engine, DataType::kInt8, op, elements);
        reduces<std::int32_t>(engine, DataType::kInt32, op, elements);
        reduces<std::int64_t>(engine, DataType::kInt64, op, elements);
        reduces<float>(engine, DataType::kFloat32, op, elements);
        reduces<double>(engine, DataType::kFloat64, op, elements);
      }
      reduces<float>(engine, DataType::kFloat32, ReduceOp::kAverage, elements);
      reduces<double>(engine, DataType::kFloat64, ReduceOp::kAverage, elements);
    }
    reduces<float>(engine, DataType::kFloat32, ReduceOp::kSum, kLarge);
    reduces<double>(engine, DataType::kFloat64, ReduceOp::kAverage, kLarge);
    reduces<std::uint8_t>(engine, DataType::kUint8, ReduceOp::kSum, kLarge);
  });
}

TEST_P(EveryPlacement, HalvesAreRoundedOnce) {
  run([this](Engine& engine) {
    for (const auto type : {DataType::kFloat16, DataType::kBfloat16}) {
      std::vector<std::vector<std::uint16_t>> all;
      for (std::uint32_t rank = 0; rank < workers(); ++rank) all.push_back(given<std::uint16_t>(999, rank));
      std::vector<std::span<const std::byte>> parts;
      for (const auto& part : all) parts.push_back(bytes(part));
      std::vector<std::uint16_t> expected(999), out(999);
      reduce(parts, type, ReduceOp::kAverage, writable(expected));  // reduction_test has the oracle
      engine.collectives().all_reduce(bytes(all[engine.rank()]), writable(out), type, ReduceOp::kAverage);
      EXPECT_EQ(out, expected);
    }
  });
}

TEST_P(EveryPlacement, BroadcastsFromEveryRoot) {
  run([this](Engine& engine) {
    for (std::uint32_t root = 0; root < workers(); ++root) {
      for (const std::uint64_t elements : {std::uint64_t{0}, std::uint64_t{1}, kLarge}) {
        auto values = given<float>(elements, engine.rank(), root);
        engine.collectives().broadcast(writable(values), DataType::kFloat32, root);
        EXPECT_EQ(values, given<float>(elements, root, root));
      }
    }
  });
}

TEST_P(EveryPlacement, GathersBlocksOfAnyLength) {
  run([this](Engine& engine) {
    for (const std::uint64_t step : {std::uint64_t{1}, kLarge / 7}) {
      const auto elements = [&](std::uint32_t rank) { return (rank + 2) % 3 * step; };  // some are empty
      std::vector<std::int32_t> expected;
      std::vector<std::uint64_t> counts;
      for (std::uint32_t rank = 0; rank < workers(); ++rank) {
        const auto theirs = given<std::int32_t>(elements(rank), rank);
        expected.insert(expected.end(), theirs.begin(), theirs.end());
        counts.push_back(theirs.size());
      }
      const auto mine = given<std::int32_t>(elements(engine.rank()), engine.rank());
      const auto blocks = engine.collectives().all_gather(bytes(mine), DataType::kInt32);
      EXPECT_EQ(values_of<std::int32_t>(blocks), expected);
      EXPECT_EQ(blocks.elements, counts);
    }
  });
}

TEST_P(EveryPlacement, BlocksForEachOfAnyLength) {
  run([this](Engine& engine) {
    const auto elements = [&](std::uint32_t from, std::uint32_t to) {
      return (from * 2 + to) % 4 == 3 ? kLarge / 3 : (from + 3 * to) % 5;
    };
    const auto block = [&](std::uint32_t from, std::uint32_t to) {
      return given<double>(elements(from, to), from, to);
    };
    std::vector<std::vector<double>> mine;
    std::vector<double> expected;
    for (std::uint32_t rank = 0; rank < workers(); ++rank) {
      mine.push_back(block(engine.rank(), rank));
      const auto theirs = block(rank, engine.rank());
      expected.insert(expected.end(), theirs.begin(), theirs.end());
    }
    std::vector<std::span<const std::byte>> views;
    for (const auto& values : mine) views.push_back(bytes(values));
    const auto blocks = engine.collectives().all_to_all(views, DataType::kFloat64);
    EXPECT_EQ(values_of<double>(blocks), expected);
    for (std::uint32_t rank = 0; rank < workers(); ++rank)
      EXPECT_EQ(blocks.elements[rank], elements(rank, engine.rank()));
  });
}

TEST_P(EveryPlacement, GoesOnBesideGradients) {
  run([this](Engine& engine) {
    const auto keys = engine.declare(std::vector<KeySpec>{{"w", {300'000}}});
    for (unsigned step = 0; step < 3; ++step) {
      auto gradient = random_floats(300'000, 100 * step + engine.rank());
      const Ticket ticket = engine.push_pull(keys[0], gradient, gradient, 0);
      auto values = given<std::int64_t>(kLarge / 4, engine.rank(), step);
      engine.collectives().all_reduce(bytes(values), writable(values), DataType::kInt64, ReduceOp::kSum);
      EXPECT_EQ(values, oracle<std::int64_t>(kLarge / 4, workers(), ReduceOp::kSum, step));
      ticket.wait();
      EXPECT_EQ(gradient, rank_order_sum(300'000, 100 * step, workers()));
    }
  });
}

std::vector<Placement> placements() {
  std::vector<Placement> all;
  for (const std::uint32_t workers : {1U, 2U, 3U, 5U, 8U}) all.push_back({"peers", run_peers, {workers}});
  all.push_back({"one_server", run_job, {3, 1}});
  all.push_back({"servers", run_job, {2, 3, 2}});
  all.push_back({"servers", run_job, {5, 5}});  // as many as workers, yet none of theirs
  return all;
}

INSTANTIATE_TEST_SUITE_P(Collectives, EveryPlacement, testing::ValuesIn(placements()), [](const auto& info) {
  return std::string(info.param.name) + "_of_" + std::to_string(info.param.size.workers);
});

TEST(Collectives, SharesAreNearlyEqual) {
  EXPECT_EQ(near_equal_share(10, 4, 0), (kvstore::Run{0, 3}));
  EXPECT_EQ(near_equal_share(10, 4, 1), (kvstore::Run{3, 3}));
  EXPECT_EQ(near_equal_share(10, 4, 2), (kvstore::Run{6, 2}));
  EXPECT_EQ(near_equal_share(10, 4, 3), (kvstore::Run{8, 2}));
  EXPECT_EQ(near_equal_share(2, 3, 2), (kvstore::Run{2, 0}));
}

TEST(Collectives, RowsStayWhole) {
  run_peers({3}, [](Engine& engine) {
    const std::vector<std::int32_t> in = {1, 2, 3, 4, 5, 6, 7, 8};  // 4 rows: 2, 1, 1
    std::vector<std::int32_t> out(engine.rank() == 0 ? 4 : 2);
    engine.collectives().reduce_scatter(bytes(in), writable(out), DataType::kInt32, ReduceOp::kSum, 2);
    const std::vector<std::int32_t> expected[] = {{3, 6, 9, 12}, {15, 18}, {21, 24}};
    EXPECT_EQ(out, expected[engine.rank()]);
  });
}

// ------------------------------------------------------------------------------------- documented costs

std::uint64_t payload_bytes_sent(Engine& engine) {
  std::uint64_t sent = 0;
  for (const auto& [peer, counters] : engine.metrics().counters())
    sent += counters.bytes_sent - counters.frames_sent * transport::kHeaderBytes;
  return sent;
}

/// Payload bytes that this worker sends in a collective.
std::uint64_t sent_in(Engine& engine, const std::function<void(Collectives&)>& collective) {
  engine.barrier();
  const std::uint64_t before = payload_bytes_sent(engine);
  collective(engine.collectives());
  engine.barrier();
  return payload_bytes_sent(engine) - before;
}

TEST(CollectivesTraffic, IsTheDocumentedOne) {
  for (const std::uint32_t workers : {1U, 2U, 3U, 4U}) {
    run_peers({workers}, [workers](Engine& engine) {
      const std::uint64_t elements = 12 * 70'000;
      const std::uint64_t payload = elements * sizeof(float);
      const std::uint64_t others = workers - 1;
      std::vector<float> values(elements, 1), share(elements / workers);
      const auto type = DataType::kFloat32;
      EXPECT_EQ(
          sent_in(engine,
                  [&](auto& c) { c.all_reduce(bytes(values), writable(values), type, ReduceOp::kSum); }),
          2 * payload * others / workers);
      EXPECT_EQ(
          sent_in(engine,
                  [&](auto& c) { c.reduce_scatter(bytes(values), writable(share), type, ReduceOp::kSum); }),
          payload * others / workers);
      EXPECT_EQ(sent_in(engine, [&](auto& c) { c.all_gather(bytes(values), type); }), payload * others);
      const std::vector<std::span<const std::byte>> blocks(workers, bytes(share));
      EXPECT_EQ(sent_in(engine, [&](auto& c) { c.all_to_all(blocks, type); }), payload / workers * others);
      const auto broadcast = sent_in(engine, [&](auto& c) { c.broadcast(writable(values), type, 0); });
      const std::uint64_t passed_on = others == 0 ? 0 : payload * (others - 1) / others;
      EXPECT_EQ(broadcast, others > 0 && engine.rank() == 0 ? payload : passed_on);
    });
  }
}

// With dedicated servers a worker's blob goes up once, however many read it.
TEST(CollectivesTraffic, GoesUpOnceWithDedicatedServers) {
  run_job({4, 2}, [](Engine& engine) {
    std::vector<float> values(300'000, 1);
    const auto bytes_sent =
        sent_in(engine, [&](auto& c) { c.all_gather(bytes(values), DataType::kFloat32); });
    EXPECT_EQ(bytes_sent, values.size() * sizeof(float));
  });
}

// ------------------------------------------------------------------------------------- what goes wrong

/// Every worker's std::invalid_argument; the store must live on.
std::set<std::string> refusals(std::uint32_t workers, const std::function<void(Engine&)>& body) {
  std::mutex mutex;
  std::vector<std::string> texts;
  run_peers({workers}, [&](Engine& engine) {
    try {
      body(engine);
    } catch (const std::invalid_argument& error) {
      const std::lock_guard lock(mutex);
      texts.emplace_back(error.what());
    }
    std::vector<std::int32_t> ones(5, 1);
    engine.collectives().all_reduce(bytes(ones), writable(ones), DataType::kInt32, ReduceOp::kSum);
    EXPECT_EQ(ones, std::vector<std::int32_t>(5, static_cast<std::int32_t>(workers)));
  });
  EXPECT_EQ(texts.size(), workers);
  return {texts.begin(), texts.end()};
}

TEST(CollectivesMisuse, DifferencesAreOneErrorOnAll) {
  std::vector<float> four(4), five(5);
  const auto all_reduce = [](Engine& engine, std::vector<float> values, DataType type, ReduceOp op) {
    engine.collectives().all_reduce(bytes(values), writable(values), type, op);
  };
  EXPECT_THAT(refusals(3,
                       [&](Engine& e) {
                         all_reduce(e, e.rank() == 2 ? five : four, DataType::kFloat32, ReduceOp::kSum);
                       }),
              ElementsAre(HasSubstr("all_reduce differ: worker 0 has elements=4, worker 2 has elements=5")));
  EXPECT_THAT(refusals(2,
                       [&](Engine& e) {
                         all_reduce(e, four, e.rank() ? DataType::kInt32 : DataType::kFloat32,
                                    ReduceOp::kSum);
                       }),
              ElementsAre(HasSubstr("worker 0 has dtype=float32, worker 1 has dtype=int32")));
  EXPECT_THAT(refusals(2,
                       [&](Engine& e) {
                         all_reduce(e, four, DataType::kFloat32, e.rank() ? ReduceOp::kMax : ReduceOp::kSum);
                       }),
              ElementsAre(HasSubstr("worker 0 has op=sum, worker 1 has op=max")));
  EXPECT_THAT(refusals(2, [&](Engine& e) { all_reduce(e, four, DataType::kInt32, ReduceOp::kAverage); }),
              ElementsAre(HasSubstr("op 'average' of int32 is not defined")));
  EXPECT_THAT(
      refusals(2, [&](Engine& e) { e.collectives().broadcast(writable(four), DataType::kFloat32, 2); }),
      ElementsAre(HasSubstr("root=2 is not a worker rank; expected 0 to 1")));
  EXPECT_THAT(refusals(2, [&](Engine& e) { e.collectives().all_to_all({}, DataType::kFloat32); }),
              ElementsAre(HasSubstr("0 blocks given, expected one for each of 2 workers")));
  EXPECT_THAT(refusals(2,
                       [&](Engine& e) {
                         e.collectives().all_gather(bytes(four), DataType::kFloat32,
                                                    e.rank() ? "row_shape=2\n" : "row_shape=4\n");
                       }),
              ElementsAre(HasSubstr("row_shape=4, worker 1 has row_shape=2")));
}

TEST(CollectivesMisuse, AClosedStoreSaysSo) {
  run_peers({1}, [](Engine& engine) {
    engine.close();
    EXPECT_THROW(engine.collectives(), std::logic_error);
  });
}

class Failure : public testing::TestWithParam<Placement> {
 protected:
  /// Worker 1 agrees to `what`, and then does `instead`. Returns the others' errors.
  std::vector<std::string> errors_when_worker_1(const std::function<void()>& instead, const char* what,
                                                const std::string& settings,
                                                const std::function<void(Collectives&)>& collective) {
    std::mutex mutex;
    std::vector<std::string> texts;
    JobSize size = GetParam().size;
    size.engine.slow_abort = deadline_;
    size.engine.retry_timeout = 300ms;
    const auto body = [&](Engine& engine) {
      if (engine.rank() == 1) {
        engine.meeting().all_gather(what, settings);
        return instead();
      }
      try {
        collective(engine.collectives());
      } catch (const std::runtime_error& error) {
        const std::lock_guard lock(mutex);
        texts.emplace_back(error.what());
      }
    };
    try {
      GetParam().run(size, body);
    } catch (const transport::TransportError&) {  // the servers' view of it
    }
    EXPECT_EQ(texts.size(), size.workers - 1);
    return texts;
  }

  std::chrono::milliseconds deadline_ = 30s;
};

TEST_P(Failure, AWorkerThatLeavesIsNamedByThoseThatFetchFromIt) {
  std::vector<float> values(500'000);
  for (const auto& text :
       errors_when_worker_1([] {}, "all_gather", "500000\ndtype=float32\n",
                            [&](Collectives& c) { c.all_gather(bytes(values), DataType::kFloat32); }))
    EXPECT_THAT(text, HasSubstr("worker 1 left the job"));
}

TEST_P(Failure, AWorkerThatLeavesIsNamedByThePosterItDoesNotFetchFrom) {
  std::vector<std::vector<float>> arrays(2, std::vector<float>(50'000));  // lent until the engines are closed
  std::atomic<std::size_t> taken{0};
  const auto texts = errors_when_worker_1([] {}, "broadcast", "\nroot=0\ndtype=float32\nelements=50000\n",
                                          [&](Collectives& c) {
                                            auto& values = arrays.at(taken++);
                                            c.broadcast(writable(values), DataType::kFloat32, 0);
                                            if (values[0] == 0) std::this_thread::sleep_for(1s);
                                            throw std::runtime_error("worker 1 left the job: not noticed");
                                          });
  EXPECT_THAT(texts, testing::Contains(HasSubstr("worker 1 left the job before it fetched")));
}

TEST_P(Failure, AWorkerThatHangsIsNamedAfterTheDeadline) {
  deadline_ = 2s;
  std::vector<float> values(500'000);
  std::atomic<bool> over{false};
  const auto hang = [&] {
    for (int i = 0; i < 100 && !over; ++i) std::this_thread::sleep_for(100ms);
  };
  for (const auto& text :
       errors_when_worker_1(hang, "all_gather", "500000\ndtype=float32\n", [&](Collectives& c) {
         const auto end = [&](void*) { over = true; };
         const std::unique_ptr<void, decltype(end)> guard(&over, end);
         c.all_gather(bytes(values), DataType::kFloat32);
       }))
    EXPECT_THAT(text, HasSubstr("worker 1"));
}

INSTANTIATE_TEST_SUITE_P(Collectives, Failure,
                         testing::Values(Placement{"peers", run_peers, {3}},
                                         Placement{"servers", run_job, {3, 2}}),
                         [](const auto& info) { return std::string(info.param.name); });

// A connection that breaks and comes back loses what was on its way.
TEST(Collectives, AskAgainForWhatWasLostOrDamaged) {
  JobSize size{3, 2};
  size.engine.retry_timeout = 100ms;
  const auto faults = std::make_shared<transport::Faults>(transport::parse_faults("drop=10%,corrupt=10%"));
  const auto body = [](Engine& engine) {
    for (unsigned step = 0; step < 3; ++step) {
      auto values = given<float>(kLarge / 7, engine.rank(), step);
      engine.collectives().all_reduce(bytes(values), writable(values), DataType::kFloat32, ReduceOp::kSum);
      EXPECT_EQ(values, oracle<float>(kLarge / 7, 3, ReduceOp::kSum, step));
    }
  };
  run_wired(size, body, [&](Line line) { return transport::disturbed(std::move(line), faults); });
  EXPECT_GT(faults->counts().of(transport::Fault::kDropped), 5U);
  EXPECT_GT(faults->counts().of(transport::Fault::kCorrupted), 5U);
}

}  // namespace
}  // namespace gradwire::kvstore
