// NCCL among threads of one process, without a GPU: what NcclSums asks of a port, done by InprocCollectives.
// It can be told to be late, to stop and to fail, as NCCL may.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/inproc/inproc_collective.h"
#include "transport/messenger.h"
#include "transport/nccl/nccl_port.h"

namespace gradwire::transport {

/// What a test sees and steers; outlives the port.
struct NcclMemory {
  std::string version = "2.32.3";
  std::string device = "GPU-0";
  std::atomic<bool> joins{true};   ///< else it is never ready
  std::atomic<bool> sums{true};    ///< else nothing is ever done
  std::atomic<bool> fails{false};  ///< else the communicator is well
  std::atomic<bool> hangs_in_abort{false};
  std::atomic<int> begun{0};
  std::atomic<int> slots{0};
  std::atomic<int> under_way{0};  ///< begun, and not seen to be done
  std::atomic<int> freed_under_way{0};
  std::atomic<int> aborted{0};
  std::atomic<int> ended{0};
};

class NcclMemoryPort final : public NcclPort {
 public:
  NcclMemoryPort(InprocCollectives& job, std::shared_ptr<NcclMemory> memory)
      : job_(job), memory_(std::move(memory)) {}

  std::string version() const override { return memory_->version; }
  std::string device() const override { return memory_->device; }
  Id make_id() override { return {std::byte{42}}; }

  void begin_join(const Id& id, std::uint32_t rank, std::uint32_t) override {
    if (id != make_id()) throw TransportError("ncclCommInitRankConfig: not the id of rank 0");
    rank_ = rank;
    collective_ = job_.connect(rank);
    not_yet_ = 2;
  }

  bool is_ready() override {
    if (memory_->fails) throw TransportError("ncclCommGetAsyncError: remote process exited");
    return memory_->joins && not_yet_-- <= 0;
  }

  std::unique_ptr<Slot> make_slot(std::size_t size_bytes) override {
    ++memory_->slots;
    return std::make_unique<Memory>(size_bytes, memory_);
  }

  void begin_all_reduce(Slot& slot, std::size_t elements, ElementType type) override {
    if (type == ElementType::kInt16) throw TransportError("ncclAllReduce: there are no 16-bit integers");
    begin(slot, 0, elements * bytes_of(type), type);
  }
  void begin_all_gather(Slot& slot, std::size_t block_bytes) override {
    begin(slot, rank_ * block_bytes, block_bytes, std::nullopt);
  }

  void fetch(Slot& slot, std::size_t size_bytes) override { static_cast<Memory&>(slot).fetched = size_bytes; }

  bool is_done(Slot& slot) override {
    auto& memory = static_cast<Memory&>(slot);
    if (!memory_->sums || !memory.result->is_there) return false;
    const auto result = std::as_const(memory.result->values).bytes();
    if (result.size() != memory.fetched) throw TransportError("fetch: another size than that of the result");
    std::memcpy(memory.values.data(), result.data(), result.size());
    --memory_->under_way;
    return true;
  }

  void begin_end() override { not_yet_ = 2; }
  void end() override {
    ++memory_->ended;
    collective_.reset();
  }
  void abort() noexcept override {
    ++memory_->aborted;
    while (memory_->hangs_in_abort) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    collective_.reset();
  }

 private:
  struct Result {
    Buffer values;
    std::atomic<bool> is_there{false};
  };
  struct Memory final : Slot {
    Memory(std::size_t size_bytes, std::shared_ptr<NcclMemory> of_all)
        : values(size_bytes), seen(std::move(of_all)) {}
    ~Memory() override {  // as cudaFree, which waits for what the device does
      if (seen->under_way > 0 && seen->aborted == 0) ++seen->freed_under_way;
    }
    std::span<std::byte> bytes() override { return values; }

    std::vector<std::byte> values;
    const std::shared_ptr<NcclMemory> seen;
    std::shared_ptr<Result> result;  // owners: this and the call under way
    std::size_t fetched = 0;
  };

  void begin(Slot& slot, std::size_t from, std::size_t size_bytes, std::optional<ElementType> type) {
    ++memory_->begun;
    ++memory_->under_way;
    auto& memory = static_cast<Memory&>(slot);
    memory.result = std::make_shared<Result>();
    Buffer given = Buffer::allocate(size_bytes);
    std::memcpy(given.bytes().data(), memory.values.data() + from, size_bytes);
    const auto done = [result = memory.result](Buffer values, const std::exception_ptr& error) {
      result->values = std::move(values);
      result->is_there = !error;
    };
    type ? collective_->all_reduce(std::move(given), *type, done)
         : collective_->all_gather(std::move(given), done);
    not_yet_ = 1;
  }

  InprocCollectives& job_;
  const std::shared_ptr<NcclMemory> memory_;  // owners: this and the test
  std::uint32_t rank_ = 0;
  std::unique_ptr<Collective> collective_;
  int not_yet_ = 0;
};

}  // namespace gradwire::transport
