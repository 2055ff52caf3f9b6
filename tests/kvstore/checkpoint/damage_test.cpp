// Payloads that arrive damaged are sent again, in both directions, and nobody's sum changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <map>
#include <mutex>
#include <tuple>

#include "tests/kvstore/job.h"

namespace gradwire::kvstore {
namespace {

using testing::HasSubstr;
using transport::Frame;
using transport::FrameHeader;
using transport::Messenger;
using transport::Node;
using transport::PeerCounters;
using transport::Role;
using transport::Sink;
using transport::World;

/// How many of the first arrivals of each payload are damaged.
using Damages = int;
constexpr Damages kNothing = 0;
constexpr Damages kAll = std::numeric_limits<int>::max();

/// A Messenger over a line that flips a bit in payloads of 1000 bytes and more.
class NoisyLine final : public Messenger, private Sink {
 public:
  NoisyLine(Line line, Damages what, std::atomic<int>& damaged)
      : line_(std::move(line)), what_(what), damaged_(damaged) {}

  Node self() const override { return line_->self(); }
  World world() const override { return line_->world(); }
  void attach(Sink& sink) override {
    sink_ = &sink;
    line_->attach(*this);
  }
  void detach() override { line_->detach(); }
  void send(Node to, std::vector<Frame> frames) override { line_->send(to, std::move(frames)); }
  std::vector<std::string> exchange(std::string_view name, std::string_view blob,
                                    std::chrono::milliseconds timeout) override {
    return line_->exchange(name, blob, timeout);
  }
  std::uint64_t exchanges() const override { return line_->exchanges(); }
  void fail(const std::string& text) override { line_->fail(text); }
  void note_error(const std::string& error) override { line_->note_error(error); }
  void leave(std::chrono::milliseconds timeout) override { line_->leave(timeout); }
  std::vector<PeerCounters> counters() const override { return line_->counters(); }

 private:
  void on_frames(Node from, std::vector<Frame> frames) override {
    for (Frame& frame : frames) {
      frame.payload.seal();
      if (frame.payload.size_bytes() >= 1000 && is_hit(from, frame.header)) {
        frame.payload.bytes()[frame.payload.size_bytes() / 2] ^= std::byte{4};
        ++damaged_;
      }
    }
    sink_->on_frames(from, std::move(frames));
  }
  void on_failure(const std::string& text) override { sink_->on_failure(text); }
  void on_goodbye(Node peer, const std::string& error) override { sink_->on_goodbye(peer, error); }

  bool is_hit(Node from, const FrameHeader& header) {
    return seen_[{from, header.offset, header.step}]++ < what_;
  }

  Line line_;
  Damages what_;
  std::atomic<int>& damaged_;
  std::map<std::tuple<Node, std::uint64_t, std::uint64_t>, int> seen_;
  Sink* sink_ = nullptr;
};

constexpr std::size_t kElements = 300'000;  // several partitions on each server
constexpr int kSteps = 3;
using Sums = std::vector<std::vector<float>>;

/// What one worker gives and gets; it outlives the Engine, which may still read it after a failure.
struct Arrays {
  std::vector<float> grad = std::vector<float>(kElements);
  Sums sums{kSteps, std::vector<float>(kElements)};
};

void push_pulls(Engine& engine, const std::string& codec, Arrays& arrays) {
  engine.compression().set(compress::parse_spec(codec), codec == "none" ? "fp32" : "exact");
  const KeySpec key{"a", {kElements}};
  const auto keys = engine.declare({&key, 1});
  for (std::size_t i = 0; i < kElements; ++i)
    arrays.grad[i] = 0.1F * static_cast<float>(i % (7 + engine.rank()));
  for (auto& sum : arrays.sums) engine.push_pull(keys[0], arrays.grad, sum, 0).wait();
}

struct Outcome {
  std::vector<Sums> by_rank;
  int damaged = 0;
};

/// Runs two workers and two servers; the lines to one role's nodes are noisy.
Outcome run(const std::string& codec, Role role, Damages what) {
  std::vector<Arrays> arrays(2);
  std::atomic<int> damaged = 0;
  run_wired(
      {2, 2}, [&](Engine& engine) { push_pulls(engine, codec, arrays[engine.rank()]); },
      [&](Line line) -> Line {
        if (what == kNothing || line->self().role != role) return line;
        return std::make_unique<NoisyLine>(std::move(line), what, damaged);
      });
  return {{arrays[0].sums, arrays[1].sums}, damaged};
}

class Damage : public ::testing::TestWithParam<std::tuple<std::string, Role, Damages>> {};

TEST_P(Damage, ChangesNoSum) {
  const auto& [codec, role, first_arrivals] = GetParam();
  const Outcome undisturbed = run(codec, role, kNothing);
  const Outcome disturbed = run(codec, role, first_arrivals);
  EXPECT_GE(disturbed.damaged,
            kSteps * 2 * 2 * first_arrivals);  // every worker's payload of every step, on each server
  EXPECT_EQ(disturbed.by_rank, undisturbed.by_rank);
}

INSTANTIATE_TEST_SUITE_P(BothWays, Damage,
                         ::testing::Combine(::testing::Values("none", "2bit:threshold=0.5"),
                                            ::testing::Values(Role::kServer, Role::kWorker),
                                            ::testing::Values(1, 8)));

TEST(DamageWithoutEnd, IsNamedWhereItIsTheServersToNotice) {
  EXPECT_THAT([] { run("none", Role::kServer, kAll); },
              testing::ThrowsMessage<transport::TransportError>(HasSubstr("the payload arrived damaged")));
}

TEST(DamageWithoutEnd, IsNamedWhereItIsTheWorkersToNotice) {
  EXPECT_THAT([] { run("none", Role::kWorker, kAll); },
              testing::ThrowsMessage<transport::TransportError>(HasSubstr("for key 'a' arrive damaged")));
}

}  // namespace
}  // namespace gradwire::kvstore
