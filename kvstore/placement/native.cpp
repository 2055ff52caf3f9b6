#include "kvstore/placement/native.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include "compress/codecs.h"
#include "compress/payload/integer_sums.h"
#include "kvstore/aggregate/aggregator.h"
#include "kvstore/placement/sum_trailer.h"
#include "kvstore/runtime/loop.h"
#include "kvstore/wire/answer.h"
#include "kvstore/wire/protocol.h"
#include "transport/thread_name.h"

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
using Clock = std::chrono::steady_clock;

constexpr Node kItself{Role::kServer, 0};
// Only for a failure that is due. Nothing else of this thread looks at the time.
constexpr auto kTick = std::chrono::seconds(1);
// Until the control plane has told of a worker that is dead. Over sockets it knows of a closed connection
// within 2 s; MPI shows none, and there a killed rank ends the job by mpirun.
constexpr auto kWordOfTheDead = std::chrono::seconds(4);

/// How a library sums payloads of so many ranks; nothing: it cannot.
std::optional<ElementType> summable(const FrameHeader& header, std::uint32_t ranks) {
  std::optional<ElementType> type;
  switch (static_cast<WireId>(header.codec)) {
    case WireId::kNone:
      type = dtype_of(header) == Dtype::kFloat64 ? ElementType::kFloat64 : ElementType::kFloat32;
      break;
    case WireId::kFp16:
      type = ElementType::kFloat16;
      break;
    case WireId::kBf16:
      type = ElementType::kBfloat16;
      break;
    default:
      break;
  }
  return type && ranks <= SumTrailer::most_ranks(*type) ? type : std::nullopt;
}

ElementType element_type(compress::IntegerWidth width) {
  return width == compress::IntegerWidth::kInt8 ? ElementType::kInt8 : ElementType::kInt16;
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
  return fmt::format("key {} offset {} step {} (codec {}, {} elements of dtype {})", header.key,
                     header.offset, header.step, header.codec, header.count, header.dtype);
}

/// A round of codes that the library adds as integers: two of its operations.
struct IntegerRound {
  FrameHeader header;
  compress::IntegerWidth width = compress::IntegerWidth::kInt8;
  Buffer sums;   // with the tail
  Buffer heads;  // of all ranks' payloads
  int awaited = 0;
};

/// Of the library, and when the job fails by it.
struct Failure {
  Clock::time_point due;
  std::string text;
};

class Native final : public transport::Messenger {
 public:
  Native(std::unique_ptr<transport::Messenger> control, std::unique_ptr<transport::Collective> collective,
         CodeSums code_sums)
      : control_(std::move(control)),
        rank_(control_->self().rank),
        workers_(control_->world().workers),
        code_sums_(code_sums),
        aggregator_(workers_),
        collective_(std::move(collective)),
        thread_([this] {
          transport::name_this_thread("gw native");
          loop_->run(
              kTick, [] {}, [this] { tell_failure(); });
        }) {}

  ~Native() override {
    // First, so that no answer reaches a sink that is ending, and nobody asks the library for more.
    detach();
  }

  Node self() const override { return control_->self(); }
  transport::World world() const override {
    transport::World world = control_->world();
    world.servers = 1;
    return world;
  }
  std::optional<Node> local_peer() const override { return kItself; }
  void report_wait(const transport::WaitReport& report) override { control_->report_wait(report); }
  std::uint64_t exchanges() const override { return control_->exchanges(); }
  void fail(const std::string& text) override { control_->fail(text); }
  void note_error(const std::string& error) override { control_->note_error(error); }
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
    // Nobody hears of a sum any more, and whoever has pushed may now free the memory that frames borrow.
    loop_->stop();
    if (thread_.joinable()) thread_.join();
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
    // As a Messenger does. The header travels with gathered payloads, and errors name its sender.
    frame.header.sender = self();
    const bool under_way = rounds_.contains(id_of(frame.header));
    // The aggregator does not know of the round before the library is done, and would ask for the push again.
    if (under_way && frame.header.kind == Kind::kProbe) return answer_held(frame.header);
    if (frame.header.kind != Kind::kPush)
      return answer([&](auto& answers) { aggregator_.handle(rank_, std::move(frame), answers); });
    if (under_way) return;  // pushed again
    rounds_.insert(id_of(frame.header));
    if (const auto type = summable(frame.header, workers_)) return sum(std::move(frame), *type);
    const auto payload = std::as_const(frame.payload).bytes();
    const bool is_summed = aggregator_.with_codec(frame.header, payload, [&](const compress::Codec& codec) {
      const auto width = integers_of(codec, payload);
      if (width) sum_codes(frame.header, payload, *codec.integer_sums(), *width);
      return width.has_value();
    });
    if (!is_summed) gather(std::move(frame));
  }

  /// Room for so many elements and a tail, and the tail.
  Buffer with_tail(const FrameHeader& header, ElementType type, std::size_t elements) {
    const std::size_t width = transport::bytes_of(type);
    Buffer values = pool_.take(elements * width + SumTrailer::size_bytes(width));
    SumTrailer::write(header, type, values.bytes().subspan(elements * width));
    return values;
  }

  void sum(Frame frame, ElementType type) {
    const auto payload = std::as_const(frame.payload).bytes();
    Buffer values = with_tail(frame.header, type, payload.size() / transport::bytes_of(type));
    std::ranges::copy(payload, values.bytes().begin());
    frame.payload = {};
    collective_->all_reduce(std::move(values), type,
                            on_loop(frame.header, [this, header = frame.header, type](Buffer summed) {
                              if (const auto read = take_tail(header, type, summed))
                                complete(*read, list_of(std::move(summed)));
                            }));
  }

  /// Cuts the tail off. Returns the header with the flag that it carries, or, the job having failed, nothing.
  std::optional<FrameHeader> take_tail(FrameHeader header, ElementType type, Buffer& summed) {
    const std::size_t payload = summed.size_bytes() - SumTrailer::size_bytes(transport::bytes_of(type));
    const auto tail = SumTrailer::read(summed.bytes().subspan(payload), type, header, workers_);
    if (!tail.same) {
      fail_order(header, "another rank");
      return std::nullopt;
    }
    if (tail.nonfinite) header.flags |= transport::kFlagNonfinite;
    summed.truncate(payload);
    return header;
  }

  /// As what integers the library adds this push; nothing: it gathers it. All ranks find the same, since what
  /// a payload holds follows from the answer that all got in the round before.
  std::optional<compress::IntegerWidth> integers_of(const compress::Codec& codec, compress::Payload payload) {
    const auto* const sums = codec.integer_sums();
    if (sums == nullptr || !sums->holds_codes(payload)) return std::nullopt;
    return integers_for(code_sums_, workers_, sums->code_bits());
  }

  void sum_codes(const FrameHeader& header, compress::Payload payload, const compress::IntegerSums& sums,
                 compress::IntegerWidth width) {
    const std::size_t elements = header.count;
    const std::size_t head_bytes = sums.head_bytes(elements);
    const ElementType type = element_type(width);
    const auto round = std::make_shared<IntegerRound>();  // owners: the operations under way
    round->header = header;
    round->width = width;
    // A codec with a fixed scale has no heads to gather.
    round->awaited = head_bytes > 0 ? 2 : 1;
    Buffer values = with_tail(header, type, elements);
    sums.expand(payload, elements, width, values.bytes().first(elements * transport::bytes_of(type)));
    // Heads first on every rank: the library matches calls by their order.
    if (head_bytes > 0) {
      Buffer head = pool_.take(head_bytes);
      sums.write_head(payload, elements, head.bytes());
      collective_->all_gather(std::move(head), on_loop(header, [this, round](Buffer heads) {
                                round->heads = std::move(heads);
                                on_integers(*round);
                              }));
    }
    collective_->all_reduce(std::move(values), type, on_loop(header, [this, round](Buffer summed) {
                              round->sums = std::move(summed);
                              on_integers(*round);
                            }));
  }

  void on_integers(IntegerRound& round) {
    if (--round.awaited > 0) return;
    const auto header = take_tail(round.header, element_type(round.width), round.sums);
    if (!header) return;
    rounds_.erase(id_of(*header));
    answer([&](auto& answers) {
      aggregator_.complete_round(
          *header, IntegerContributions{std::move(round.sums), std::move(round.heads), round.width}, answers);
    });
  }

  void gather(Frame frame) {
    const auto head = transport::encode_header(frame.header, frame.payload.bytes());
    Buffer block = pool_.take(head.size() + frame.payload.size_bytes());
    std::memcpy(block.bytes().data(), head.data(), head.size());
    std::ranges::copy(std::as_const(frame.payload).bytes(),
                      block.bytes().begin() + static_cast<std::ptrdiff_t>(head.size()));
    frame.payload = {};
    collective_->all_gather(std::move(block),
                            on_loop(frame.header, [this, header = frame.header](const Buffer& blocks) {
                              on_gathered(header, blocks);
                            }));
  }

  void on_gathered(FrameHeader header, const Buffer& blocks) {
    const std::size_t block_bytes = blocks.size_bytes() / workers_;
    std::vector<Buffer> payloads;
    for (std::uint32_t worker = 0; worker < workers_; ++worker) {
      const auto block = blocks.bytes().subspan(worker * block_bytes, block_bytes);
      const auto payload = block.subspan(transport::kHeaderBytes);
      FrameHeader theirs;
      try {
        // Nobody could send it again: the library's call is over on all ranks.
        theirs = transport::decode_header(block.first(transport::kHeaderBytes), payload);
      } catch (const transport::FrameError& error) {
        return control_->fail(
            fmt::format("sum of {}: worker {}: {}", describe(header), worker, error.what()));
      }
      // Gathered payloads have no trailer: their headers say whether all ranks pushed one thing.
      if (identity_of(theirs) != identity_of(header))
        return fail_order(header, fmt::format("worker {} with {}", worker, describe(theirs)));
      header.flags |= theirs.flags & transport::kFlagNonfinite;
      Buffer shared = blocks.share();
      // Each payload is a view of the gathered blocks, which live until the last one is summed.
      payloads.emplace_back(std::make_shared<Buffer>(std::move(shared)),  // owner: this payload
                            std::span(const_cast<std::byte*>(payload.data()), payload.size()));
    }
    complete(header, std::move(payloads));
  }

  void complete(const FrameHeader& header, std::vector<Buffer> payloads) {
    rounds_.erase(id_of(header));
    answer([&](auto& answers) { aggregator_.complete_round(header, std::move(payloads), answers); });
  }

  /// Hands what the library gave back to use(), on the loop's thread; if it failed, the whole job will.
  template <typename Use>
  transport::Collective::Done on_loop(const FrameHeader& header, Use use) {
    return [loop = loop_, this, header, use](Buffer values, const std::exception_ptr& error) {
      // The library calls back on its own thread, which must not be kept (transport/collective.h).
      loop->post([this, header, use, values = std::move(values), error]() mutable {
        if (!lost(header, error)) use(std::move(values));
      });
    };
  }

  static std::vector<Buffer> list_of(Buffer payload) {
    std::vector<Buffer> payloads;
    payloads.push_back(std::move(payload));
    return payloads;
  }

  /// Whether the library failed; then the whole job does. Most often it failed because another rank has died,
  /// and knows no more than that a connection was closed: the control plane, which names the rank, comes
  /// first.
  bool lost(const FrameHeader& header, const std::exception_ptr& error) {
    if (!error) return false;
    // Operations behind the first one fail too, and say less of the cause.
    if (failure_) return true;
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& cause) {
      failure_ = {Clock::now() + kWordOfTheDead,
                  fmt::format("{}: sum of {}: {}", to_string(self()), describe(header), cause.what())};
    }
    return true;
  }

  void tell_failure() {
    if (!failure_ || Clock::now() < failure_->due) return;
    control_->fail(failure_->text);
    failure_->due = Clock::time_point::max();  // once
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
    for (std::uint32_t worker = 0; worker < workers_; ++worker) {
      // The library does not say which ranks have come.
      if (worker != rank_) awaited.push_back(worker);
    }
    std::vector<Frame> frames;
    frames.push_back(held(probe, awaited));
    deliver(std::move(frames));
  }

  template <typename Ask>
  void answer(const Ask& ask) {
    std::vector<Answer> answers;
    ask(answers);
    std::vector<Frame> frames;
    for (auto& [worker, frame] : answers) {
      // The aggregator answers all workers. Every rank makes the same answers, and delivers its own.
      if (worker == rank_) frames.push_back(std::move(frame));
    }
    deliver(std::move(frames));
  }

  void deliver(std::vector<Frame> frames) {
    const std::lock_guard lock(sink_mutex_);
    // Under the mutex, so that detach() returns when no call into the sink is running.
    if (sink_ != nullptr && !frames.empty()) sink_->on_frames(kItself, std::move(frames));
  }

  const std::unique_ptr<transport::Messenger> control_;
  const std::uint32_t rank_;
  const std::uint32_t workers_;
  const CodeSums code_sums_;
  std::mutex sink_mutex_;
  transport::Sink* sink_ = nullptr;
  std::shared_ptr<Loop> loop_ = std::make_shared<Loop>();  // owners: this and sums under way
  Aggregator aggregator_;
  transport::BufferPool pool_;
  std::set<RoundId> rounds_;  ///< under way
  std::optional<Failure> failure_;
  std::unique_ptr<transport::Collective> collective_;
  std::jthread thread_;  // last member: joined before the rest dies
};

}  // namespace

std::unique_ptr<transport::Messenger> make_native(std::unique_ptr<transport::Messenger> control,
                                                  std::unique_ptr<transport::Collective> collective,
                                                  CodeSums code_sums) {
  if (collective->rank() != control->self().rank || collective->size() != control->world().workers) {
    throw std::invalid_argument(fmt::format("native: {} sums as rank {} of {}, but this is {} of {} workers",
                                            collective->name(), collective->rank(), collective->size(),
                                            to_string(control->self()), control->world().workers));
  }
  return std::make_unique<Native>(std::move(control), std::move(collective), code_sums);
}

}  // namespace gradwire::kvstore
