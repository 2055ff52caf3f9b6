// Tensors on a device, end to end, on a device that needs no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compress/codecs.h"
#include "tests/kvstore/device_numbers.h"
#include "tests/kvstore/placement/hosts.h"
#include "tests/kvstore/sums.h"

namespace gradwire::kvstore {
namespace {

using compress::StreamsDevice;
using testing::HasSubstr;

Exchange exchange_on(const std::shared_ptr<StreamsDevice>& device) {
  return [device](Engine& engine, KeyId key, std::vector<float>& values, float scale) {
    const DeviceNumbers there(device, values);
    engine.push_pull(key, there.span(), there.span(), 0, scale, there.place()).wait();
    values = there.values();
  };
}

const std::map<std::string, std::vector<float>>& results_on_hosts() {
  static const auto results = results_of({2, 2});
  return results;
}

TEST(DeviceRounds, EveryCodecAndReplyGivesTheBitsOfTheHost) {
  const auto device = std::make_shared<StreamsDevice>();
  EXPECT_EQ(results_of({2, 2}, run_job, exchange_on(device)), results_on_hosts());
}

TEST(DeviceRounds, ResidualsInBfloat16AndNoneAreThoseOfTheHost) {
  JobSize size{2, 2};
  const auto device = std::make_shared<StreamsDevice>();
  for (const std::optional<ElementType> type : {std::optional(ElementType::kBfloat16), {}}) {
    size.engine.residual_type = type;
    EXPECT_TRUE(results_of(size, run_job, exchange_on(device)) == results_of(size));
  }
}

TEST(DeviceRounds, WorkersOnDevicesAndOnHostsMix) {
  const auto device = std::make_shared<StreamsDevice>();
  const Exchange mixed = [&](Engine& engine, KeyId key, std::vector<float>& values, float scale) {
    engine.rank() == 0 ? exchange_on(device)(engine, key, values, scale)
                       : exchange_on_host(engine, key, values, scale);
  };
  JobSize size{2, 1};
  size.engine.partition_elements = compress::kUnitElements;
  size.engine.codec_threads = 3;
  EXPECT_EQ(results_of(size, run_peers, mixed), results_on_hosts());
}

/// What 12 slots hold after four steps, on rank 0.
std::vector<std::vector<float>> slots_after_steps(const std::string& codec, const std::string& reply,
                                                  const std::shared_ptr<StreamsDevice>& device) {
  JobSize size{3, 2};
  size.engine.fusion_bytes = 16384;
  std::vector<std::vector<float>> result;
  run_job(size, [&](Engine& engine) {
    engine.compression().set(spec(codec), reply);
    std::vector<KeySpec> specs;
    std::vector<std::vector<float>> values;
    for (unsigned i = 0; i < 12; ++i) {
      specs.push_back({std::to_string(i), {1 + i * i * 20}});
      values.emplace_back(specs.back().elements());
    }
    specs.push_back({"large", {70'000}});
    values.emplace_back(70'000);
    const auto keys = engine.declare(specs);
    std::vector<DeviceNumbers> there;
    std::vector<ArrayView> spans;
    for (auto& v : values) {
      if (device) there.emplace_back(device, v);
      spans.push_back(device ? there.back().span() : std::span<float>(v));
    }
    engine.slots().bind(keys, spans, device);
    engine.slots().set_scale(0.5F);
    for (unsigned step = 0; step < 4; ++step) {
      for (unsigned i = 0; i < values.size(); ++i) {
        const unsigned slot = (i * 5) % 13;
        const auto grad = random_floats(values[slot].size(), 100 * step + 3 * slot + engine.rank());
        if (device) {
          there[slot].write(grad);
          engine.slots().mark_ready(slot, there[slot].place().stream);
        } else {
          values[slot] = grad;
          engine.slots().mark_ready(slot);
        }
      }
      ASSERT_TRUE(engine.slots().drain_for(std::chrono::seconds(20)));
      for (std::size_t i = 0; i < there.size(); ++i) values[i] = there[i].values();
    }
    if (engine.rank() == 0) result = values;
  });
  return result;
}

TEST(DeviceRounds, SlotsFuseThereAsOnTheHost) {
  for (const auto& [codec, reply] :
       std::vector<std::pair<std::string, std::string>>{{"none", "none"},
                                                        {"fp16", "fp16"},
                                                        {"2bit:threshold=0.25", "exact"},
                                                        {"2bit:threshold=auto", "2bit"},
                                                        {"qsgd", "qsgd"},
                                                        {"terngrad", "terngrad"},
                                                        {"natural", "fp32"},
                                                        {"randomk:ratio=0.1", "randomk"}}) {
    const auto on_host = slots_after_steps(codec, reply, nullptr);
    ASSERT_EQ(on_host.size(), 13U);
    EXPECT_EQ(slots_after_steps(codec, reply, std::make_shared<StreamsDevice>()), on_host) << codec;
  }
}

TEST(DeviceRounds, WaitForTheStreamThatStillWrites) {
  const auto device = std::make_shared<StreamsDevice>();
  run_job({1, 1}, [&](Engine& engine) {
    engine.compression().set(spec("fp16"), "fp16");
    const auto keys = engine.declare(std::vector<KeySpec>{{"w", {1000}}, {"other", {10}}});
    const DeviceNumbers grad(device, std::vector<float>(1000, -1.0F));
    const DeviceNumbers other(device, std::vector<float>(10, 1.0F));
    const std::vector<float> late(1000, 2.0F);
    std::promise<void> gate;
    const auto opened = gate.get_future().share();
    static_cast<compress::HostStream*>(grad.place().stream)->enqueue([=] {
      opened.wait_for(std::chrono::seconds(20));
      std::ranges::copy(late, grad.span().begin());
    });
    const Ticket ticket = engine.push_pull(keys[0], grad.span(), grad.span(), 0, 1, grad.place());
    EXPECT_FALSE(ticket.wait_for(std::chrono::milliseconds(100)));
    // The thread that encodes is not kept by a gradient that is not there yet.
    std::vector<float> on_host(10, 3.0F);
    EXPECT_TRUE(engine.push_pull(keys[1], on_host, on_host, 0).wait_for(std::chrono::seconds(20)));
    gate.set_value();
    ASSERT_TRUE(ticket.wait_for(std::chrono::seconds(20)));
    EXPECT_EQ(grad.values(), late);
  });
}

TEST(DeviceRounds, OnlyPayloadsCross) {
  constexpr std::size_t kElements = 200'000;
  const auto codec = compress::make(spec("2bit:threshold=0.25"));
  const std::uint64_t payload = codec->max_encoded_size(kElements);
  const std::uint64_t reply = codec->max_reply_size(kElements, 1, compress::ReplyKind::kExact);
  const auto device = std::make_shared<StreamsDevice>();
  run_job({1, 1}, [&](Engine& engine) {
    engine.compression().set(codec->spec(), "exact");
    const auto key = engine.declare(std::vector<KeySpec>{{"w", {kElements}}}).front();
    const DeviceNumbers grad(device, random_floats(kElements, 1));
    const std::uint64_t before = device->bytes_to_device();  // the gradient
    for (std::uint64_t step = 1; step <= 3; ++step) {
      engine.push_pull(key, grad.span(), grad.span(), 0, 1, grad.place()).wait();
      const DeviceTraffic traffic = engine.metrics().device_traffic();
      EXPECT_EQ(traffic.bytes_from_devices, step * payload);
      EXPECT_EQ(traffic.bytes_to_devices, step * reply);
      EXPECT_EQ(device->bytes_to_host(), traffic.bytes_from_devices);
      EXPECT_EQ(device->bytes_to_device() - before, traffic.bytes_to_devices);
    }
    const std::size_t allocations = device->allocations();
    for (int step = 0; step < 3; ++step)
      engine.push_pull(key, grad.span(), grad.span(), 0, 1, grad.place()).wait();
    EXPECT_EQ(device->allocations(), allocations) << "a step that allocates";
    EXPECT_LE(device->pinned_allocations(), 4U) << "payload and reply, twice if one is let go late";
  });
}

TEST(DeviceRounds, SlotsAllocateNothingAfterTheFirstStep) {
  const auto device = std::make_shared<StreamsDevice>();
  JobSize size{1, 1};
  size.engine.fusion_bytes = 16384;
  run_job(size, [&](Engine& engine) {
    engine.compression().set(spec("2bit:threshold=auto"), "2bit");
    std::vector<KeySpec> specs;
    std::list<DeviceNumbers> there;
    std::vector<ArrayView> views;
    for (unsigned i = 0; i < 12; ++i) {
      specs.push_back({std::to_string(i), {1 + i * i * i * 40}});
      views.push_back(there.emplace_back(device, random_floats(specs.back().elements(), i)).view());
    }
    engine.slots().bind(engine.declare(specs), views, device);
    std::size_t allocations = 0;
    for (int step = 0; step < 5; ++step) {
      std::uint32_t slot = 0;
      for (const DeviceNumbers& each : there) engine.slots().mark_ready(slot++, each.place().stream);
      ASSERT_TRUE(engine.slots().drain_for(std::chrono::seconds(20)));
      if (step == 1) allocations = device->allocations();  // the second one has the agreed scales
    }
    EXPECT_EQ(device->allocations(), allocations);
  });
}

TEST(DeviceRounds, ACodecWithoutATwinIsNoticedOnce) {
  constexpr std::size_t kElements = 5000;
  const auto device = std::make_shared<StreamsDevice>();
  run_job({1, 1}, [&](Engine& engine) {
    engine.compression().set(spec("randomk:ratio=0.1"), "randomk");
    const auto keys = engine.declare(std::vector<KeySpec>{{"a", {kElements}}, {"b", {kElements}}});
    const DeviceNumbers grad(device, random_floats(kElements, 1));
    for (const KeyId key : {keys[0], keys[1], keys[0]})
      engine.push_pull(key, grad.span(), grad.span(), 0, 1, grad.place()).wait();
    const auto notices = engine.metrics().take_notices();
    ASSERT_EQ(notices.size(), 1U);
    EXPECT_THAT(notices.front(), HasSubstr("codec randomk cannot encode on streams"));
    EXPECT_EQ(engine.metrics().device_traffic().bytes_from_devices, 3 * kElements * sizeof(float));
    EXPECT_EQ(engine.metrics().device_traffic().bytes_to_devices, 3 * kElements * sizeof(float));
  });
}

TEST(DeviceRounds, PushesArePulledAnywhere) {
  const auto device = std::make_shared<StreamsDevice>("bf16");
  for (const std::string codec : {"none", "2bit", "bf16"}) {
    run_job({2, 1}, [&](Engine& engine) {
      engine.compression().set(spec(codec), codec);
      const auto keys = engine.declare(std::vector<KeySpec>{{"host", {3000}}, {"device", {3000}}});
      const std::vector<float> first(3000, 0.5F);
      for (const KeyId key : keys) engine.init(key, first);
      const DeviceNumbers out(device, std::vector<float>(3000));
      engine.pull(keys[1], out.span(), 0, out.place()).wait();
      EXPECT_EQ(out.values(), first) << "the stored value";
      for (unsigned round = 0; round < 2; ++round) {
        auto values = random_floats(3000, 10 * round + engine.rank());
        DeviceNumbers grad(device, values);
        engine.push(keys[0], values, 0);
        engine.push(keys[1], grad.span(), 0, grad.place());
        // Pushes of a key that is in flight are staged; what was pushed may be overwritten at once.
        engine.push(keys[0], values, 0);
        engine.push(keys[1], grad.span(), 0, grad.place());
        std::ranges::fill(values, 99.0F);
        grad.write(values);
        std::vector<float> expected(3000), on_host(3000);
        engine.pull(keys[0], expected, 0).wait();
        engine.pull(keys[1], on_host, 0).wait();
        EXPECT_EQ(on_host, expected) << codec;
        for (const KeyId key : keys) {
          engine.pull(key, out.span(), 0, out.place()).wait();
          EXPECT_EQ(out.values(), expected) << codec << ", key " << key;
        }
      }
    });
  }
}

TEST(DeviceRounds, PushesThatAreStagedTakeTheirMemoryFromAPool) {
  const auto device = std::make_shared<StreamsDevice>();
  run_job({1, 1}, [&](Engine& engine) {
    engine.compression().set(spec("fp16"), "fp16");
    const auto key = engine.declare(std::vector<KeySpec>{{"w", {3000}}}).front();
    const DeviceNumbers grad(device, random_floats(3000, 1)), out(device, std::vector<float>(3000));
    for (int step = 0; step < 12; ++step) {
      // The first waits for a stream that is held, so the others are staged.
      std::promise<void> gate;
      const auto opened = gate.get_future().share();
      static_cast<compress::HostStream*>(grad.place().stream)->enqueue([opened] { opened.wait(); });
      std::vector<BegunPush> pushes;
      for (int i = 0; i < 3; ++i) pushes.push_back(engine.begin_push(key, grad.view(), 0, grad.place()));
      gate.set_value();
      for (const BegunPush& push : pushes) push.taken.wait();
      engine.pull(key, out.view(), 0, out.place()).wait();
    }
    // Two arrays here, residual and answer, staging each way, and two that are staged at once.
    EXPECT_LE(device->allocations(), 8U) << "24 pushes that allocate";
  });
}

TEST(DeviceRounds, ATensorThatMovesTakesItsResidualAlong) {
  const auto device = std::make_shared<StreamsDevice>();
  const Exchange in_turns = [device, step = 0](Engine& engine, KeyId key, std::vector<float>& values,
                                               float scale) mutable {
    step++ % 2 == 0 ? exchange_on(device)(engine, key, values, scale)
                    : exchange_on_host(engine, key, values, scale);
  };
  const auto after_rounds = [](const Exchange& exchange) {
    std::vector<float> last;
    run_job({1, 1}, [&](Engine& engine) {
      engine.compression().set(spec("2bit:threshold=0.5"), "exact");
      const auto key = engine.declare(std::vector<KeySpec>{{"w", {4000}}}).front();
      for (unsigned round = 0; round < 6; ++round) {
        auto values = random_floats(4000, round);
        exchange(engine, key, values, 1);
        last.insert(last.end(), values.begin(), values.end());
      }
    });
    return last;
  };
  EXPECT_EQ(after_rounds(in_turns), after_rounds(exchange_on_host));
}

// What is read, replaced and put back there is what the host would have.
TEST(DeviceRounds, ResidualsAreReadReplacedAndRolledBack) {
  const auto device = std::make_shared<StreamsDevice>();
  for (const auto& [codec, reply] : {std::pair{"2bit:threshold=auto", "exact"}, std::pair{"int8", "int8"}}) {
    const auto states = [&](const Exchange& exchange) {
      std::vector<std::vector<float>> seen;
      run_job({1, 1}, [&](Engine& engine) {
        engine.compression().set(spec(codec), reply);
        engine.residuals().keep_rollback(true);
        const auto key = engine.declare(std::vector<KeySpec>{{"w", {70'000}}}).front();
        const auto round = [&](unsigned seed) {
          auto values = random_floats(70'000, seed);
          exchange(engine, key, values, 1);
          seen.push_back(values);
          seen.push_back(engine.residuals().of(key));
        };
        round(1);
        round(2);
        const auto before = engine.residuals().of(key);
        round(3);
        EXPECT_NE(engine.residuals().of(key), before);
        engine.residuals().roll_back(std::vector{key});
        EXPECT_EQ(engine.residuals().of(key), before);
        round(3);  // as if it had not been: its sum and residual are those of the first time
        EXPECT_EQ(seen[seen.size() - 2], seen[seen.size() - 4]) << codec;
        EXPECT_EQ(seen[seen.size() - 1], seen[seen.size() - 3]) << codec;
        engine.residuals().set(key, random_floats(70'000, 9));
        EXPECT_EQ(engine.residuals().of(key), random_floats(70'000, 9));
        round(4);
      });
      return seen;
    };
    EXPECT_EQ(states(exchange_on(device)), states(exchange_on_host)) << codec;
  }
}

// A library that sums needs ranks that agree on what a round is made of, so one that loads must not fall
// back.
TEST(DeviceRounds, AgreedScalesOutliveAResidualThatOneRankReplaces) {
  const auto device = std::make_shared<StreamsDevice>();
  const auto after = [&](const auto& run, const Exchange& exchange) {
    std::vector<float> last;
    run(JobSize{2, 1}, [&](Engine& engine) {
      engine.compression().set(spec("2bit:threshold=auto"), "exact");
      const auto key = engine.declare(std::vector<KeySpec>{{"w", {5000}}}).front();
      for (unsigned round = 0; round < 3; ++round) {
        auto values = random_floats(5000, 10 * round + engine.rank());
        exchange(engine, key, values, 1);
        if (round == 1 && engine.rank() == 0) engine.residuals().set(key, random_floats(5000, 77));
        if (round == 2 && engine.rank() == 0) last = values;
      }
    });
    return last;
  };
  const auto expected = after(run_job, exchange_on_host);
  EXPECT_EQ(after(run_job, exchange_on(device)), expected);
  EXPECT_EQ(after(run_native, exchange_on(device)), expected);
}

TEST(DeviceRounds, ARoundThatNeedsNoResidualSendsIt) {
  const auto device = std::make_shared<StreamsDevice>();
  run_job({1, 1}, [&](Engine& engine) {
    const auto key = engine.declare(std::vector<KeySpec>{{"w", {3000}}}).front();
    engine.compression().set(spec("2bit:threshold=0.5"), "exact");
    engine.residuals().set(key, random_floats(3000, 5));
    engine.compression().set(spec("none"), "none");
    auto values = random_floats(3000, 1), expected = random_floats(3000, 5);
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = values[i] + expected[i];
    exchange_on(device)(engine, key, values, 1);
    EXPECT_EQ(values, expected);
    EXPECT_THAT(engine.residuals().of(key), testing::IsEmpty());
  });
}

TEST(DeviceRounds, APushedValueIsStillThereAfterAResidualWasReplaced) {
  const auto device = std::make_shared<StreamsDevice>();
  run_job({1, 1}, [&](Engine& engine) {
    engine.compression().set(spec("fp16"), "fp16");
    const auto key = engine.declare(std::vector<KeySpec>{{"w", {100}}}).front();
    const DeviceNumbers grad(device, std::vector<float>(100, 2.0F));
    engine.push(key, grad.span(), 0, grad.place());
    std::vector<float> out(100);
    engine.pull(key, out, 0).wait();
    engine.residuals().set(key, std::vector<float>(100, 0.25F));
    engine.pull(key, grad.span(), 0, grad.place()).wait();
    EXPECT_EQ(grad.values(), std::vector<float>(100, 2.0F));
  });
}

TEST(DeviceRounds, PayloadsWithoutTheirZerosHaveTheSameBits) {
  const auto device = std::make_shared<StreamsDevice>();
  const auto sent = [&](const std::string& codec, const Exchange& exchange, std::vector<float>& last) {
    std::uint64_t bytes = 0;
    run_job({1, 1}, [&](Engine& engine) {
      engine.compression().set(spec(codec), "2bit");
      const auto key = engine.declare(std::vector<KeySpec>{{"w", {200'000}}}).front();
      for (unsigned round = 0; round < 3; ++round) {
        last = random_floats(200'000, round);
        exchange(engine, key, last, 1);
      }
      for (const auto& [peer, counters] : engine.metrics().counters()) bytes += counters.bytes_sent;
    });
    return bytes;
  };
  std::vector<float> plain, there, here;
  const std::uint64_t all = sent("2bit:threshold=1", exchange_on(device), plain);
  const std::uint64_t fewer = sent("2bit:threshold=1,lossless=on", exchange_on(device), there);
  EXPECT_EQ(sent("2bit:threshold=1,lossless=on", exchange_on_host, here), fewer);
  EXPECT_LT(fewer, all / 2);
  EXPECT_EQ(there, plain);
  EXPECT_EQ(here, plain);
}

TEST(DeviceRounds, WeightsOfAnOptimizerComeToTheDevice) {
  const auto device = std::make_shared<StreamsDevice>();
  run_job({2, 1}, [&](Engine& engine) {
    engine.compression().set(spec("2bit:threshold=0.5"), "exact");
    const auto key = engine.declare(std::vector<KeySpec>{{"w", {100}}}).front();
    engine.init(key, std::vector<float>(100, 10.0F));
    engine.set_optimizer("test rescale_grad=1");
    const DeviceNumbers grad(device, std::vector<float>(100, 0.5F));
    engine.push_pull(key, grad.span(), grad.span(), 0, 1, grad.place()).wait();
    EXPECT_EQ(grad.values(), std::vector<float>(100, 11.0F));
  });
}

TEST(DeviceRounds, OfDeltasTheSecondPullBringsTheServersOwnWeight) {
  const auto device = std::make_shared<StreamsDevice>();
  const auto body = [&](Engine& engine) {
    engine.compression().set(spec("none"), "none", "delta:2bit:threshold=0.25");
    const auto key = engine.declare(std::vector<KeySpec>{{"w", {20'000}}}).front();
    engine.init(key, std::vector<float>(20'000));
    engine.set_optimizer("sgd learning_rate=1");
    const DeviceNumbers grad(device, std::vector<float>(20'000, 0.1F)), weight(device, grad.values());
    for (int round = 1; round <= 2; ++round) {
      engine.push(key, grad.span(), 0, grad.place());
      for (const double expected : {-0.3 - 0.25 * (round - 1), -0.3 * round}) {  // the first is told whole
        engine.pull(key, weight.span(), 0, weight.place()).wait();
        EXPECT_NEAR(weight.values().front(), expected, 1e-5);
        EXPECT_NEAR(weight.values().back(), expected, 1e-5);
      }
    }
  };
  run_job({3, 2}, body);
  run_hosts({3, 2}, {"x", "x", "y"}, body);
}

// Whatever the memory is for, the job ends at once with what the device says.
TEST(DeviceRounds, ADeviceWithoutMemoryEndsTheJobAndIsNamed) {
  for (const bool is_staged : {false, true}) {
    const auto device = std::make_shared<StreamsDevice>();
    // Outlives the engine, whose device may still read it when the job has failed.
    const DeviceNumbers grad(device, std::vector<float>(100, 1.0F));
    const auto job = [&](Engine& engine) {
      engine.compression().set(spec("int8"), "int8");
      const auto key = engine.declare(std::vector<KeySpec>{{"w", {100}}}).front();
      std::promise<void> gate;
      const auto opened = gate.get_future().share();
      if (is_staged) {
        engine.push(key, grad.view(), 0, grad.place());
        static_cast<compress::HostStream*>(grad.place().stream)->enqueue([opened] { opened.wait(); });
        engine.begin_push(key, grad.view(), 0, grad.place());  // the next one finds it in flight
      }
      device->fill();
      const auto push = [&] {
        const BegunPush push = engine.begin_push(key, grad.view(), 0, grad.place());
        gate.set_value();
        push.taken.wait();
        push.done.wait();
      };
      EXPECT_THAT(push, testing::ThrowsMessage<std::runtime_error>(HasSubstr("bytes of streams: full")));
    };
    EXPECT_THAT(
        [&] {
          run_job({1, 1}, job);
        },
        testing::ThrowsMessage<transport::TransportError>(HasSubstr("bytes of streams: full")))
        << is_staged;
  }
}

TEST(DeviceRounds, ADeviceThatFailsIsSaidByTheTicket) {
  const auto device = std::make_shared<StreamsDevice>();
  const auto job = [&](Engine& engine) {
    engine.compression().set(spec("fp16"), "fp16");
    const auto key = engine.declare(std::vector<KeySpec>{{"w", {100}}}).front();
    const DeviceNumbers grad(device, std::vector<float>(100, 1.0F));
    engine.push_pull(key, grad.span(), grad.span(), 0, 1, grad.place()).wait();
    device->fail("an illegal memory access was encountered");
    EXPECT_THAT([&] { engine.push_pull(key, grad.span(), grad.span(), 0, 1, grad.place()).wait(); },
                testing::ThrowsMessage<std::runtime_error>(HasSubstr("illegal memory access")));
  };
  EXPECT_THAT(
      [&] {
        run_job({1, 1}, job);
      },
      testing::ThrowsMessage<transport::TransportError>(HasSubstr("illegal memory access")));
}

TEST(DeviceRounds, ACallersThreadKeepsTheDeviceThatItHad) {
  const auto device = std::make_shared<StreamsDevice>();
  run_peers({1}, [&](Engine& engine) {
    StreamsDevice::in_use() = 3;
    const auto keys = engine.declare(std::vector<KeySpec>{{"a", {100}}, {"b", {100}}});
    std::vector<float> values(100, 1.0F);
    DeviceNumbers there(device, values), slot(device, values);
    engine.push_pull(keys[0], there.span(), there.span(), 0, 1, there.place()).wait();
    engine.push(keys[0], there.span(), 0, there.place());
    engine.pull(keys[0], there.span(), 0, there.place()).wait();
    engine.slots().bind({&keys[1], 1}, std::vector<ArrayView>{slot.span()}, device);
    engine.slots().mark_ready(0, slot.place().stream);
    EXPECT_TRUE(engine.slots().drain_for(std::chrono::seconds(20)));
    EXPECT_EQ(StreamsDevice::in_use(), 3);
    engine.close();
    EXPECT_EQ(StreamsDevice::in_use(), 3);
  });
}

}  // namespace
}  // namespace gradwire::kvstore
