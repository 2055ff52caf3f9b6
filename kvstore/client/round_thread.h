// RoundThread is the one thread that a worker's rounds run on. It has the clients that send requests to
// servers: for tensors, rows, blobs and commands. It hands each answer to its client, keeps time, and fails
// all operations when something is lost that other workers share.
//
// Threading: any thread may call the public methods unless they say otherwise; they only post.
// Lifetime: owned by Engine, dies before the Messenger.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "kvstore/client/answer_decoder.h"
#include "kvstore/client/command_client.h"
#include "kvstore/client/dense_client.h"
#include "kvstore/client/dense_rounds.h"
#include "kvstore/client/device_rounds.h"
#include "kvstore/client/failover.h"
#include "kvstore/client/push_encoder.h"
#include "kvstore/client/residuals.h"
#include "kvstore/client/round_context.h"
#include "kvstore/client/round_waits.h"
#include "kvstore/client/tensor_table.h"
#include "kvstore/client/weight_receiver.h"
#include "kvstore/collectives/blob_client.h"
#include "kvstore/rows/row_client.h"
#include "kvstore/runtime/outbox.h"
#include "kvstore/runtime/pending_requests.h"
#include "kvstore/trace/clock_probe.h"

namespace gradwire::kvstore {

class Standstill;

class RoundThread final : private transport::Sink {
 public:
  /// What differs between placements.
  struct Rounds {
    bool in_order = false;            ///< pushes go in the order of submit(), as a library that sums needs it
    bool servers_in_workers = false;  ///< a server is its worker, to people, and leaves with it
    std::uint32_t contributors = 0;   ///< payloads in a sum
    std::function<void(const std::exception_ptr&)> on_failure{};  ///< gets the first, on this thread
    std::function<void()> on_worker_left{};  ///< called for each other worker, on the Messenger's thread
    Tier tier = Tier::kJob;                  ///< of what is traced
    Standstill* standstill = nullptr;        ///< gets the job's questions, on this thread; lives as long
  };
  RoundThread(transport::Messenger& messenger, const EngineOptions& options, const Rounds& rounds);
  ~RoundThread() override;

  /// origins: of each, where keys are parts of others; else empty.
  void add_keys(std::vector<KeySpec> specs, std::vector<std::vector<Part>> parts,
                std::vector<Origin> origins = {});
  /// Adds a key for several tensors that travel as one: one part, whose segments have these elements.
  void add_bucket(KeySpec spec, Part part, std::vector<std::uint32_t> segment_elements,
                  std::optional<Origin> origin = {});
  void submit(KeyId key, Operation operation);
  /// Submits all in one go, so that what they send leaves together.
  void submit(std::vector<Submission> submissions);
  /// Sets the format in which servers send weights from the next operation on. A command of its own sets it
  /// at the servers.
  void set_weight_replies(std::shared_ptr<const WeightReplies> replies);
  /// Sends text to every server; done when all have acknowledged. said: set, before done, to what they said,
  /// by rank; lives until done.
  Ticket command(std::string text, std::vector<Acknowledgement>* said = nullptr);
  /// Done when nothing is in flight.
  Ticket idle();
  /// As DenseRounds::when_handed_over().
  Ticket handed_over();

  /// Runs task on the thread, behind all that was posted before.
  void post(std::function<void()> task) { context_.loop->post(std::move(task)); }
  /// The same, and waits for it. Throws std::logic_error where an operation on one of the keys is in flight,
  /// and what task throws.
  void between_rounds(std::span<const KeyId> keys, const std::function<void()>& task);
  void between_rounds(KeyId key, const std::function<void()>& task) {
    between_rounds(std::span(&key, 1), task);
  }
  /// The same of no key: operations may be in flight.
  void between_rounds(const std::function<void()>& task) { between_rounds(std::span<const KeyId>(), task); }
  // Of such tasks alone.
  TensorTable& tensors() { return tensors_; }
  Residuals& residuals() { return residuals_; }
  const RoundWaits& waits() const { return waits_; }
  /// Whether no operation is in flight.
  bool is_idle() const { return rounds_.active().empty(); }

  BlobClient& blobs() { return blobs_; }
  RowClient& row_client() { return rows_; }
  ClockProbe& clock_probe() { return clock_probe_; }
  DeviceRounds& devices() { return devices_; }
  /// Fails everything in flight and to come.
  void fail(std::exception_ptr error) { context_.fail(std::move(error)); }

  double codec_seconds() const { return static_cast<double>(context_.codec_nanoseconds.load()) * 1e-9; }
  std::uint64_t ahead_bytes() const { return rounds_.ahead_bytes(); }
  PushedBytes pushed() const { return {rounds_.raw_bytes(), dense_.encoded_bytes()}; }
  std::map<std::uint64_t, std::uint64_t> staleness() const { return staleness_.get(); }
  std::vector<std::string> take_notices() { return context_.notices.take(); }
  /// What everything in flight failed for; empty while nothing did.
  std::string failure() const;
  /// Servers that have died, each with the mirror that serves in its place.
  std::map<std::uint32_t, std::uint32_t> replaced_servers() const { return failover_.replaced(); }

 private:
  void on_frames(transport::Node from, std::vector<transport::Frame> frames) override;
  void on_failure(const std::string& text) override {
    fail(std::make_exception_ptr(transport::TransportError(text)));
  }
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
  void handle(transport::Node from, transport::Frame frame);
  void flush();
  void tick();
  void give_up(const std::string& text);
  void lose_server(std::uint32_t rank, const std::string& error);
  void replace_server(std::uint32_t rank, std::uint32_t mirror);
  void fail_all(const std::exception_ptr& error);

  transport::Messenger& messenger_;
  const Rounds settings_;
  RoundContext context_;
  ClockProbe clock_probe_;
  Failover failover_;
  Outbox outbox_;
  PendingRequests pending_;
  StalenessCounts staleness_;
  CommandClient commands_;
  BlobClient blobs_;
  RowClient rows_;
  // Tensors, from the table to what is done with them.
  TensorTable tensors_;
  Residuals residuals_;
  PushEncoder encoder_;
  AnswerDecoder decoder_;
  WeightReceiver weights_;
  DeviceRounds devices_;
  DenseClient dense_;
  DenseRounds rounds_;
  RoundWaits waits_;
  std::exception_ptr failure_;
  mutable std::mutex failure_mutex_;
  std::string failure_text_;  ///< of failure_, for other threads: guarded by failure_mutex_
  CodecPool pool_;
  std::jthread thread_;  // last member: joined before the rest dies
};

}  // namespace gradwire::kvstore
