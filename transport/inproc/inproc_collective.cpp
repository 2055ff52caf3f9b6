#include "transport/inproc/inproc_collective.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "transport/half_sums.h"
#include "transport/messenger.h"

namespace gradwire::transport {
namespace {

const std::uint16_t* halves(std::span<const std::byte> bytes) {
  return reinterpret_cast<const std::uint16_t*>(bytes.data());
}
std::uint16_t* halves(std::span<std::byte> bytes) { return reinterpret_cast<std::uint16_t*>(bytes.data()); }

template <typename T>
void add(std::span<std::byte> to, std::span<const std::byte> from) {
  for (std::size_t i = 0; i < to.size(); i += sizeof(T)) {
    T a, b;
    // By memcpy: callers' bytes need not be aligned to T.
    std::memcpy(&a, &to[i], sizeof(T));
    std::memcpy(&b, &from[i], sizeof(T));
    a = static_cast<T>(a + b);
    std::memcpy(&to[i], &a, sizeof(T));
  }
}

void add(std::span<std::byte> to, std::span<const std::byte> from, ElementType type) {
  switch (type) {
    case ElementType::kFloat64:
      return add<double>(to, from);
    case ElementType::kFloat32:
      return add<float>(to, from);
    case ElementType::kInt32:  // unsigned: integers wrap
      return add<std::uint32_t>(to, from);
    case ElementType::kInt16:
      return add<std::uint16_t>(to, from);
    case ElementType::kInt8:
      return add<std::uint8_t>(to, from);
    case ElementType::kFloat16:
      return add_float16(halves(from), halves(to), to.size() / sizeof(std::uint16_t));
    case ElementType::kBfloat16:
      return add_bfloat16(halves(from), halves(to), to.size() / sizeof(std::uint16_t));
  }
}

}  // namespace

struct InprocCollectives::Hub {
  struct Part {
    Buffer values;
    std::optional<ElementType> type;  // of a sum; nothing: a gathering
    Collective::Done done;
  };
  struct Call {
    std::map<std::uint32_t, Part> parts;  // by rank
  };

  explicit Hub(std::uint32_t ranks_) : ranks(ranks_) {}

  const std::uint32_t ranks;
  std::mutex mutex;  // guards what follows
  std::map<std::uint64_t, Call> calls;
  std::string failure;

  void take(std::uint64_t number, std::uint32_t rank, Part part) {
    std::map<std::uint32_t, Part> whole;
    {
      const std::lock_guard lock(mutex);
      if (failure.empty()) {
        Call& call = calls[number];
        call.parts.emplace(rank, std::move(part));
        // The last rank to come does the sum, on its thread. A rank that came before does not wait.
        if (call.parts.size() < ranks) return;
        whole = std::move(call.parts);
        // Before the lock is given up: fail() must not find parts that finish() is about to end.
        calls.erase(number);
      }
    }
    // Read without the lock: it is set once, and was seen to be set above.
    if (whole.empty())
      return part.done(std::move(part.values), std::make_exception_ptr(TransportError(failure)));
    finish(whole);
  }

  void finish(std::map<std::uint32_t, Part>& whole) {
    const Part& first = whole.at(0);
    for (const auto& [rank, part] : whole) {
      if (part.type == first.type && part.values.size_bytes() == first.values.size_bytes()) continue;
      return fail("rank " + std::to_string(rank) + " came with another type or length than rank 0",
                  std::move(whole));
    }
    std::vector<std::byte> result;
    // In rank order, so that a sum of floats has the same bits in every run.
    for (const auto& [rank, part] : whole) {
      const auto bytes = part.values.bytes();
      if (!part.type || rank == 0) {
        result.insert(result.end(), bytes.begin(), bytes.end());
      } else {
        add(std::span(result), bytes, *part.type);
      }
    }
    for (auto& [rank, part] : whole) {
      Buffer values = part.type ? std::move(part.values) : Buffer::allocate(result.size());
      // Not by memcpy: of an empty array, both pointers are null.
      std::ranges::copy(result, values.bytes().begin());
      part.done(std::move(values), nullptr);
    }
  }

  void fail(const std::string& text, std::map<std::uint32_t, Part> parts = {}) {
    std::map<std::uint64_t, Call> waiting;
    {
      const std::lock_guard lock(mutex);
      if (failure.empty()) failure = text;
      waiting.swap(calls);
    }
    // Under a number that no call has: the parts of the call that failed are ended with the others.
    waiting[~std::uint64_t{0}].parts.merge(parts);
    const auto error = std::make_exception_ptr(TransportError(text));
    for (auto& [number, call] : waiting) {
      for (auto& [rank, part] : call.parts) part.done(std::move(part.values), error);
    }
  }
};

class InprocCollectives::OfRank final : public Collective {
 public:
  OfRank(std::shared_ptr<Hub> hub, std::uint32_t rank) : hub_(std::move(hub)), rank_(rank) {}
  ~OfRank() override {
    bool under_way = false;
    {
      const std::lock_guard lock(hub_->mutex);
      under_way = !hub_->calls.empty();
    }
    // Without the lock, which fail() takes.
    if (under_way) hub_->fail("rank " + std::to_string(rank_) + " left while sums were under way");
  }

  std::string_view name() const noexcept override { return "inproc"; }
  std::uint32_t rank() const noexcept override { return rank_; }
  std::uint32_t size() const noexcept override { return hub_->ranks; }
  void all_reduce(Buffer values, ElementType type, Done done) override {
    hub_->take(count_++, rank_, {std::move(values), type, std::move(done)});
  }
  void all_gather(Buffer block, Done done) override {
    hub_->take(count_++, rank_, {std::move(block), std::nullopt, std::move(done)});
  }

 private:
  const std::shared_ptr<Hub> hub_;
  const std::uint32_t rank_;
  std::uint64_t count_ = 0;
};

InprocCollectives::InprocCollectives(std::uint32_t ranks) : hub_(std::make_shared<Hub>(ranks)) {}

std::unique_ptr<Collective> InprocCollectives::connect(std::uint32_t rank) {
  if (rank >= hub_->ranks)
    throw std::invalid_argument("inproc: rank " + std::to_string(rank) + " of " +
                                std::to_string(hub_->ranks));
  return std::make_unique<OfRank>(hub_, rank);
}

}  // namespace gradwire::transport
