// What things cost over MPI: prints, judges nothing. Not among the tests that run by themselves:
//   mpirun --bind-to none -np 2 gradwire_mpi_tests --gtest_also_run_disabled_tests
//   --gtest_filter='*MpiCosts*'
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <thread>

#include "tests/transport/frames.h"
#include "tests/transport/mpi_ranks/ranks.h"

namespace gradwire::transport {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

double seconds_of(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Answers every frame with one as long.
class Echo final : public Sink {
 public:
  explicit Echo(Messenger& messenger) : messenger_(messenger) {}
  void on_frames(Node from, std::vector<Frame> frames) override {
    for (Frame& frame : frames) frame.header.kind = Kind::kReply;
    messenger_.send(from, std::move(frames));
  }
  void on_failure(const std::string& text) override { std::puts(text.c_str()); }
  void on_goodbye(Node, const std::string&) override {}

 private:
  Messenger& messenger_;
};

class Count final : public Sink {
 public:
  void on_frames(Node, std::vector<Frame> frames) override {
    count_ += frames.size();
    count_.notify_all();
  }
  void on_failure(const std::string& text) override { std::puts(text.c_str()); }
  void on_goodbye(Node, const std::string&) override {}
  void await(std::size_t count) {
    for (std::size_t now = count_; now < count; now = count_) count_.wait(now);
  }

 private:
  std::atomic<std::size_t> count_{0};
};

struct Cost {
  double median_seconds = 0;
  double cpu_seconds = 0;  // of this rank, per round
};

/// Rounds of: every worker sends these frames to every other rank's server, and waits for the answers.
Cost measure(Rank& rank, int rounds, Clock::duration gap,
             const std::function<std::vector<Frame>()>& frames_of) {
  Echo echo(rank.server());
  Count count;
  rank.server().attach(echo);
  rank.worker().attach(count);
  rank.meet();
  std::vector<double> times;
  std::size_t expected = 0;
  double cpu = 0;
  for (int round = 0; round < rounds; ++round) {
    std::this_thread::sleep_for(gap);
    const double cpu_before = cpu_seconds();
    const auto began = Clock::now();
    for (std::uint32_t hop = 1; hop < rank.size(); ++hop) {
      auto frames = frames_of();
      expected += frames.size();
      rank.worker().send({Role::kServer, (rank.rank() + hop) % rank.size()}, std::move(frames));
    }
    count.await(expected);
    times.push_back(seconds_of(Clock::now() - began));
    cpu += cpu_seconds() - cpu_before;
  }
  rank.meet();
  rank.worker().detach();
  rank.server().detach();
  std::ranges::nth_element(times, times.begin() + rounds / 2);
  return {times[static_cast<std::size_t>(rounds) / 2], cpu / rounds};
}

void print(Rank& rank, const char* what, const Cost& cost) {
  if (rank.rank() == 0)
    std::printf("%-44s %10.1f us  cpu %10.1f us\n", what, cost.median_seconds * 1e6, cost.cpu_seconds * 1e6);
}

std::vector<Frame> many(std::size_t count, std::size_t size_bytes) {
  std::vector<Frame> frames;
  for (std::size_t i = 0; i < count; ++i) {
    frames.emplace_back().header.kind = Kind::kPush;
    frames.back().payload = Buffer::allocate(size_bytes);
  }
  return frames;
}

TEST(MpiCosts, DISABLED_OfFrames) {
  Rank rank;
  const std::vector<std::byte> bytes(std::size_t{8} << 20);
  const auto lent = [&](std::size_t size_bytes) {
    std::vector<Frame> frames(1);
    frames[0].header.kind = Kind::kPush;
    frames[0].payload = Buffer::borrow(std::span(bytes).first(size_bytes));
    return frames;
  };
  print(rank, "a frame of 100 bytes and back", measure(rank, 1000, 0s, [&] { return lent(100); }));
  print(rank, "the same after 1 ms of silence", measure(rank, 300, 1ms, [&] { return lent(100); }));
  print(rank, "the same after 20 ms of silence", measure(rank, 100, 20ms, [&] { return lent(100); }));
  for (const std::size_t size : {2048, 4096, 4097, 8192, 16384, 65536})
    print(rank, ("a frame of " + std::to_string(size)).c_str(),
          measure(rank, 500, 0s, [&] { return lent(size); }));
  for (const std::size_t size : {512, 1024, 2048, 4096, 4097, 8192, 16384})
    print(rank, ("100 fused frames of " + std::to_string(size)).c_str(),
          measure(rank, 200, 0s, [&] { return many(100, size); }));
  print(rank, "a frame of 8 MiB and back", measure(rank, 40, 0s, [&] { return lent(bytes.size()); }));
}

TEST(MpiCosts, DISABLED_OfDoingNothing) {
  Rank rank;
  rank.meet();
  std::this_thread::sleep_for(1s);
  const double before = cpu_seconds();
  std::this_thread::sleep_for(3s);
  print(rank, "a second of silence", {1.0, (cpu_seconds() - before) / 3});
  rank.meet();
}

TEST(MpiCosts, DISABLED_OfSums) {
  MpiNative native = connect_mpi_native(mpi_options());
  const auto measure_sums = [&](const char* what, int rounds, int sums, std::size_t bytes, ElementType type) {
    std::vector<double> times;
    double cpu = 0;
    for (int round = 0; round < rounds; ++round) {
      native.messenger->exchange("round", "", kPatience);
      const double cpu_before = cpu_seconds();
      const auto began = Clock::now();
      std::atomic<int> left{sums};
      for (int i = 0; i < sums; ++i) {
        Buffer values = Buffer::allocate(bytes);
        std::ranges::fill(values.bytes(), std::byte{0});
        native.collective->all_reduce(std::move(values), type, [&](Buffer, const std::exception_ptr&) {
          --left;
          left.notify_all();
        });
      }
      for (int now = left; now > 0; now = left) left.wait(now);
      times.push_back(seconds_of(Clock::now() - began));
      cpu += cpu_seconds() - cpu_before;
    }
    std::ranges::sort(times);
    if (native.collective->rank() == 0)
      std::printf("%-44s %10.1f us  cpu %10.1f us\n", what, times[times.size() / 2] * 1e6,
                  cpu / rounds * 1e6);
  };
  measure_sums("1 sum of 1 KiB", 300, 1, 1024, ElementType::kFloat32);
  measure_sums("1000 sums of 1 KiB", 10, 1000, 1024, ElementType::kFloat32);
  measure_sums("1 sum of 32 MiB fp32", 10, 1, std::size_t{32} << 20, ElementType::kFloat32);
  measure_sums("1 sum of 32 MiB fp16", 10, 1, std::size_t{32} << 20, ElementType::kFloat16);
  measure_sums("8 sums of 4 MiB fp32", 10, 8, std::size_t{4} << 20, ElementType::kFloat32);
}

}  // namespace
}  // namespace gradwire::transport
