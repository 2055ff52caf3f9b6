// Arrays of float16 and bfloat16 on a device: the bits of the same arrays on the host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/kvstore/device_numbers.h"
#include "tests/kvstore/job.h"
#include "tests/kvstore/sums.h"

namespace gradwire::kvstore {
namespace {

using compress::StreamsDevice;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// An array of a type on the host.
class HostNumbers {
 public:
  HostNumbers(const std::vector<float>& values, ElementType type)
      : type_(type), bytes_(values.size() * transport::bytes_of(type)) {
    write(values);
  }
  ArrayView view() { return {type_, bytes_}; }
  OnDevice place() const { return {}; }
  void write(const std::vector<float>& values) { copy_floats(values, view()); }
  std::vector<float> values() {
    std::vector<float> widened(view().size());
    copy_as_floats(view(), widened);
    return widened;
  }

 private:
  ElementType type_;
  std::vector<std::byte> bytes_;
};

class DeviceHalves : public testing::TestWithParam<std::tuple<ElementType, ElementType>> {
 protected:
  static ElementType type() { return std::get<0>(GetParam()); }
  static JobSize size(std::uint32_t workers) {
    JobSize size{workers, 2};
    size.engine.residual_type = std::get<1>(GetParam());
    size.engine.partition_elements = compress::kUnitElements;
    size.engine.fusion_bytes = 16384;
    return size;
  }
  /// Calls body(engine, device, make) once with arrays on a device and once with arrays on the host, where
  /// make(values) makes one of the type, and make(values, of) of another. Compares what it returns on rank 0.
  template <typename Body>
  static void expect_bits_of_the_host(const std::string& codec, const std::string& reply, Body body) {
    const auto device = std::make_shared<StreamsDevice>();
    std::vector<std::vector<float>> there, here;
    run_job(size(2), [&](Engine& engine) {
      engine.compression().set(spec(codec), reply);
      auto seen = body(engine, device, [&](const std::vector<float>& values, ElementType of = type()) {
        return std::make_unique<DeviceNumbers>(device, values, of);
      });
      if (engine.rank() == 0) there = std::move(seen);
    });
    run_job(size(2), [&](Engine& engine) {
      engine.compression().set(spec(codec), reply);
      auto seen = body(engine, nullptr, [](const std::vector<float>& values, ElementType of = type()) {
        return std::make_unique<HostNumbers>(values, of);
      });
      if (engine.rank() == 0) here = std::move(seen);
    });
    ASSERT_FALSE(here.empty());
    EXPECT_TRUE(there == here) << codec << ' ' << reply;
  }
};

INSTANTIATE_TEST_SUITE_P(Types, DeviceHalves,
                         testing::Combine(testing::Values(ElementType::kFloat16, ElementType::kBfloat16),
                                          testing::Values(ElementType::kFloat32, ElementType::kBfloat16)),
                         [](const auto& info) {
                           return std::string(name_of(std::get<0>(info.param))) + "_residuals_in_" +
                                  std::string(name_of(std::get<1>(info.param)));
                         });

const std::vector<std::pair<std::string, std::string>> kCodecs = {
    {"none", "none"},
    {"fp16", "fp16"},
    {"int8", "int8"},
    {"2bit:threshold=0.25", "exact"},
    {"2bit:threshold=auto", "2bit"},
    {"topk", "topk"},
    {"terngrad", "fp32"},
    {"randomk:ratio=0.1", "randomk"}};  // the last one has no twin

TEST_P(DeviceHalves, OneKeyGivesTheBitsOfTheHost) {
  for (const auto& [codec, reply] : kCodecs) {
    expect_bits_of_the_host(codec, reply, [](Engine& engine, const auto&, const auto& make) {
      std::vector<std::vector<float>> seen;
      const std::vector<std::size_t> sizes = {150'001, 300, 1};
      std::vector<KeySpec> specs;
      for (const std::size_t n : sizes) specs.push_back({std::to_string(n), {n}});
      const auto keys = engine.declare(specs);
      for (std::size_t k = 0; k < keys.size(); ++k) {
        const auto numbers = make(std::vector<float>(sizes[k]));
        for (unsigned step = 0; step < 4; ++step) {
          numbers->write(random_floats(sizes[k], 10 * step + engine.rank()));
          engine.push_pull(keys[k], numbers->view(), numbers->view(), 0, 0.5, numbers->place()).wait();
          seen.push_back(numbers->values());
        }
        seen.push_back(engine.residuals().of(keys[k]));
      }
      return seen;
    });
  }
}

TEST_P(DeviceHalves, PushesArePulledThereAndOnTheHost) {
  for (const auto& [codec, reply] : kCodecs) {
    expect_bits_of_the_host(codec, reply, [](Engine& engine, const auto&, const auto& make) {
      std::vector<std::vector<float>> seen;
      const auto key = engine.declare(std::vector<KeySpec>{{"w", {3000}}}).front();
      engine.init(key, std::vector<float>(3000, 0.5F));
      const auto grad = make(std::vector<float>(3000)), out = make(std::vector<float>(3000));
      engine.pull(key, out->view(), 0, out->place()).wait();
      seen.push_back(out->values());
      for (unsigned round = 0; round < 3; ++round) {
        for (unsigned push = 0; push < 2; ++push) {  // the second is staged
          grad->write(random_floats(3000, 10 * round + push + engine.rank()));
          engine.push(key, grad->view(), 0, grad->place());
        }
        engine.pull(key, out->view(), 0, out->place()).wait();
        seen.push_back(out->values());
        std::vector<float> on_host(3000);
        HostNumbers halves_on_host(on_host, type());
        engine.pull(key, on_host, 0).wait();
        engine.pull(key, halves_on_host.view(), 0).wait();
        seen.push_back(on_host);
        seen.push_back(halves_on_host.values());
      }
      return seen;
    });
  }
}

TEST_P(DeviceHalves, SlotsFuseThereAsOnTheHost) {
  for (const auto& [codec, reply] : kCodecs) {
    expect_bits_of_the_host(codec, reply, [](Engine& engine, const auto& device, const auto& make) {
      std::vector<KeySpec> specs;
      for (unsigned i = 0; i < 12; ++i) specs.push_back({std::to_string(i), {1 + i * i * 20}});
      specs.push_back({"large", {70'000}});
      const auto keys = engine.declare(specs);
      std::vector<decltype(make(std::vector<float>()))> slots;
      std::vector<ArrayView> views;
      for (const KeySpec& each : specs) {
        slots.push_back(make(std::vector<float>(each.elements())));
        views.push_back(slots.back()->view());
      }
      engine.slots().bind(keys, views, device);
      engine.slots().set_scale(0.5F);
      std::vector<std::vector<float>> seen;
      for (unsigned step = 0; step < 4; ++step) {
        for (std::uint32_t i = 0; i < slots.size(); ++i) {
          slots[i]->write(random_floats(specs[i].elements(), 100 * step + 3 * i + engine.rank()));
          engine.slots().mark_ready(i, slots[i]->place().stream);
        }
        EXPECT_TRUE(engine.slots().drain_for(std::chrono::seconds(20)));
        for (const auto& slot : slots) seen.push_back(slot->values());
      }
      return seen;
    });
  }
}

TEST_P(DeviceHalves, ResidualsAreReplacedAndRolledBack) {
  expect_bits_of_the_host("2bit:threshold=auto", "exact", [](Engine& engine, const auto&, const auto& make) {
    engine.residuals().keep_rollback(true);
    const auto key = engine.declare(std::vector<KeySpec>{{"w", {70'000}}}).front();
    const auto grad = make(std::vector<float>(70'000));
    std::vector<std::vector<float>> seen;
    const auto round = [&](unsigned seed) {
      grad->write(random_floats(70'000, seed + engine.rank()));
      engine.push_pull(key, grad->view(), grad->view(), 0, 1, grad->place()).wait();
      seen.push_back(grad->values());
      seen.push_back(engine.residuals().of(key));
    };
    round(1);
    round(3);
    const auto before = engine.residuals().of(key);
    round(5);
    engine.residuals().roll_back(std::vector{key});
    EXPECT_EQ(engine.residuals().of(key), before);
    engine.barrier();
    round(5);
    engine.residuals().set(key, random_floats(70'000, 9));
    engine.barrier();
    round(7);
    return seen;
  });
}

TEST_P(DeviceHalves, AStepAllocatesNothingAndOnlyPayloadsCross) {
  constexpr std::size_t kElements = 200'000;
  const auto device = std::make_shared<StreamsDevice>();
  run_job(size(1), [&](Engine& engine) {
    engine.compression().set(spec("int8"), "int8");
    const auto key = engine.declare(std::vector<KeySpec>{{"w", {kElements}}}).front();
    const DeviceNumbers grad(device, random_floats(kElements, 1), type());
    std::size_t allocations = 0;
    std::uint64_t crossed = 0;
    for (int step = 0; step < 8; ++step) {
      engine.push_pull(key, grad.view(), grad.view(), 0, 1, grad.place()).wait();
      const std::uint64_t all = engine.metrics().device_traffic().bytes_from_devices;
      if (step == 3) {
        allocations = device->allocations();
        crossed = all / 4;
      }
      EXPECT_TRUE(step < 3 || all == static_cast<std::uint64_t>(step + 1) * crossed);
    }
    EXPECT_LT(crossed, kElements * 11 / 10);
    EXPECT_EQ(device->allocations(), allocations);
    // The array, its residual, and for a part at a time what is widened and payloads. Small blocks that have
    // grown are kept.
    const std::uint64_t residual = kElements * transport::bytes_of(std::get<1>(GetParam()));
    EXPECT_LT(device->allocated_bytes(), 2 * kElements + residual + 20 * compress::kUnitElements);
  });
}

TEST_P(DeviceHalves, WhatIsNotFiniteOrTooLargeIsAsOnTheHost) {
  for (const auto& [codec, reply] : std::vector<std::pair<std::string, std::string>>{
           {"none", "none"}, {"int8", "fp32"}, {"2bit:threshold=0.5,nonfinite=mxnet", "exact"}}) {
    expect_bits_of_the_host(codec, reply, [](Engine& engine, const auto&, const auto& make) {
      const auto key = engine.declare(std::vector<KeySpec>{{"w", {300}}}).front();
      const auto numbers = make(std::vector<float>(300));
      std::vector<std::vector<float>> seen;
      for (unsigned step = 0; step < 3; ++step) {
        auto values = random_floats(300, 10 * step + engine.rank());
        values[7] = 60'000;  // the sum of two is beyond float16
        values[8] = std::numeric_limits<float>::infinity();
        if (step == 1) values[9] = -3e38F;
        numbers->write(values);
        engine.push_pull(key, numbers->view(), numbers->view(), 0, 1, numbers->place()).wait();
        seen.push_back(numbers->values());
        for (float& value : seen.back()) {
          if (std::isnan(value)) value = 12345;  // equal to itself
        }
      }
      return seen;
    });
  }
}

TEST_P(DeviceHalves, InAndOutMayBeOfDifferentTypesAndABucketOfSeveral) {
  expect_bits_of_the_host("int8", "fp32", [](Engine& engine, const auto& device, const auto& make) {
    const auto keys = engine.declare(std::vector<KeySpec>{{"a", {900}}, {"b", {70}}, {"w", {3000}}});
    const auto in = make(random_floats(3000, engine.rank()));
    const auto out = make(std::vector<float>(3000), ElementType::kFloat32);
    engine.push_pull(keys[2], in->view(), out->view(), 0, 0.5, in->place()).wait();
    engine.push_pull(keys[2], out->view(), in->view(), 0, 0.5, out->place()).wait();
    const auto first = make(random_floats(900, engine.rank()), ElementType::kFloat32);
    const auto second = make(random_floats(70, engine.rank()));
    engine.slots().bind(std::vector<KeyId>{keys[0], keys[1]},
                        std::vector<ArrayView>{first->view(), second->view()}, device);
    engine.slots().mark_ready(0, first->place().stream);
    engine.slots().mark_ready(1, second->place().stream);
    EXPECT_TRUE(engine.slots().drain_for(std::chrono::seconds(20)));
    return std::vector<std::vector<float>>{in->values(), out->values(), first->values(), second->values()};
  });
}

TEST_P(DeviceHalves, AValueIsPulledToAnotherDevice) {
  const auto one = std::make_shared<StreamsDevice>(), other = std::make_shared<StreamsDevice>();
  run_job(size(1), [&](Engine& engine) {
    engine.compression().set(spec("fp16"), "fp16");
    const auto key = engine.declare(std::vector<KeySpec>{{"w", {300'000}}}).front();
    const DeviceNumbers grad(one, std::vector<float>(300'000, 0.5F), type());
    const DeviceNumbers out(other, std::vector<float>(300'000), type());
    engine.push(key, grad.view(), 0, grad.place());
    engine.pull(key, out.view(), 0, out.place()).wait();
    EXPECT_EQ(out.values(), std::vector<float>(300'000, 0.5F));
  });
}

TEST(DeviceHalvesAlone, DoublesStayOnTheHost) {
  const auto device = std::make_shared<StreamsDevice>();
  run_peers({1}, [&](Engine& engine) {
    const auto key = engine.declare(std::vector<KeySpec>{{"a", {2}, "float64"}}).front();
    const DeviceNumbers doubles(device, {1, 2}, ElementType::kFloat64);
    EXPECT_THAT([&] { engine.push(key, doubles.view(), 0, doubles.place()); },
                ThrowsMessage<std::invalid_argument>(
                    HasSubstr("key 'a' was given as float64 on streams; give float32 there, or fewer bits")));
  });
}

}  // namespace
}  // namespace gradwire::kvstore
