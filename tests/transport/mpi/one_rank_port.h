// MPI of a job of one rank, without MPI: operations end at the next poll(), or never, and may block.
#pragma once

#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "transport/mpi/mpi_api.h"

namespace gradwire::transport {

class OneRankPort final : public MpiApi {
 public:
  /// What a test does while an operation is being started, on the thread that starts it; by default nothing.
  struct Hooks {
    std::function<void()> on_all_reduce, on_barrier;
    std::function<void()> on_destroyed;
    bool gathers_end = true;  ///< else they go on after abandon(), until end_gather()
  };

  explicit OneRankPort(Hooks hooks) : hooks_(std::move(hooks)) {}
  ~OneRankPort() override { call(hooks_.on_destroyed); }

  std::string version() const override { return "no MPI"; }
  std::string initialise() override { return "MPI_THREAD_MULTIPLE"; }
  std::uint32_t rank() const override { return 0; }
  std::uint32_t size() const override { return 1; }
  void join(Done done) override { ended_.push_back(std::move(done)); }

  // There is no other rank to send to or to receive from.
  void send(std::uint32_t, Tag, std::span<const std::byte>, Done) override {}
  void send_confirmed(std::uint32_t, Tag, std::span<const std::byte>, Done) override {}
  void receive(std::uint32_t, Tag, std::span<std::byte>, Done) override {}
  std::optional<Probed> probe() override { return std::nullopt; }
  void receive_probed(std::span<std::byte>, Done) override {}

  void all_reduce(std::span<std::byte>, ElementType, Done done) override {
    call(hooks_.on_all_reduce);
    ended_.push_back(std::move(done));
  }
  void all_gather(std::span<const std::byte> block, std::byte* all, std::size_t, Done done) override {
    gather_ = [block, all, done = std::move(done)] {
      std::memcpy(all, block.data(), block.size());
      done();
    };
    if (hooks_.gathers_end) ended_.push_back(std::exchange(gather_, nullptr));
  }
  /// As where somebody else calls MPI. Requires a gather that has not ended.
  void end_gather() { std::exchange(gather_, nullptr)(); }
  void barrier(Done done) override {
    call(hooks_.on_barrier);
    ended_.push_back(std::move(done));
  }

  std::size_t poll() override {
    const std::vector<Done> ended = std::exchange(ended_, {});
    for (const Done& done : ended) done();
    return ended.size();
  }
  std::size_t under_way() const override { return ended_.size(); }
  void finish() override {}
  void abandon() noexcept override { ended_.clear(); }

 private:
  static void call(const std::function<void()>& hook) {
    if (hook) hook();
  }

  const Hooks hooks_;
  std::vector<Done> ended_;
  Done gather_;  // that has not ended
};

}  // namespace gradwire::transport
