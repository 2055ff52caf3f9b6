// EngineThread is the one thread that owns a worker's rounds: it starts operations in order per key, hands
// encode and decode to the codec pool, sends within credit, matches answers, asks again, and gives up by
// name.
//
// Threading: the public methods may be called from any thread and only post; everything else runs on the
// thread. Lifetime: owned by Engine, dies before the Messenger.
#pragma once

#include <atomic>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "kvstore/codec_pool.h"
#include "kvstore/engine.h"
#include "kvstore/in_order.h"
#include "kvstore/loop.h"
#include "kvstore/mailbox_client.h"
#include "kvstore/outbox.h"

namespace gradwire::kvstore {

/// The codec in force and how it travels. Shared by the thread's tensors; replaced as a whole.
struct Compression {
  std::unique_ptr<compress::Codec> codec;
  compress::ReplyKind reply = compress::ReplyKind::kFp32;
};

class EngineThread final : private transport::Sink {
 public:
  struct Operation {
    enum class Verb : std::uint8_t { kInit, kPush, kPull, kPushPull };
    Verb verb = Verb::kPushPull;
    std::span<const float> in;
    std::span<float> out;
    std::vector<float> staged;  ///< owns what `in` shows when the caller could not wait
    std::int32_t priority = 0;
    float scale = 1;
    std::vector<std::span<float>>
        scatter;               ///< of several tensors in one: where the parts of `out` are copied to
    std::uint64_t number = 0;  ///< among all pushes, when they go in order
    std::shared_ptr<void>
        owner;                  ///< of that memory, when nobody else keeps it until all that is sent has gone
    bool* nonfinite = nullptr;  ///< set, before done, when any rank met a NaN or infinity; lives as `in` does
    Ticket done;
    Ticket taken;  ///< `in` is no longer read
  };

  /// What differs between placements.
  struct Rounds {
    bool in_order = false;            ///< pushes go in the order of submit(), as a library that sums needs it
    bool servers_in_workers = false;  ///< a server is its worker, to people, and leaves with it
    std::uint32_t contributors = 0;   ///< payloads in a sum
    std::function<void(const std::exception_ptr&)> on_failure{};  ///< hears the first, on this thread
  };
  EngineThread(transport::Messenger& messenger, const EngineOptions& options, const Rounds& rounds);
  ~EngineThread() override;

  void add_keys(std::vector<KeySpec> specs, std::vector<std::vector<Part>> parts);
  /// Adds a key for several tensors that travel as one: one part, whose segments have these elements.
  void add_bucket(KeySpec spec, Part part, std::vector<std::uint32_t> segment_elements);
  void set_compression(std::shared_ptr<const Compression> compression);
  void submit(KeyId key, Operation operation);
  /// Sends text to every server; done when all have acknowledged.
  Ticket command(std::string text);
  /// Done when nothing is in flight.
  Ticket idle();
  MailboxClient& mail() { return mail_; }
  /// Fails everything in flight and to come.
  void fail(std::exception_ptr error);

  double codec_seconds() const { return static_cast<double>(codec_nanoseconds_.load()) * 1e-9; }
  bool take_nonfinite() { return nonfinite_.exchange(false); }
  std::vector<std::string> take_notices();

 private:
  using Clock = std::chrono::steady_clock;
  struct PartState;
  struct Tensor;

  void on_frames(transport::Node from, std::vector<transport::Frame> frames) override;
  void on_failure(const std::string& text) override;
  void on_goodbye(transport::Node peer) override;

  void run();
  Tensor& add_tensor(KeySpec spec, const std::vector<Part>& parts);
  void start_next(Tensor& tensor);
  void start_push(Tensor& tensor);
  void start_pull(Tensor& tensor);
  void start_init(Tensor& tensor);
  void encode(Tensor& tensor, std::size_t part);
  void encoded(Tensor& tensor, std::size_t part, transport::Buffer payload, std::uint32_t flags,
               std::exception_ptr error);
  void send(Tensor& tensor, std::size_t part, transport::Kind kind, transport::Buffer payload,
            std::uint32_t flags);
  void handle(transport::Node from, transport::Frame frame);
  void handle_refusal(Tensor& tensor, std::size_t part, const transport::Frame& frame);
  void decode_answer(Tensor& tensor, std::size_t index, const transport::Frame& frame) const;
  void decode(Tensor& tensor, std::size_t part, transport::Frame frame);
  void ask_again(Tensor& tensor, std::size_t part);
  void job_done(Tensor& tensor, std::exception_ptr error);
  void part_done(Tensor& tensor, std::exception_ptr error);
  void finish(Tensor& tensor, std::exception_ptr error);
  void fail_all(std::exception_ptr error);
  void flush();
  void tick();
  void give_up(const std::string& text);
  void notify(std::string text);
  void tick_mail(Clock::time_point now);
  void probe(Tensor& tensor, Clock::time_point now);
  void ask(Tensor& tensor, std::size_t part);
  void lose_server(std::uint32_t rank);
  std::string server_name(std::uint32_t rank) const;
  std::string lost_server_text(std::uint32_t rank) const;
  std::string describe_wait(const Tensor& tensor, Clock::time_point now) const;
  transport::FrameHeader header_of(const Tensor& tensor, std::size_t part) const;

  transport::Messenger& messenger_;
  const EngineOptions options_;
  std::unique_ptr<InOrder> in_order_;
  const Rounds rounds_;
  std::shared_ptr<Loop> loop_ = std::make_shared<Loop>();  // owners: this and payloads still in the socket
  std::vector<std::unique_ptr<Tensor>> tensors_;
  std::set<Tensor*> active_;
  std::vector<Ticket> waiting_idle_;
  std::shared_ptr<const Compression> compression_;  // owners: this and jobs in the pool
  Outbox outbox_;
  MailboxClient mail_;
  bool warned_of_mail_ = false;
  std::set<std::uint32_t> servers_gone_;
  std::optional<std::pair<Ticket, std::set<std::uint32_t>>>
      command_;  ///< and the servers that have not answered it
  std::exception_ptr failure_;
  transport::BufferPool buffers_;
  std::atomic<std::uint64_t> codec_nanoseconds_{0};
  std::atomic<bool> nonfinite_{false};
  std::mutex notices_mutex_;
  std::vector<std::string> notices_;
  CodecPool pool_;
  std::jthread thread_;  // last member: joined before the rest dies
};

}  // namespace gradwire::kvstore
