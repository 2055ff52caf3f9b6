// Aggregator decides what a Server does with dense keys: contributions in, answers out. No thread, no
// socket, no clock.
//
// A round is one (key, offset, step). It is complete when every worker's push is here. The sum is then made
// in rank order in one pass, encoded once, and answered to all. Requests may be repeated; (key, offset,
// step, sender) identifies them. The last answer is kept until the next round of that partition is complete.
// Workers that have joined (arrival_set.h) are not awaited: a round consists of those that still push.
// With an optimizer answers are weights, as weight_replies.h says (weight_sender.h).
// Where workers of a host sum first (hierarchy.h), only some workers' pushes make a round, or the main job
// turns its sum into the answer. Where pushes are applied at once (push_clocks.h), each is a round of its
// own (async_rounds.h).
//
// Threading: one owner. Lifetime: payload Buffers are held until their round is complete.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kvstore/aggregate/arrival_set.h"
#include "kvstore/aggregate/async_rounds.h"
#include "kvstore/aggregate/contributions.h"
#include "kvstore/aggregate/partition.h"
#include "kvstore/aggregate/push_clocks.h"
#include "kvstore/aggregate/round_gate.h"
#include "kvstore/aggregate/round_sums.h"
#include "kvstore/aggregate/sealing.h"
#include "kvstore/aggregate/servers_updater.h"
#include "kvstore/aggregate/state_transfer.h"
#include "kvstore/aggregate/straggler_counts.h"
#include "kvstore/aggregate/weight_sender.h"
#include "kvstore/wire/answer.h"
#include "kvstore/wire/codec_cache.h"
#include "transport/frame.h"

namespace gradwire::kvstore {

class Aggregator {
 public:
  using Sealing = kvstore::Sealing;
  /// Takes the sum of a round, as the reply that it would be.
  using Upstream = std::function<void(transport::Frame sum)>;

  using Moment = RoundMoment;
  using Watch = RoundSums::Watch;

  /// Requires workers >= 1.
  explicit Aggregator(std::uint32_t workers, Sealing sealing = Sealing::kLossy);
  Aggregator(const Aggregator&) = delete;  // its parts refer to one another
  Aggregator& operator=(const Aggregator&) = delete;

  /// From now on a round is complete when these workers' pushes are here, and others may not push. Throws
  /// std::invalid_argument for ranks that are none or not ascending, and once a round has begun.
  void set_contributors(std::vector<std::uint32_t> ranks);
  /// From now on every push is a round of its own. Throws std::invalid_argument where sums go upstream, and
  /// once a round has begun.
  void set_async(const AsyncPolicy& policy);
  /// Gives the sums of rounds to upstream, which has them answered by answer().
  void set_upstream(Upstream upstream) { upstream_ = std::move(upstream); }
  /// Counts, from now on, the workers that rounds wait for, together with others.
  void set_stragglers(std::shared_ptr<StragglerCounts> pushes) { stragglers_ = std::move(pushes); }
  /// Tells watch of every round's moments from now on.
  void set_watch(Watch watch) { sums_.set_watch(std::move(watch)); }
  /// Answers the round whose sum was given to upstream; the frame has that one's key, offset and step.
  void answer(transport::Frame frame, std::vector<Answer>& answers);

  /// Takes one frame from a worker and appends the answers and their receivers. Never throws for what a peer
  /// sent: bad requests are answered with kError and change nothing.
  void handle(std::uint32_t worker, transport::Frame frame, std::vector<Answer>& answers);

  /// Answers a round of which all payloads are here, in rank order, or one that is their sum already.
  void complete_round(const transport::FrameHeader& header, std::vector<transport::Buffer> payloads,
                      std::vector<Answer>& answers);
  /// Takes a round whose codes are summed already. Requires a codec with integer_sums().
  void complete_round(const transport::FrameHeader& header, IntegerContributions contributions,
                      std::vector<Answer>& answers);

  /// Notes that a worker will push no more. Rounds that need it fail for those that wait for them, now and
  /// later; nobody waits for its clock. error: the error that has ended it, if one has.
  void forget_worker(std::uint32_t worker, std::vector<Answer>& answers, const std::string& error = {});

  /// From now on holds copies of what the worker has pushed, whose memory may go.
  void copy_payloads_of(std::uint32_t worker);

  /// Sends each worker a whole weight before the next delta to it, because another server sent what it
  /// holds.
  void forget_sent() { WeightSender::forget_sent(partitions_); }

  /// As RoundSums::with_codec().
  template <typename Use>
  auto with_codec(const transport::FrameHeader& header, compress::Payload payload, const Use& use) {
    return sums_.with_codec(header, payload, use);
  }

 private:
  void on_init(std::uint32_t worker, const transport::Frame& frame, std::vector<Answer>& answers);
  void on_push(std::uint32_t worker, transport::Frame frame, std::vector<Answer>& answers);
  void on_pull(std::uint32_t worker, const transport::FrameHeader& header, std::vector<Answer>& answers);
  void on_probe(std::uint32_t worker, const transport::FrameHeader& header, std::vector<Answer>& answers);
  void check_push(std::uint32_t worker, transport::Frame& frame);
  void open_round(std::uint32_t worker, const transport::FrameHeader& header, Partition& partition,
                  transport::Frame frame, std::vector<Answer>& answers);
  void accept(std::uint32_t worker, Round& round, transport::Frame frame);
  bool is_whole(const Round& round) const;
  void complete_next(Partition& partition, std::vector<Answer>& answers);
  void complete(Partition& partition, Round round, std::vector<Answer>& answers);
  void forward_sum(Partition& partition, Round& round);
  void publish(Partition& partition, transport::Frame answer, const std::set<std::uint32_t>& holders,
               std::vector<Answer>& answers);
  void answer_again(const Partition& partition, std::uint32_t worker, const transport::FrameHeader& header,
                    std::vector<Answer>& answers);
  transport::Frame last_answer(const Partition& partition, Content held);
  Round open_whole(const transport::FrameHeader& header);
  void fail_waiters(const Round& round, const std::string& text, std::vector<Answer>& answers);
  // aggregator_commands.cpp
  void on_command(std::uint32_t worker, const transport::Frame& frame, std::vector<Answer>& answers);
  void on_join(std::uint32_t worker, const transport::FrameHeader& header, std::vector<Answer>& answers);
  void set_optimizer(const std::string& text);
  void require_no_round(const char* what) const;

  const std::uint32_t workers_;
  const Sealing sealing_;
  std::vector<std::uint32_t> contributors_;  ///< ascending
  ArrivalSet joined_;
  AsyncWorkers async_workers_;
  std::shared_ptr<StragglerCounts> stragglers_;  // owners: the aggregators of one server
  Upstream upstream_;
  Partitions partitions_;
  CodecCache codecs_;
  ServersUpdater updater_;
  transport::BufferPool pool_;
  RoundGate gate_{"key", Refusal::kFinal};
  WeightSender weights_;
  RoundSums sums_;
  AsyncRounds async_;
  StateTransfer states_;
};

}  // namespace gradwire::kvstore
