// Arrays of float16 and bfloat16, wherever sums are made: the bits of the same numbers as floats, rounded
// once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvstore/array_view.h"
#include "tests/kvstore/job.h"
#include "tests/kvstore/placement/hosts.h"
#include "tests/kvstore/sums.h"

namespace gradwire::kvstore {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using Run = void (*)(const JobSize&, const std::function<void(Engine&)>&);

constexpr std::size_t kElements = 150'001;  // several parts

/// Numbers of one of the two types, as a caller has them.
struct Halves {
  ElementType type;
  std::vector<std::uint16_t> bits;

  Halves(ElementType type_of_all, const std::vector<float>& values) : type(type_of_all), bits(values.size()) {
    copy_floats(values, view());
  }
  ArrayView view() { return {type, std::as_writable_bytes(std::span(bits))}; }
  std::vector<float> widened() {
    std::vector<float> values(bits.size());
    copy_as_floats(view(), values);
    return values;
  }
};

class HalfArrays : public testing::TestWithParam<std::tuple<std::pair<const char*, Run>, ElementType>> {
 protected:
  static ElementType type() { return std::get<1>(GetParam()); }
  /// Of two workers, each with keys "halves" and "floats".
  static void run(const std::function<void(Engine&, KeyId halves, KeyId floats)>& body) {
    JobSize size{2, 2};
    size.engine.shard_bound_elements = compress::kUnitElements;
    size.engine.partition_elements = compress::kUnitElements;
    std::get<0>(GetParam()).second(size, [&](Engine& engine) {
      const auto keys =
          engine.declare(std::vector<KeySpec>{{"halves", {kElements}}, {"floats", {kElements}}});
      body(engine, keys[0], keys[1]);
    });
  }
};

void run_one_host(const JobSize& size, const std::function<void(Engine&)>& body) {
  run_hosts(size, Identities(size.workers, "a"), body);
}

INSTANTIATE_TEST_SUITE_P(
    Placements, HalfArrays,
    testing::Combine(testing::Values(std::pair("Servers", &run_job), std::pair("Peers", &run_peers),
                                     std::pair("Native", &run_native), std::pair("Hosts", &run_one_host)),
                     testing::Values(ElementType::kFloat16, ElementType::kBfloat16)),
    [](const auto& info) {
      return std::string(std::get<0>(info.param).first) + "_" + std::string(name_of(std::get<1>(info.param)));
    });

TEST_P(HalfArrays, HaveTheBitsOfTheirNumbersAsFloatsRoundedOnce) {
  for (const char* codec : {"none", "fp16", "int8", "2bit:threshold=auto"}) {
    run([codec](Engine& engine, KeyId of_halves, KeyId of_floats) {
      engine.compression().set(spec(codec), codec == std::string("none") ? "none" : "fp32");
      for (unsigned step = 0; step < 3; ++step) {
        Halves halves(type(), random_floats(kElements, 10 * step + engine.rank()));
        std::vector<float> floats = halves.widened();
        engine.push_pull(of_halves, halves.view(), halves.view(), 0, 1.0 / 3).wait();
        engine.push_pull(of_floats, floats, floats, 0, 1.0 / 3).wait();
        EXPECT_EQ(halves.bits, Halves(type(), floats).bits) << codec << " step " << step;
      }
      EXPECT_EQ(engine.residuals().of(of_halves), engine.residuals().of(of_floats)) << codec;
    });
  }
}

TEST_P(HalfArrays, ArePushedAndPulledByThemselves) {
  run([](Engine& engine, KeyId of_halves, KeyId of_floats) {
    for (unsigned step = 0; step < 3; ++step) {  // the second is taken while the first is on its way
      Halves halves(type(), random_floats(kElements, 10 * step + engine.rank()));
      const std::vector<float> floats = halves.widened();
      engine.push(of_halves, halves.view(), 0);
      engine.push(of_floats, floats, 0);
      std::ranges::fill(halves.bits, 0);
    }
    Halves sum(type(), std::vector<float>(kElements));
    std::vector<float> floats(kElements), exact(kElements);
    engine.pull(of_halves, sum.view(), 0).wait();
    engine.pull(of_floats, floats, 0).wait();
    EXPECT_EQ(sum.bits, Halves(type(), floats).bits);
    engine.pull(of_halves, exact, 0).wait();  // what was pushed as halves is summed in float32
    EXPECT_EQ(exact, floats);
    engine.barrier();
  });
}

TEST_P(HalfArrays, AreSlotsThatTravelInBucketsAndAlone) {
  run([](Engine& engine, KeyId large, KeyId) {
    const auto small = engine.declare(std::vector<KeySpec>{{"a", {100}}, {"b", {7}}});
    const std::vector<KeyId> keys = {small[0], small[1], large};
    std::vector<std::vector<float>> expected;
    std::vector<Halves> slots;
    for (const std::size_t n : {std::size_t{100}, std::size_t{7}, kElements}) {
      slots.emplace_back(type(), random_floats(n, engine.rank()));
      expected.push_back(Halves(type(), random_floats(n, 0)).widened());
      const auto other = Halves(type(), random_floats(n, 1)).widened();
      for (std::size_t i = 0; i < n; ++i) expected.back()[i] = (expected.back()[i] + other[i]) * 0.5F;
    }
    std::vector<ArrayView> views;
    for (Halves& slot : slots) views.push_back(slot.view());
    engine.slots().bind(keys, views);
    engine.slots().set_scale(0.5F);
    for (std::uint32_t slot = 0; slot < 3; ++slot) engine.slots().mark_ready(slot);
    while (!engine.slots().drain_for(std::chrono::seconds(1))) {
    }
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(slots[i].bits, Halves(type(), expected[i]).bits) << i;
  });
}

TEST(HalfArraysAlone, AreNoFirstValuesAndDoublesNoSlots) {
  run_peers({1}, [](Engine& engine) {
    const auto keys = engine.declare(std::vector<KeySpec>{{"a", {2}, "float64"}});
    Halves halves(ElementType::kBfloat16, {1, 2});
    EXPECT_THAT(
        [&] { engine.init(keys[0], halves.view()); },
        ThrowsMessage<std::invalid_argument>(HasSubstr("key 'a' was given as bfloat16; give float32")));
    std::vector<double> doubles(2);
    EXPECT_THAT([&] { engine.slots().bind(keys, std::vector<ArrayView>{doubles}); },
                ThrowsMessage<std::invalid_argument>(
                    HasSubstr("key 'a' was given as float64; give float32, or fewer bits")));
    engine.push(keys[0], halves.view(), 0);
    engine.pull(keys[0], doubles, 0).wait();
    EXPECT_EQ(doubles, (std::vector<double>{1, 2}));
    engine.pull(keys[0], halves.view(), 0).wait();
    EXPECT_EQ(halves.widened(), (std::vector<float>{1, 2}));
  });
}

}  // namespace
}  // namespace gradwire::kvstore
