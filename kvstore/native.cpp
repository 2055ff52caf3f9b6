#include "kvstore/native.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include "compress/codecs.h"
#include "compress/dense_scalar.h"
#include "kvstore/aggregator.h"
#include "kvstore/loop.h"

namespace gradwire::kvstore {
namespace {

using compress::WireId;
using transport::Buffer;
using transport::ElementType;
using transport::Frame;
using transport::FrameHeader;
using transport::Kind;
using transport::Node;
using transport::Role;

constexpr Node kItself{Role::kServer, 0};
constexpr auto kTick = std::chrono::seconds(1);

/// How a library sums a codec's payloads; nothing: it cannot.
std::optional<ElementType> summable(std::uint8_t codec) {
  switch (static_cast<WireId>(codec)) {
    case WireId::kNone:
      return ElementType::kFloat32;
    case WireId::kFp16:
      return ElementType::kFloat16;
    case WireId::kBf16:
      return ElementType::kBfloat16;
    default:
      return std::nullopt;
  }
}

std::uint32_t bits_of(ElementType type, float value) {
  if (type == ElementType::kFloat32) return std::bit_cast<std::uint32_t>(value);
  return type == ElementType::kFloat16 ? compress::dense::f16_from_float(value)
                                       : compress::dense::bf16_from_float(value);
}

/// What must be equal for sums to make sense; flags, priority and sender may differ.
FrameHeader identity_of(FrameHeader header) {
  header.flags = 0;
  header.priority = 0;
  header.sender = {};
  header.epoch = 0;
  return header;
}

std::string describe(const FrameHeader& header) {
  return fmt::format("key {} offset {} step {} (codec {}, {} elements)", header.key, header.offset,
                     header.step, header.codec, header.count);
}

/// Elements that ride behind the payload of a sum: 32 that spell a hash of what is summed, each 0 or 1, so
/// that a sum that is neither 0 nor the number of ranks tells every rank that they differ; and one for a met
/// NaN.
constexpr std::size_t kHashElements = 32;
constexpr std::size_t kTailElements = kHashElements + 1;

std::uint32_t hash_of(const FrameHeader& header) {
  std::uint64_t mix = 0;
  for (const std::uint64_t value : {header.key, header.offset, header.step, header.count,
                                    std::uint64_t{header.codec} << 8 | header.reply}) {
    mix = (mix ^ value) * 0x9E3779B97F4A7C15U;
    mix ^= mix >> 29;
  }
  return static_cast<std::uint32_t>(mix >> 32);
}

void write_element(std::byte* at, std::size_t bytes, std::uint32_t bits) { std::memcpy(at, &bits, bytes); }

/// Payload and tail, in memory that the library may sum in.
Buffer with_tail(const Frame& frame, ElementType type, transport::BufferPool& pool) {
  const std::size_t width = transport::bytes_of(type);
  const std::size_t payload = frame.payload.size_bytes();
  Buffer values = pool.take(payload + kTailElements * width);
  values.truncate(payload + kTailElements * width);
  std::memcpy(values.bytes().data(), frame.payload.bytes().data(), payload);
  std::byte* tail = values.bytes().data() + payload;
  const std::uint32_t hash = hash_of(frame.header);
  for (std::size_t i = 0; i < kHashElements; ++i, tail += width)
    write_element(tail, width, bits_of(type, static_cast<float>(hash >> i & 1U)));
  const bool nonfinite = (frame.header.flags & transport::kFlagNonfinite) != 0;
  write_element(tail, width, bits_of(type, nonfinite ? 1.0F : 0.0F));
  return values;
}

struct Tail {
  bool same = true;
  bool nonfinite = false;
};

Tail read_tail(std::span<const std::byte> tail, ElementType type, std::uint32_t hash, std::uint32_t ranks) {
  const std::size_t width = transport::bytes_of(type);
  const auto element = [&](std::size_t i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, tail.data() + i * width, width);
    return bits;
  };
  Tail read;
  for (std::size_t i = 0; i < kHashElements; ++i) {
    const float set = static_cast<float>(hash >> i & 1U);
    read.same = read.same && element(i) == bits_of(type, set * static_cast<float>(ranks));
  }
  read.nonfinite = element(kHashElements) != 0;
  return read;
}

class Native final : public transport::Messenger {
 public:
  Native(std::unique_ptr<transport::Messenger> control, std::unique_ptr<transport::Collective> collective)
      : control_(std::move(control)),
        rank_(control_->self().rank),
        aggregator_(control_->world().workers),
        collective_(std::move(collective)),
        thread_([this] {
          loop_->run(
              kTick, [] {}, [] {});
        }) {}

  ~Native() override {
    detach();
    loop_->stop();
    thread_.join();  // nobody asks the library for more; what is under way fails, unheard
  }

  Node self() const override { return control_->self(); }
  transport::World world() const override {
    transport::World world = control_->world();
    world.servers = 1;
    return world;
  }
  std::optional<Node> local_peer() const override { return kItself; }
  void fail(const std::string& text) override { control_->fail(text); }
  void leave(std::chrono::milliseconds timeout) override { control_->leave(timeout); }
  bool outlast(std::chrono::milliseconds timeout) override { return control_->outlast(timeout); }
  std::vector<transport::PeerCounters> counters() const override { return control_->counters(); }
  std::vector<std::string> exchange(std::string_view name, std::string_view blob,
                                    std::chrono::milliseconds timeout) override {
    return control_->exchange(name, blob, timeout);
  }

  void attach(transport::Sink& sink) override {
    {
      const std::lock_guard lock(sink_mutex_);
      sink_ = &sink;
    }
    control_->attach(sink);
  }
  void detach() override {
    {
      const std::lock_guard lock(sink_mutex_);
      sink_ = nullptr;
    }
    control_->detach();
  }

  void send(Node to, std::vector<Frame> frames) override {
    if (to != kItself)
      throw std::invalid_argument(fmt::format("send: there is no {} where a library sums", to_string(to)));
    loop_->post([this, frames = std::move(frames)]() mutable {
      for (Frame& frame : frames) handle(std::move(frame));
    });
  }

 private:
  using RoundId = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>;  // key, offset, step

  static RoundId id_of(const FrameHeader& header) { return {header.key, header.offset, header.step}; }

  void handle(Frame frame) {
    frame.header.sender = self();
    const bool under_way = rounds_.contains(id_of(frame.header));
    if (under_way && frame.header.kind == Kind::kProbe) return answer_held(frame.header);
    if (frame.header.kind != Kind::kPush)
      return answer([&](auto& answers) { aggregator_.handle(rank_, std::move(frame), answers); });
    if (under_way) return;  // pushed again
    rounds_.insert(id_of(frame.header));
    if (const auto type = summable(frame.header.codec)) return sum(std::move(frame), *type);
    gather(std::move(frame));
  }

  void sum(Frame frame, ElementType type) {
    Buffer values = with_tail(frame, type, pool_);
    frame.payload = {};
    collective_->all_reduce(
        std::move(values), type,
        [loop = loop_, this, header = frame.header, type](Buffer summed, const std::exception_ptr& error) {
          loop->post([this, header, type, summed = std::move(summed), error]() mutable {
            if (!lost(header, error)) on_sum(header, type, std::move(summed));
          });
        });
  }

  void on_sum(FrameHeader header, ElementType type, Buffer summed) {
    const std::size_t width = transport::bytes_of(type);
    const std::size_t payload = summed.size_bytes() - kTailElements * width;
    const Tail tail =
        read_tail(summed.bytes().subspan(payload), type, hash_of(header), control_->world().workers);
    if (!tail.same) return fail_order(header, "another rank");
    if (tail.nonfinite) header.flags |= transport::kFlagNonfinite;
    summed.truncate(payload);
    std::vector<Buffer> payloads;
    payloads.push_back(std::move(summed));
    complete(header, std::move(payloads));
  }

  void gather(Frame frame) {
    const auto head = transport::encode_header(frame.header, frame.payload.bytes());
    Buffer block = pool_.take(head.size() + frame.payload.size_bytes());
    block.truncate(head.size() + frame.payload.size_bytes());
    std::memcpy(block.bytes().data(), head.data(), head.size());
    std::memcpy(block.bytes().data() + head.size(), frame.payload.bytes().data(), frame.payload.size_bytes());
    frame.payload = {};
    collective_->all_gather(std::move(block), [loop = loop_, this, header = frame.header](
                                                  Buffer blocks, const std::exception_ptr& error) {
      loop->post([this, header, blocks = std::move(blocks), error] {
        if (!lost(header, error)) on_gathered(header, blocks);
      });
    });
  }

  void on_gathered(FrameHeader header, const Buffer& blocks) {
    const std::uint32_t workers = control_->world().workers;
    const std::size_t block_bytes = blocks.size_bytes() / workers;
    std::vector<Buffer> payloads;
    for (std::uint32_t worker = 0; worker < workers; ++worker) {
      const auto block = blocks.bytes().subspan(worker * block_bytes, block_bytes);
      const auto payload = block.subspan(transport::kHeaderBytes);
      FrameHeader theirs;
      try {
        theirs = transport::decode_header(block.first(transport::kHeaderBytes), payload);
      } catch (const transport::FrameError& error) {
        return control_->fail(
            fmt::format("sum of {}: worker {}: {}", describe(header), worker, error.what()));
      }
      if (identity_of(theirs) != identity_of(header))
        return fail_order(header, fmt::format("worker {} with {}", worker, describe(theirs)));
      header.flags |= theirs.flags & transport::kFlagNonfinite;
      Buffer shared = blocks.share();
      payloads.emplace_back(std::make_shared<Buffer>(std::move(shared)),  // owner: this payload
                            std::span(const_cast<std::byte*>(payload.data()), payload.size()));
    }
    complete(header, std::move(payloads));
  }

  void complete(const FrameHeader& header, std::vector<Buffer> payloads) {
    rounds_.erase(id_of(header));
    answer([&](auto& answers) { aggregator_.complete_round(header, std::move(payloads), answers); });
  }

  /// Whether the library failed; then the whole job has.
  bool lost(const FrameHeader& header, const std::exception_ptr& error) {
    if (!error) return false;
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& cause) {
      control_->fail(fmt::format("{}: sum of {}: {}", to_string(self()), describe(header), cause.what()));
    }
    return true;
  }

  void fail_order(const FrameHeader& header, const std::string& other) {
    control_->fail(
        fmt::format("{} pushed {} where {} pushed something else; with a store in which {} sums, every rank "
                    "must push the same "
                    "keys in the same order",
                    to_string(self()), describe(header), other, collective_->name()));
  }

  void answer_held(const FrameHeader& probe) {
    std::vector<std::uint32_t> awaited;
    for (std::uint32_t worker = 0; worker < control_->world().workers; ++worker) {
      if (worker != rank_) awaited.push_back(worker);
    }
    Frame held{probe, Buffer::allocate(awaited.size() * sizeof(std::uint32_t))};
    held.header.kind = Kind::kHeld;
    std::memcpy(held.payload.bytes().data(), awaited.data(), held.payload.size_bytes());
    std::vector<Frame> frames;
    frames.push_back(std::move(held));
    deliver(std::move(frames));
  }

  template <typename Ask>
  void answer(const Ask& ask) {
    std::vector<Aggregator::Answer> answers;
    ask(answers);
    std::vector<Frame> frames;
    for (auto& [worker, frame] : answers) {
      if (worker == rank_) frames.push_back(std::move(frame));
    }
    deliver(std::move(frames));
  }

  void deliver(std::vector<Frame> frames) {
    const std::lock_guard lock(sink_mutex_);
    if (sink_ != nullptr && !frames.empty()) sink_->on_frames(kItself, std::move(frames));
  }

  const std::unique_ptr<transport::Messenger> control_;
  const std::uint32_t rank_;
  std::mutex sink_mutex_;
  transport::Sink* sink_ = nullptr;
  std::shared_ptr<Loop> loop_ = std::make_shared<Loop>();  // owners: this and sums under way
  Aggregator aggregator_;
  transport::BufferPool pool_;
  std::set<RoundId> rounds_;  ///< under way
  std::unique_ptr<transport::Collective> collective_;
  std::jthread thread_;  // last member: joined before the rest dies
};

}  // namespace

std::unique_ptr<transport::Messenger> make_native(std::unique_ptr<transport::Messenger> control,
                                                  std::unique_ptr<transport::Collective> collective) {
  if (collective->rank() != control->self().rank || collective->size() != control->world().workers) {
    throw std::invalid_argument(fmt::format("native: {} sums as rank {} of {}, but this is {} of {} workers",
                                            collective->name(), collective->rank(), collective->size(),
                                            to_string(control->self()), control->world().workers));
  }
  return std::make_unique<Native>(std::move(control), std::move(collective));
}

}  // namespace gradwire::kvstore
