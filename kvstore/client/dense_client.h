// DenseClient sends servers the requests for parts of tensors, and matches each answer to its part. A push
// is not sent twice: the client first asks the server whether it has it.
//
// Threading: the RoundThread's own.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "kvstore/client/failover.h"
#include "kvstore/client/push_encoder.h"
#include "kvstore/client/submission_order.h"
#include "kvstore/client/tensor_table.h"
#include "kvstore/client/weight_receiver.h"
#include "kvstore/runtime/outbox.h"
#include "kvstore/runtime/pending_requests.h"
#include "kvstore/runtime/staleness_counts.h"

namespace gradwire::kvstore {

class DenseClient {
 public:
  using Clock = PendingRequests::Clock;

  /// What becomes of requests.
  struct Events {
    std::function<void(Tensor&, std::size_t part, transport::Frame)> answered;  ///< with values, to decode
    /// Without any; error: its server refused it, and no other worker waits for it.
    std::function<void(Tensor&, std::exception_ptr)> ended;
    std::function<void(std::exception_ptr)> lost;  ///< a round that others share
    std::function<void(std::exception_ptr)> fail;  ///< likewise, but later: whoever called is not done
  };
  struct Settings {
    std::chrono::milliseconds question_timeout{0};  ///< then what repeats no payload is asked again
    std::chrono::milliseconds retry_timeout{0};     ///< and what does
    bool async = false;                             ///< servers apply each push by itself
    bool in_order = false;                          ///< pushes go as they were submitted
  };
  /// All that is given by reference outlives this.
  DenseClient(TensorTable& tensors, PendingRequests& pending, Outbox& outbox, const Failover& failover,
              const WeightReceiver& weights, StalenessCounts& staleness, const Settings& settings,
              Events events);

  /// "server 2", which has the part.
  std::string name_of_server(const TensorPart& part) const { return failover_.name(part.part.server); }
  /// Notes a push that was submitted, where pushes go in that order.
  void expect(const Tensor& tensor, Operation& push);
  /// Sends a part's first request of the operation in flight.
  void send(Tensor& tensor, std::size_t part, transport::Kind kind, PushPayload payload = {});
  /// Asks again for a part whose answer arrived damaged. Returns false where that was once too often.
  bool ask_again(Tensor& tensor, std::size_t part);
  /// Asks for what no server has said that it has.
  void ask_what_is_not_held(Tensor& tensor);
  /// Takes what a server sent that concerns a tensor.
  void handle(transport::Node from, transport::Frame frame);
  /// Of an answer that has arrived whole, so that each push counts once. Any thread.
  void note_staleness(const TensorPart& part, const transport::FrameHeader& answer);

  /// No tensor has a round in flight.
  void all_ended() { outbox_.all_answered(); }

  /// Payloads of pushes.
  std::uint64_t encoded_bytes() const { return encoded_bytes_; }

 private:
  transport::FrameHeader header_of(const Tensor& tensor, std::size_t part) const;
  static std::uint64_t step_of(const Tensor& tensor, const TensorPart& part);
  void note_request(Tensor& tensor, std::size_t part);
  void repeat(Tensor& tensor, std::size_t part);
  void send_copy(Tensor& tensor, std::size_t part);
  void note_answer(const TensorPart& part);
  void refused(Tensor& tensor, std::size_t part, const transport::Frame& frame);

  TensorTable& tensors_;
  PendingRequests& pending_;
  Outbox& outbox_;
  const Failover& failover_;
  const WeightReceiver& weights_;
  StalenessCounts& staleness_;
  const Settings settings_;
  const Events events_;
  const std::unique_ptr<SubmissionOrder> in_order_;
  std::atomic<std::uint64_t> encoded_bytes_{0};
};

}  // namespace gradwire::kvstore
