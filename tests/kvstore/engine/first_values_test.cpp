// First values of many keys: what they cost in exchanges and messages does not grow with the number of keys.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "kvstore/engine/engine.h"
#include "kvstore/rows/sparse_rows.h"
#include "tests/kvstore/job.h"
#include "tests/kvstore/placement/hosts.h"
#include "tests/kvstore/sums.h"
#include "transport/decorators/forwarding_messenger.h"

namespace gradwire::kvstore {
namespace {

using transport::Kind;
using transport::Node;

/// Of rank 0's line.
struct Traffic {
  std::atomic<int> exchanges{0}, init_messages{0}, inits{0};
};

class CountingLine final : public transport::ForwardingMessenger {
 public:
  CountingLine(Line line, Traffic& traffic)
      : transport::ForwardingMessenger(std::move(line)), counts_(self().rank == 0), traffic_(traffic) {}

  void send(Node to, std::vector<transport::Frame> frames) override {
    const auto inits = std::ranges::count_if(frames, [](const transport::Frame& frame) {
      return frame.header.kind == Kind::kInit || frame.header.kind == Kind::kRowInit;
    });
    if (counts_ && inits > 0) {
      traffic_.inits += static_cast<int>(inits);
      ++traffic_.init_messages;
    }
    transport::ForwardingMessenger::send(to, std::move(frames));
  }
  std::vector<std::string> exchange(std::string_view name, std::string_view blob,
                                    std::chrono::milliseconds timeout) override {
    if (counts_) ++traffic_.exchanges;
    return transport::ForwardingMessenger::exchange(name, blob, timeout);
  }

 private:
  const bool counts_;
  Traffic& traffic_;
};

using Body = std::function<void(Engine&)>;
using Wire = std::function<Line(Line)>;

void run_on_servers(const Body& body, const Wire& wire) { run_wired({2, 2}, body, wire); }
void run_on_peers(const Body& body, const Wire& wire) { run_peers_wired({2, 0}, body, wire); }

void run_on_a_library(const Body& body, const Wire& wire) {
  transport::InprocNetwork network(2, 0);
  transport::InprocCollectives collectives(2);
  run_workers(2, [&](std::uint32_t rank) {
    Engine engine(wire(network.connect({transport::Role::kWorker, rank})), collectives.connect(rank),
                  EngineOptions());
    body(engine);
  });
}

void run_on_a_host(const Body& body, const Wire& wire) {
  transport::InprocNetwork network(2, 1);
  InprocHosts hosts({"x", "x"});
  Server server(network.connect({transport::Role::kServer, 0}), ServerOptions());
  run_workers(2, [&](std::uint32_t rank) {
    Engine engine(wire(network.connect({transport::Role::kWorker, rank})), EngineOptions(), nullptr,
                  hosts.connector());
    body(engine);
  });
  server.wait();
}

struct Placement {
  const char* name;
  void (*run)(const Body&, const Wire&);
  int inits_of_1000_keys;  ///< that rank 0 sends, where it is root
};
constexpr Placement kPlacements[] = {{"Servers", run_on_servers, 1000},
                                     {"Peers", run_on_peers, 500},  // the others stay in its process
                                     {"Library", run_on_a_library, 0},
                                     {"Host", run_on_a_host, 1000}};

class FirstValues : public testing::TestWithParam<Placement> {};
INSTANTIATE_TEST_SUITE_P(All, FirstValues, testing::ValuesIn(kPlacements),
                         [](const auto& info) { return info.param.name; });

std::vector<KeySpec> small_keys(std::size_t count) {
  std::vector<KeySpec> specs;
  for (std::size_t i = 0; i < count; ++i) specs.push_back({std::to_string(i), {10}});
  return specs;
}

std::vector<float> first_of(std::size_t key, std::uint32_t rank) {
  return std::vector<float>(10, static_cast<float>(key + 10'000 * rank));
}

/// Has root give the first values of so many keys, and adds what rank 0 has exchanged and sent meanwhile.
Traffic& traffic_of(Traffic& traffic, const Placement& placement, std::size_t count, std::uint32_t root) {
  placement.run(
      [&](Engine& engine) {
        const auto keys = engine.declare(small_keys(count));
        std::vector<std::vector<float>> values;
        std::vector<FirstValue> firsts;
        for (std::size_t k = 0; k < count; ++k) values.push_back(first_of(k, engine.rank()));
        for (std::size_t k = 0; k < count; ++k) firsts.push_back({keys[k], values[k]});
        if (engine.rank() == 0) traffic.exchanges = 0;
        engine.init(firsts, root);
        const int exchanges = traffic.exchanges;
        std::vector<std::vector<float>> got(count, std::vector<float>(10));
        std::vector<Ticket> pulled;
        for (std::size_t k = 0; k < count; ++k) pulled.push_back(engine.pull(keys[k], got[k], 0));
        wait_all(pulled);
        for (std::size_t k = 0; k < count; ++k) EXPECT_EQ(got[k], first_of(k, root)) << "key " << k;
        engine.barrier();
        if (engine.rank() == 0) traffic.exchanges = exchanges;
      },
      [&](Line line) { return std::make_unique<CountingLine>(std::move(line), traffic); });
  return traffic;
}

TEST_P(FirstValues, OfManyKeysTakeAsManyExchangesAsThoseOfOne) {
  Traffic of_one, of_many;
  EXPECT_EQ(traffic_of(of_many, GetParam(), 1000, 1).exchanges,
            traffic_of(of_one, GetParam(), 1, 1).exchanges);
}

// 1000 headers and values are 152 KB, and a message is full with 16 KiB.
TEST_P(FirstValues, LeaveTogether) {
  Traffic traffic;
  traffic_of(traffic, GetParam(), 1000, 0);
  EXPECT_EQ(traffic.inits, GetParam().inits_of_1000_keys);
  EXPECT_LE(traffic.init_messages, 10);
}

TEST_P(FirstValues, OfAllSizesAndDtypesInOneCall) {
  GetParam().run(
      [&](Engine& engine) {
        const std::vector<KeySpec> specs = {
            {"scalar", {1}}, {"large", {1'200'001}}, {"wide", {3}, "float64"}, {"odd", {7}}};
        const auto keys = engine.declare(specs);
        const std::vector<double> wide = {1 + 0x1p-40, 2.5, -3};
        const auto value_of = [&](std::size_t k) { return random_floats(specs[k].elements(), 7 + k); };
        std::vector<std::vector<float>> values;
        for (std::size_t k = 0; k < specs.size(); ++k) {
          values.push_back(value_of(k));
          if (engine.rank() != 1) std::ranges::fill(values.back(), 99.0F);
        }
        std::vector<FirstValue> firsts;
        for (std::size_t k = 0; k < specs.size(); ++k) firsts.push_back({keys[k], values[k]});
        const std::vector<double> others(3, 99.0);
        firsts[2] = {keys[2], engine.rank() == 1 ? wide : others};
        engine.init(firsts, 1);
        for (const std::size_t k : {0, 1, 3}) {
          std::vector<float> got(specs[k].elements());
          engine.pull(keys[k], got, 0).wait();
          EXPECT_EQ(got, value_of(k)) << specs[k].name;
        }
        std::vector<double> got(3);
        engine.pull(keys[2], got, 0).wait();
        EXPECT_EQ(got, wide);
        engine.barrier();
      },
      [](Line line) { return line; });
}

TEST(FirstValuesOfNone, AskServersNothing) {
  Traffic traffic;
  run_wired(
      {2, 1},
      [&](Engine& engine) {
        engine.init(std::span<const FirstValue>());
        engine.barrier();
      },
      [&](Line line) { return std::make_unique<CountingLine>(std::move(line), traffic); });
  EXPECT_EQ(traffic.inits, 0);
}

TEST(FirstValuesOfOneWrongSize, ChangeNothing) {
  run_job({1, 1}, [](Engine& engine) {
    const auto keys = engine.declare(small_keys(2));
    const std::vector<float> right(10, 1.0F), wrong(9, 1.0F);
    const std::vector<FirstValue> firsts = {{keys[0], right}, {keys[1], wrong}};
    EXPECT_THAT([&] { engine.init(firsts); },
                testing::ThrowsMessage<std::invalid_argument>(
                    testing::HasSubstr("init: key '1' has 10 elements, 9 given")));
    std::vector<float> out(10);
    EXPECT_THROW(engine.pull(keys[0], out, 0).wait(), std::invalid_argument);
  });
}

TEST(FirstRowsOfManyTables, TakeAsManyExchangesAsThoseOfOne) {
  const auto exchanges_of = [](std::size_t count) {
    Traffic traffic;
    int exchanges = 0;
    run_wired(
        {2, 2},
        [&](Engine& engine) {
          std::vector<KeySpec> specs;
          for (std::size_t i = 0; i < count; ++i) specs.push_back({std::to_string(i), {20, 3}});
          const auto tables = engine.sparse().declare(specs);
          const std::vector<std::int64_t> ids = {4, 17};
          std::vector<std::vector<float>> rows;
          std::vector<FirstRows> firsts;
          for (std::size_t i = 0; i < count; ++i) rows.emplace_back(6, static_cast<float>(i + 1));
          for (std::size_t i = 0; i < count; ++i) firsts.push_back({tables[i], ids, rows[i]});
          if (engine.rank() == 0) traffic.exchanges = 0;
          engine.sparse().init(firsts, 0);
          if (engine.rank() == 0) exchanges = traffic.exchanges;
          for (std::size_t i = 0; i < count; ++i) {
            const auto pulled = engine.sparse().pull(tables[i], ids, 0);
            pulled.done.wait();
            EXPECT_EQ(engine.sparse().rows_of(pulled).values, rows[i]) << "table " << i;
          }
          engine.barrier();
        },
        [&](Line line) { return std::make_unique<CountingLine>(std::move(line), traffic); });
    return exchanges;
  };
  EXPECT_EQ(exchanges_of(1), 1);
  EXPECT_EQ(exchanges_of(40), 1);
}

// The name that a bucket has for people is no key's.
TEST(DeclaredKeys, MayBeNamedAsABucketIs) {
  JobSize size{1, 1};
  run_job(size, [](Engine& engine) {
    const std::vector<KeySpec> specs = {{"a", {3}}, {"b", {3}}};
    const auto keys = engine.declare(specs);
    std::vector<std::vector<float>> values(2, std::vector<float>(3));
    const std::vector<ArrayView> spans(values.begin(), values.end());
    engine.slots().bind(keys, spans);
    const KeySpec named{"b to a", {3}};
    EXPECT_EQ(engine.declare({&named, 1}), std::vector<KeyId>{3});
  });
}

TEST(DeclaredKeys, AreOnePerName) {
  run_job({1, 1}, [](Engine& engine) {
    const auto again = testing::ThrowsMessage<std::invalid_argument>(
        testing::HasSubstr("key 'a' was declared before; declare each key once"));
    const std::vector<KeySpec> twice = {{"a", {3}}, {"b", {3}}, {"a", {4}}};
    EXPECT_THAT([&] { engine.declare(twice); }, again);
    EXPECT_EQ(engine.declare({&twice[1], 2}), (std::vector<KeyId>{1, 0}));
    EXPECT_THAT([&] { engine.declare({&twice[0], 1}); }, again);
  });
}

}  // namespace
}  // namespace gradwire::kvstore
