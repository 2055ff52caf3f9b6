// lossless=on: what stores send is shorter, and what workers get has the same bits.
#include "kvstore/wire/lossless_frames.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/kvstore/sums.h"

namespace gradwire::kvstore {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using transport::Buffer;

using RunJob = void (*)(const JobSize&, const std::function<void(Engine&)>&);

struct Outcome {
  std::vector<float> received;   ///< by rank 0
  std::uint64_t sent_bytes = 0;  ///< by rank 0, after the first round, which may be dense
  std::uint64_t received_bytes = 0;
};

constexpr std::size_t kElements = 500'000;  // several partitions

void add_bytes(Engine& engine, Outcome& outcome) {
  engine.barrier();  // all answers are counted where they were sent
  for (const auto& peer : engine.metrics().counters()) {
    outcome.sent_bytes += peer.counters.bytes_sent;
    outcome.received_bytes += peer.counters.bytes_received;
  }
}

/// Four rounds of gradients of which one in a hundred elements reaches the threshold, and a small key.
Outcome outcome_of(const std::string& codec, const std::string& reply, RunJob run) {
  Outcome result;
  run({2, 2}, [&](Engine& engine) {
    engine.compression().set(spec(codec), reply);
    const std::vector<KeySpec> specs = {{"large", {kElements}}, {"small", {100}}};
    const auto keys = engine.declare(specs);
    Outcome first;
    Outcome all;
    for (unsigned step = 0; step < 4; ++step) {
      for (std::size_t k = 0; k < keys.size(); ++k) {
        auto values = random_floats(specs[k].elements(), 100 * step + engine.rank());
        for (std::size_t i = 0; i < values.size(); ++i) values[i] *= i % 97 == 0 ? 1.0F : 0.001F;
        engine.push_pull(keys[k], values, values, 0).wait();
        all.received.insert(all.received.end(), values.begin(), values.end());
      }
      if (step == 0) add_bytes(engine, first);
    }
    add_bytes(engine, all);
    if (engine.rank() == 0)
      result = {std::move(all.received), all.sent_bytes - first.sent_bytes,
                all.received_bytes - first.received_bytes};
  });
  return result;
}

TEST(Shortened, ChangesNoBitAndSavesBytes) {
  for (const RunJob run : {RunJob(run_job), RunJob(run_peers)}) {
    for (const std::string codec : {"2bit:threshold=0.25", "2bit:threshold=auto,scale=3"}) {
      const Outcome plain = outcome_of(codec, "2bit", run);
      const Outcome shorter = outcome_of(codec + ",lossless=on", "2bit", run);
      EXPECT_EQ(shorter.received, plain.received) << codec;
      EXPECT_LT(shorter.sent_bytes, plain.sent_bytes / 2) << codec;
      EXPECT_LT(shorter.received_bytes, plain.received_bytes / 2) << codec;
    }
    EXPECT_EQ(outcome_of("2bit:threshold=0.25,lossless=on", "exact", run).received,
              outcome_of("2bit:threshold=0.25", "exact", run).received);
  }
}

TEST(Shortened, ALibraryThatSumsGetsPayloadsAsTheyAre) {
  EXPECT_EQ(outcome_of("2bit:threshold=0.25,lossless=on", "exact", run_native).received,
            outcome_of("2bit:threshold=0.25", "exact", run_native).received);
}

TEST(Shortened, RanksThatDifferAreTold) {
  EXPECT_THAT(
      [] {
        run_job({2, 1}, [](Engine& engine) {
          engine.compression().set(spec(engine.rank() == 0 ? "2bit" : "2bit:lossless=on"), "exact");
        });
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("lossless=on")));
}

TEST(Shortened, AFrameThatLiesIsRefused) {
  transport::BufferPool pool;
  const auto frame = [](const char* codec_text, std::uint32_t flags, std::size_t bytes) {
    const auto codec = compress::make(spec(codec_text));
    transport::Frame made;
    made.header.flags = flags;
    made.header.codec = static_cast<std::uint8_t>(codec->wire_id());
    made.header.codec_parameters = codec->wire_parameters();
    made.header.count = 1'000'000;
    made.payload = Buffer::allocate(bytes);
    std::ranges::fill(made.payload.bytes(), std::byte{0});
    return made;
  };
  const auto refused = [&](transport::Frame made, const char* why) {
    EXPECT_THAT([&] { restore(made, pool); }, ThrowsMessage<compress::DecodeError>(HasSubstr(why)));
  };
  const std::uint32_t shortened = transport::kFlagLossless;
  refused(frame("int8", shortened, 100), "holds no 2-bit codes");
  refused(frame("2bit", shortened | transport::kFlagSegments, 100), "several tensors");
  refused(frame("2bit", shortened, 63), "63 bytes cannot hold 1000000 elements");
  refused(frame("2bit:threshold=auto", shortened, 300), "cannot hold");
  refused(frame("2bit", shortened, 64), "ends within a unit");
  transport::Frame plain = frame("2bit", 0, 5);
  restore(plain, pool);
  EXPECT_EQ(plain.payload.size_bytes(), 5U);
}

}  // namespace
}  // namespace gradwire::kvstore
