// EngineThread is the one thread that owns a worker's rounds: it starts operations in order per key, hands
// encode and decode to the codec pool, sends within credit, matches answers, asks again, and gives up by
// name.
//
// Threading: the public methods may be called from any thread and only post; everything else runs on the
// thread. Lifetime: owned by Engine, dies before the Messenger.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "compress/share_sent.h"
#include "kvstore/client/command_client.h"
#include "kvstore/client/device_link.h"
#include "kvstore/client/failover.h"
#include "kvstore/client/in_order.h"
#include "kvstore/client/tensor_state.h"
#include "kvstore/collectives/mailbox_client.h"
#include "kvstore/options.h"
#include "kvstore/rows/row_client.h"
#include "kvstore/runtime/callers.h"
#include "kvstore/runtime/codec_pool.h"
#include "kvstore/runtime/loop.h"
#include "kvstore/runtime/outbox.h"
#include "kvstore/trace/clock_probe.h"
#include "kvstore/wire/key.h"
#include "kvstore/wire/protocol.h"
#include "kvstore/wire/weight_replies.h"

namespace gradwire::kvstore {

/// What a push that is taken ahead of its round counts beside its values, in push_ahead_bytes.
inline constexpr std::uint64_t kAheadBytes = 1024;

/// The codec in force and how it travels. Shared by the thread's tensors; replaced as a whole.
struct Compression {
  std::unique_ptr<compress::Codec> codec;
  compress::ReplyKind reply = compress::ReplyKind::kFp32;
};

/// What an operation needs whose spans lie on a device.
struct DeviceOperation {
  std::shared_ptr<DeviceLink> link;  // owners: the thread, its tensors and operations on the device
  DeviceLink::Marks marks;           ///< of streams that write or read the spans before it
  std::shared_ptr<float> staged;     ///< owns what `in` shows when the caller could not wait
  transport::Buffer landing;         ///< the floats on the host, where the codec has no twin
  std::span<const float> in;         ///< the caller's spans while the operation's are those of the landing
  std::span<float> out;
  bool lands = false;  ///< what `landing` holds at the end is still to be copied to `out`
};

/// How many rounds of a tensor the ranks have begun.
struct StepSpread {
  std::uint64_t least = 0;
  std::uint64_t most = 0;
};

class Standstill;

class EngineThread final : private transport::Sink {
 public:
  struct Operation {
    enum class Verb : std::uint8_t { kInit, kPush, kPull, kPushPull, kReadState, kWriteState };
    Verb verb = Verb::kPushPull;
    std::span<const float> in;
    std::span<float> out;
    std::vector<float> staged;     ///< owns what `in` shows when the caller could not wait
    std::span<const double> in64;  ///< in place of `in`, of a key of float64; always on the host
    std::span<double> out64;       ///< likewise of `out`
    std::vector<double> staged64;
    std::int32_t priority = 0;
    double scale = 1;                       ///< in float32 of what is of float32
    std::vector<std::span<float>> scatter;  ///< of several tensors in one: where the parts of `out` are
                                            ///< copied to; on a device those of `in` come from there too
    std::uint64_t number = 0;               ///< among all pushes, when they go in order; of states: the step
    std::shared_ptr<void>
        owner;  ///< of that memory, when nobody else keeps it until all that is sent has gone
    std::optional<DeviceOperation> device;  ///< `in`, `out` and `scatter` lie there; none: on the host
    std::size_t part = 0;                   ///< of kReadState and kWriteState: whose state
    transport::Buffer* state = nullptr;     ///< theirs, encoded (partition_state.h); lives as `in` does
    Kept kept = Kept::kAll;                 ///< theirs: what of it
    std::uint32_t program_step = 0;         ///< of pushes: FrameHeader's
    bool is_for_servers_own = false;        ///< a pull: for the weight as a server has it (wire/PROTOCOL.md)
    bool* nonfinite = nullptr;  ///< set, before done, when any rank met a NaN or infinity; lives as `in` does
    Ticket done;
    Ticket taken;                        ///< `in` is no longer read
    std::uint64_t ahead_bytes = 0;       ///< of push_ahead_bytes, where `in` was taken ahead
    bool is_held = false;                ///< it waits with its caller's memory, since there was no room
    TraceClock::time_point submitted{};  ///< the epoch, where that is not traced

    void set_in(std::span<const float> values) { in = values; }
    void set_in(std::span<const double> values) { in64 = values; }
    void set_out(std::span<float> values) { out = values; }
    void set_out(std::span<double> values) { out64 = values; }
    std::size_t out_elements() const { return std::max(out.size(), out64.size()); }
    /// False too where the device's floats are handled in a landing on the host.
    bool works_on_device() const { return device && device->landing.size_bytes() == 0; }
  };

  /// What differs between placements.
  struct Rounds {
    bool in_order = false;            ///< pushes go in the order of submit(), as a library that sums needs it
    bool servers_in_workers = false;  ///< a server is its worker, to people, and leaves with it
    std::uint32_t contributors = 0;   ///< payloads in a sum
    std::function<void(const std::exception_ptr&)> on_failure{};  ///< hears the first, on this thread
    Tier tier = Tier::kJob;                                       ///< of what is traced
    Standstill* standstill = nullptr;  ///< hears the job's questions, on this thread; lives as it does
  };
  EngineThread(transport::Messenger& messenger, const EngineOptions& options, const Rounds& rounds);
  ~EngineThread() override;

  void add_keys(std::vector<KeySpec> specs, std::vector<std::vector<Part>> parts);
  /// Adds a key for several tensors that travel as one: one part, whose segments have these elements.
  void add_bucket(KeySpec spec, Part part, std::vector<std::uint32_t> segment_elements);
  void set_compression(std::shared_ptr<const Compression> compression);
  /// Sets what some keys have apart from that.
  void set_compression_of(std::vector<KeyId> keys, std::shared_ptr<const Compression> compression);
  /// Has pulls ask servers again that last brought sums of float64: as weights they are rounded.
  void forget_sums_of_float64();
  /// Sets how servers send weights from the next operation on; they are told by a command of its own.
  void set_weight_replies(std::shared_ptr<const WeightReplies> replies);
  void submit(KeyId key, Operation operation);
  struct Submission {
    KeyId key = 0;
    Operation operation;
  };
  /// Submits all in one go, so that what they send leaves together.
  void submit(std::vector<Submission> submissions);
  /// Sends text to every server; done when all have acknowledged. said: set, before done, to what they said,
  /// by rank; lives until done.
  Ticket command(std::string text, std::vector<Acknowledgement>* said = nullptr);
  /// Done when nothing is in flight.
  Ticket idle();
  /// Done when servers have all that is in flight: each request is answered, or its server has said that it
  /// holds it, which with replicas its mirror then does, too.
  Ticket handed_over();
  /// Writes the residual from offset on to out, where there is one, which it sets found to. Fails where a
  /// round of the key is in progress, as all of these do. Both spans live until done.
  Ticket read_residual(KeyId key, std::uint64_t offset, std::span<float> out, bool& found);
  /// Sets squares to the sum of the squares of all residuals; known to whether no round is in progress, in
  /// which they change.
  Ticket measure_residuals(double& squares, bool& known);
  /// Sets share to what was measured last of all tensors that are compressed now; known to whether no round
  /// is in progress.
  Ticket measure_share(compress::ShareSent& share, bool& known);
  /// Sets keeps to whether the key's codec lets NaN stay in a residual.
  Ticket keeps_nonfinite(KeyId key, bool& keeps);
  Ticket write_residual(KeyId key, std::uint64_t offset, std::span<const float> values);
  /// Adds values times scale to it.
  Ticket add_to_residual(KeyId key, std::uint64_t offset, std::span<const float> values, float scale);
  void keep_rollback(bool keep);
  Ticket roll_back(const std::vector<KeyId>& keys);
  // engine_thread_state.cpp. What is given lives until done
  /// Appends a key's parts, ordered by offset.
  Ticket parts_of(KeyId key, std::vector<Part>& parts);
  Ticket read_tensor(KeyId key, TensorState& state);
  /// Scales that another codec has agreed are left: they are agreed anew.
  Ticket write_tensor(KeyId key, const TensorState& state);
  /// Fetches what a server keeps of a key's part (partition_state.h), and gives it one.
  Ticket read_state(KeyId key, std::size_t part, transport::Buffer& state);
  Ticket write_state(KeyId key, std::size_t part, transport::Buffer& state);
  /// Of that the optimizer's alone; also while other workers' pushes of the next round wait for this one's.
  Ticket read_optimizer(KeyId key, std::size_t part, transport::Buffer& state);
  /// load: a number above that of any before; a request of the same or a lower one changes nothing.
  Ticket write_optimizer(KeyId key, std::size_t part, transport::Buffer& state, std::uint64_t load);
  /// Writes how many rounds of each tensor have begun to steps. Requires, as what follows, that none is in
  /// progress.
  Ticket read_steps(std::vector<std::uint64_t>& steps);
  /// Goes on from the most rounds that any rank has begun of each tensor. Where ranks differ, what they
  /// agreed on in the last one is void.
  Ticket catch_up(std::vector<StepSpread> spreads);
  MailboxClient& mail() { return mail_; }
  RowClient& row_client() { return rows_; }
  ClockProbe& clock_probe() { return clock_probe_; }
  // engine_thread_standstill.cpp
  /// Runs task on the thread, behind all that was posted before; what follows may be called in it alone.
  void post_behind(std::function<void()> task);
  /// Adds to the report what a caller's wait needs of other workers.
  void describe(const Callers::Wait& wait, transport::WaitReport& report) const;
  /// Whether this worker, which stands still, holds nobody up in a round, in the words of describe(): it has
  /// begun it, or is not awaited there.
  bool has_begun(const std::string& round, const Callers::Standstill& standing) const;
  /// The link to a device, made when it is first asked for.
  std::shared_ptr<DeviceLink> link(const std::shared_ptr<compress::Device>& device);
  /// Bytes that have crossed from and to devices.
  std::uint64_t bytes_from_devices() const;
  std::uint64_t bytes_to_devices() const;
  /// Fails everything in flight and to come.
  void fail(std::exception_ptr error);

  double codec_seconds() const { return static_cast<double>(codec_nanoseconds_.load()) * 1e-9; }
  /// What pushes have taken that waited for a round before theirs; until theirs is over.
  std::uint64_t ahead_bytes() const { return ahead_bytes_; }
  PushedBytes pushed() const { return {raw_bytes_.load(), encoded_bytes_.load()}; }
  std::map<std::uint64_t, std::uint64_t> staleness() const { return staleness_.get(); }
  std::vector<std::string> take_notices();
  /// What everything in flight failed for; empty while nothing did.
  std::string failure() const;
  /// Servers that have died, and who serves in their place.
  std::map<std::uint32_t, std::uint32_t> replaced_servers() const { return failover_.replaced(); }

 private:
  using Clock = std::chrono::steady_clock;
  struct PartState;
  struct Tensor;

  void on_frames(transport::Node from, std::vector<transport::Frame> frames) override;
  void on_failure(const std::string& text) override;
  void on_membership_changed(const std::string& text) override {
    fail(std::make_exception_ptr(transport::MembershipChanged(text)));
  }
  void on_call_mismatch(const std::string& text) override {
    fail(std::make_exception_ptr(transport::CallMismatch(text)));
  }
  void on_question(const std::set<std::string>& rounds) override;
  void on_goodbye(transport::Node peer, const std::string& error) override;
  void on_departure(transport::Node server, transport::Node mirror) override;

  void run();
  void take_in(KeyId key, Operation operation);
  // engine_thread_trace.cpp. Require that the tracer is on
  void note_submitted(KeyId key, Operation& operation) const;
  void note_start(const Tensor& tensor) const;
  void note(Stage stage, const Tensor& tensor, std::size_t part, Clock::time_point begin,
            std::uint64_t bytes) const;
  Tensor& add_tensor(KeySpec spec, const std::vector<Part>& parts);
  Ticket between_rounds(std::vector<KeyId> keys, std::function<void()> task);
  const std::shared_ptr<const Compression>& compression_of(const Tensor& tensor) const;
  std::shared_ptr<const Compression> compression_in_round(const Tensor& tensor) const;
  bool is_in_force(const Tensor& tensor) const;
  void take_restored_scales(Tensor& tensor);
  void renew_scales(Tensor& tensor, const Compression& before);
  void start_next(Tensor& tensor);
  void start(Tensor& tensor);
  void start_push(Tensor& tensor);
  void start_pull(Tensor& tensor);
  void start_init(Tensor& tensor);
  Ticket submit_state(Operation::Verb verb, Kept kept, KeyId key, std::size_t part, transport::Buffer& state,
                      std::uint64_t number = kNoStep);
  void start_state(Tensor& tensor);
  void keep_what_was(Tensor& tensor);
  bool stage(Operation& operation);
  void stage_held(Tensor& tensor);
  // engine_thread_device.cpp
  void stage_on_device(Operation& operation);
  void start_push_from_device(Tensor& tensor);
  bool settle_on_device(Tensor& tensor);
  void settle_on_host(Tensor& tensor);
  void land(Tensor& tensor);
  void landed(Tensor& tensor, std::exception_ptr error);
  void lift(Tensor& tensor);
  void copy_value(Tensor& tensor);
  void submit_batch(Tensor& tensor, DeviceLink& link, DeviceLink::Way way,
                    std::function<void(DeviceLink::Batch&)> work,
                    void (EngineThread::*next)(Tensor&, std::exception_ptr));
  void notify_of_landing(const compress::Codec& codec, const compress::Device& device);
  void encode_on_device(Tensor& tensor, std::size_t part);
  void decode_on_device(Tensor& tensor, std::size_t part, const transport::Frame& frame);
  void encode(Tensor& tensor, std::size_t part);
  void make_ready_to_go(const Tensor& tensor, std::size_t part, transport::Buffer& payload,
                        std::uint32_t& flags);
  void encode_to(transport::Buffer& payload, std::uint32_t& flags, Tensor& tensor, std::size_t part,
                 const compress::Position& position);
  void notify_of_overflow(const Tensor& tensor);
  bool is_payload_already(const Tensor& tensor) const;
  void encoded(Tensor& tensor, std::size_t part, transport::Buffer payload, std::uint32_t flags,
               std::exception_ptr error);
  void send(Tensor& tensor, std::size_t part, transport::Kind kind, transport::Buffer payload,
            std::uint32_t flags);
  void handle(transport::Node from, transport::Frame frame);
  void send_again(Tensor& tensor, std::size_t part);
  void handle_refusal(Tensor& tensor, std::size_t part, const transport::Frame& frame);
  std::uint32_t ways_of(const transport::FrameHeader& reply) const;
  void decode_answer(Tensor& tensor, std::size_t index, const transport::Frame& frame) const;
  void decode_floats(Tensor& tensor, std::size_t index, const transport::Frame& frame, float scale,
                     std::span<float> out) const;
  void decode(Tensor& tensor, std::size_t part, transport::Frame frame);
  // engine_thread_weights.cpp
  Content content_of_request(const Tensor& tensor, const PartState& state) const;
  bool asks_for_weight(const Operation& operation, const PartState& state) const;
  void expect_weight(Tensor& tensor, const PartState& state, const transport::FrameHeader& answer) const;
  void take_weight(Tensor& tensor, std::size_t part, transport::Frame& answer);
  void note_staleness(const PartState& part, const transport::FrameHeader& answer);
  void ask_again(Tensor& tensor, std::size_t part);
  void job_done(Tensor& tensor, std::exception_ptr error);
  void part_done(Tensor& tensor, std::exception_ptr error);
  void finish(Tensor& tensor, std::exception_ptr error);
  void fail_all(std::exception_ptr error);
  void keep_failure_text();
  void flush();
  void tick();
  void give_up(const std::string& text);
  void notify(std::string text);
  template <typename Client>
  void tick_client(Client& client, bool& has_warned, Clock::time_point now);
  void probe(Tensor& tensor, Clock::time_point now);
  std::chrono::milliseconds question_timeout() const;
  bool is_warning_due(Clock::duration age, bool names_workers) const;
  /// Whether it is known which workers' pushes a tensor's round lacks.
  static bool awaits_workers(const Tensor& tensor);
  void ask(Tensor& tensor, std::size_t part);
  // engine_thread_departure.cpp
  void lose_server(std::uint32_t rank, const std::string& error);
  std::optional<std::uint64_t> round_needed(const Tensor& tensor) const;
  bool is_handed_over(const Tensor& tensor) const;
  void tell_handed_over();
  void replace_server(std::uint32_t rank, std::uint32_t mirror);
  std::string describe_wait(const Tensor& tensor, Clock::time_point now) const;
  transport::FrameHeader header_of(const Tensor& tensor, std::size_t part) const;

  transport::Messenger& messenger_;
  const EngineOptions options_;
  std::unique_ptr<InOrder> in_order_;
  const Rounds rounds_;
  const Tracer tracer_;
  ClockProbe clock_probe_;
  TraceClock::time_point arrived_;                         ///< of the frames in hand
  std::shared_ptr<Loop> loop_ = std::make_shared<Loop>();  // owners: this and payloads still in the socket
  std::vector<std::unique_ptr<Tensor>> tensors_;
  std::set<Tensor*> active_;
  std::vector<Ticket> waiting_idle_, waiting_handed_over_;
  std::shared_ptr<const Compression> compression_;  // owners: this and jobs in the pool
  /// In the place of codec none, for keys of float64. Owners likewise.
  const std::shared_ptr<const Compression> none_of_float64_;
  std::shared_ptr<const WeightReplies> weight_replies_ =
      std::make_shared<const WeightReplies>();  // owners: this and tensors
  bool keeps_rollback_ = false;
  Outbox outbox_;
  MailboxClient mail_;
  RowClient rows_;
  bool warned_of_mail_ = false, warned_of_rows_ = false;
  Failover failover_;
  CommandClient commands_;
  std::exception_ptr failure_;
  transport::BufferPool buffers_;
  mutable std::mutex links_mutex_;
  std::vector<std::pair<const compress::Device*, std::shared_ptr<DeviceLink>>> links_;
  std::set<std::string> landing_codecs_;  ///< of which a notice was given
  std::set<KeyId> overflowed_;            ///< keys of which one was given; guarded by notices_mutex_
  std::atomic<std::uint64_t> codec_nanoseconds_{0};
  std::atomic<std::uint64_t> raw_bytes_{0}, encoded_bytes_{0};  ///< of pushes
  std::atomic<std::uint64_t> ahead_bytes_{0};                   ///< written on the thread alone
  StalenessCounts staleness_;
  mutable std::mutex notices_mutex_;
  std::vector<std::string> notices_;
  std::string failure_text_;  ///< of failure_, for other threads: guarded by notices_mutex_
  CodecPool pool_;
  std::jthread thread_;  // last member: joined before the rest dies
};

}  // namespace gradwire::kvstore
