// DenseRounds executes operations on tensors: on each tensor one after the other, whose parts are encoded,
// sent, answered and decoded side by side. A push that comes while the round before it is in flight is taken
// ahead, as far as push_ahead_bytes allow.
//
// Threading: the RoundThread's own; codec jobs run in the pool.
// Failure: an error in a round that others share ends all operations; one of a pull or a state ends that
// operation alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <set>
#include <vector>

#include "kvstore/client/answer_decoder.h"
#include "kvstore/client/dense_client.h"
#include "kvstore/client/device_rounds.h"
#include "kvstore/client/push_encoder.h"
#include "kvstore/client/residuals.h"
#include "kvstore/client/round_context.h"
#include "kvstore/client/tensor_table.h"
#include "kvstore/client/weight_receiver.h"

namespace gradwire::kvstore {

class DenseRounds {
 public:
  /// What it works with; all of it outlives this.
  struct Parts {
    TensorTable& tensors;
    const Residuals& residuals;
    PendingRequests& pending;
    DenseClient& client;
    DeviceRounds& devices;
    PushEncoder& encoder;
    const AnswerDecoder& decoder;
    const WeightReceiver& weights;
  };
  DenseRounds(RoundContext& context, const Parts& parts) : context_(context), parts_(parts) {}

  /// Does the operation, behind those on its tensor that were given before.
  void take_in(KeyId key, Operation operation);
  /// How servers send weights to operations that begin from now on.
  void set_weight_replies(std::shared_ptr<const WeightReplies> replies) {
    weight_replies_ = std::move(replies);
  }
  /// Takes what a server answered for a part, to decode it.
  void answered(Tensor& tensor, std::size_t part, transport::Frame answer);
  /// Notes that a part of the operation in flight is over.
  void ended(Tensor& tensor, std::exception_ptr error);
  /// Fails everything in flight and to come.
  void fail(const std::exception_ptr& error);

  /// The tensors with an operation in flight.
  const std::set<Tensor*>& active() const { return active_; }
  /// Done when there are none.
  void when_idle(const Ticket& ticket);
  /// Done when servers have all that is in flight: each request is answered, or its server has said that it
  /// holds it. Asks at once: a round may take as long as its slowest worker.
  void when_handed_over(const Ticket& ticket);
  void tell_handed_over();

  /// Bytes that pushes have taken that wait for a round before theirs; until theirs is over. Any thread.
  std::uint64_t ahead_bytes() const { return ahead_bytes_; }
  /// Of gradients that callers have pushed. Any thread.
  std::uint64_t raw_bytes() const { return raw_bytes_; }

 private:
  void start_next(Tensor& tensor);
  void start(Tensor& tensor);
  void start_init(Tensor& tensor);
  void start_pull(Tensor& tensor);
  void start_state(Tensor& tensor);
  void start_push(Tensor& tensor);
  void prepare_answer(Tensor& tensor);
  void push_part(Tensor& tensor, std::size_t part);
  static void copy_value(const Tensor& tensor, ArrayView out);
  void bring_value(Tensor& tensor);
  bool stage(Operation& operation);
  void stage_held(Tensor& tensor);
  static bool is_payload_already(const Tensor& tensor);
  void encode(Tensor& tensor, std::size_t part);
  void encoded(Tensor& tensor, std::size_t part, PushPayload payload, std::exception_ptr error);
  void decode(Tensor& tensor, std::size_t part, transport::Frame& answer,
              std::chrono::steady_clock::time_point arrived);
  void damaged(Tensor& tensor, std::size_t part);
  void job_done(Tensor& tensor, std::exception_ptr error);
  DeviceRounds::Next job_of(Tensor& tensor);
  void finish(Tensor& tensor, std::exception_ptr error);
  static bool is_handed_over(const Tensor& tensor);

  RoundContext& context_;
  const Parts parts_;
  std::shared_ptr<const WeightReplies> weight_replies_ =
      std::make_shared<const WeightReplies>();  // owners: this and tensors
  std::set<Tensor*> active_;
  std::vector<Ticket> waiting_idle_, waiting_handed_over_;
  std::exception_ptr failure_;
  std::atomic<std::uint64_t> raw_bytes_{0};
  std::atomic<std::uint64_t> ahead_bytes_{0};
};

}  // namespace gradwire::kvstore
