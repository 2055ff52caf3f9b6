// Aggregator is what a Server knows and decides: contributions in, answers out. No thread, no socket, no
// clock.
//
// A round is one (key, offset, step): it is complete when every worker's push is here. The sum is then made
// in rank order in one pass, encoded once, and answered to all. Requests may be repeated; they are told apart
// by (key, offset, step, sender). The last answer is kept until the next round of that partition is complete.
// Workers that have joined (attendance.h) are not awaited: a round is of those that still push.
// With an optimizer answers are weights, as weight_replies.h says (aggregator_weights.cpp).
// Where workers of a host sum first (hierarchy.h), only some workers' pushes make a round, or somebody
// upstream turns its sum into the answer. Where pushes are applied at once (at_once.h), each is a round of
// its own (aggregator_at_once.cpp).
//
// Threading: one owner. Lifetime: payload Buffers are held until their round is complete.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "compress/codec.h"
#include "compress/payload/segmented.h"
#include "kvstore/aggregate/at_once.h"
#include "kvstore/aggregate/attendance.h"
#include "kvstore/aggregate/contributions.h"
#include "kvstore/aggregate/last_pushes.h"
#include "kvstore/aggregate/program_steps.h"
#include "kvstore/aggregate/updater.h"
#include "kvstore/leavers.h"
#include "kvstore/wire/answer.h"
#include "kvstore/wire/codec_table.h"
#include "kvstore/wire/protocol.h"
#include "kvstore/wire/weight_replies.h"
#include "transport/frame.h"

namespace gradwire::kvstore {

class Aggregator {
 public:
  /// Which replies are sealed as soon as they are made (transport/buffer.h): while the cache has them, and
  /// once for all workers. Those of a lossy codec always are.
  enum class Sealing : std::uint8_t { kLossy, kAll };

  /// Takes the sum of a round, as the reply that it would be.
  using Upstream = std::function<void(transport::Frame sum)>;

  /// What happens to a round, for who wants to note when.
  enum class Moment : std::uint8_t {
    kTaken,        ///< a push was checked and kept; of that push
    kAllHere,      ///< the sum begins; like what follows, of the first push
    kSummed,       ///< and encoded, in the same pass
    kAnswerReady,  ///< sealed
  };
  using Watch = std::function<void(Moment, const transport::FrameHeader& push)>;

  /// Requires workers >= 1.
  explicit Aggregator(std::uint32_t workers, Sealing sealing = Sealing::kLossy);

  /// From now on a round is complete when these workers' pushes are here, and others may not push. Throws
  /// std::invalid_argument for ranks that are none or not ascending, and once a round has begun.
  void set_contributors(std::vector<std::uint32_t> ranks);
  /// From now on every push is a round of its own. Throws std::invalid_argument where sums go upstream, and
  /// once a round has begun.
  void set_at_once(const AtOnce& policy);
  /// Gives the sums of rounds to upstream, which has them answered by answer().
  void set_upstream(Upstream upstream) { upstream_ = std::move(upstream); }
  /// Counts for whom rounds wait together with others from now on.
  void set_last_pushes(std::shared_ptr<LastPushes> pushes) { last_pushes_ = std::move(pushes); }
  /// Tells watch of every round's moments from now on.
  void set_watch(Watch watch) { watch_ = std::move(watch); }
  /// Answers the round whose sum was given to upstream; the frame has that one's key, offset and step.
  void answer(transport::Frame frame, std::vector<Answer>& answers);

  /// Takes one frame from a worker and appends what is to be answered, to whom. Never throws for what a peer
  /// sent: bad requests are answered with kError and change nothing.
  void handle(std::uint32_t worker, transport::Frame frame, std::vector<Answer>& answers);

  /// Answers a round of which all payloads are here, in rank order, or one that is their sum already.
  void complete_round(const transport::FrameHeader& header, std::vector<transport::Buffer> payloads,
                      std::vector<Answer>& answers);
  /// Likewise, a round whose codes are summed already. Requires a codec with integer_sums().
  void complete_round(const transport::FrameHeader& header, IntegerContributions contributions,
                      std::vector<Answer>& answers);

  /// Notes that a worker will push no more: rounds that need it fail for those who wait, now and later;
  /// nobody waits for its clock. error: what has ended it, if an error has.
  void forget_worker(std::uint32_t worker, std::vector<Answer>& answers, const std::string& error = {});

  /// From now on tells each worker a whole weight before the next delta to it: what it holds was told by
  /// somebody else.
  void forget_told();

  /// Calls use(codec) with the codec of a push, which for several tensors in one depends on the payload (or
  /// on the head of one, integer_sums.h). Throws DecodeError for a codec that does not exist.
  template <typename Use>
  auto with_codec(const transport::FrameHeader& header, compress::Payload payload, const Use& use) {
    const compress::Codec& codec = codecs_.of(header);
    if ((header.flags & transport::kFlagSegments) == 0) return use(codec);
    const compress::Segmented whole(codec, compress::Segmented::segments_of(payload, header.count));
    return use(static_cast<const compress::Codec&>(whole));
  }

 private:
  struct Round {
    transport::FrameHeader first;                            ///< the header all others must match
    std::vector<std::optional<transport::Buffer>> payloads;  ///< by rank
    std::optional<IntegerContributions> integers;            ///< in place of payloads
    std::uint32_t arrived = 0;
    std::uint32_t flags = 0;
    bool is_upstream = false;         ///< its sum; the payloads are given back
    bool takes_shortened = false;     ///< a worker sent a shortened payload, and reads shortened replies
    std::set<std::uint32_t> holders;  ///< workers that have the weight of the round before
    ProgramSteps program_steps;
  };
  /// What a worker was told of a weight, where pushes are applied at once and it gets deltas.
  struct Told {
    std::vector<float> weight;  ///< as the worker has it, or will have; empty: none, the next goes whole
    std::uint64_t last_pull = kNoStep;  ///< steps of a worker's pulls descend
  };
  /// Whether a request is answered for the first time. Where it comes again, nobody knows which answer the
  /// worker gets, so each must leave it with the same.
  enum class Telling : std::uint8_t { kFirst, kAgain };
  struct Partition {
    std::uint64_t count = 0;
    std::vector<float> value;     ///< first value or weight; empty: only sums are held
    std::vector<double> first64;  ///< the first value, where it is of float64; while there are no weights
    std::vector<float> residual;  ///< what replies of a lossy codec have not told yet
    std::vector<float> told;      ///< the weight as workers have it where they get deltas; empty: none has
    std::map<std::uint32_t, Told> told_each;  ///< likewise, by worker, at once
    /// By worker that gave a first value or a state: the step of the newest; they descend. For the job's
    /// life, since what comes late may come at any time.
    std::map<std::uint32_t, std::uint64_t> given;
    OptimizerState optimizer_state;
    std::uint64_t optimizer_load = 0;        ///< number of the last one that was written, from 1
    std::map<std::uint64_t, Round> rounds;   ///< by step
    std::uint64_t next_step = 0;             ///< first step not yet answered; at once: that nobody has pushed
    std::optional<transport::Frame> answer;  ///< to step next_step - 1
    std::optional<PushClocks> clocks;        ///< where pushes are applied at once
    std::map<std::uint32_t, transport::FrameHeader>
        early;  ///< by worker: pushes that went in and are not answered yet, since their worker is ahead
  };
  /// Whether a worker's first value or state came before, or one that it gave later.
  static bool came_before(const Partition& partition, std::uint32_t worker, std::uint64_t step) {
    const auto newest = partition.given.find(worker);
    return newest != partition.given.end() && step >= newest->second;
  }
  struct PartitionId {
    std::uint64_t key = 0, offset = 0;
    auto operator<=>(const PartitionId&) const = default;
  };

  void on_init(std::uint32_t worker, transport::Frame frame, std::vector<Answer>& answers);
  void on_push(std::uint32_t worker, transport::Frame frame, std::vector<Answer>& answers);
  void on_pull(std::uint32_t worker, const transport::FrameHeader& header, std::vector<Answer>& answers);
  void on_probe(std::uint32_t worker, const transport::FrameHeader& header, std::vector<Answer>& answers);
  // aggregator_state.cpp
  void on_read_state(std::uint32_t worker, const transport::FrameHeader& header,
                     std::vector<Answer>& answers);
  void on_write_state(std::uint32_t worker, const transport::Frame& frame, std::vector<Answer>& answers);
  void read_optimizer(std::uint32_t worker, const transport::FrameHeader& header,
                      std::vector<Answer>& answers) const;
  void write_optimizer(std::uint32_t worker, const transport::Frame& frame, std::vector<Answer>& answers);
  void require_own_moments(const OptimizerState& state, const transport::FrameHeader& header) const;
  void set_optimizer(const std::string& text);
  void require_no_round(const char* what) const;
  void on_command(std::uint32_t worker, const transport::Frame& frame, std::vector<Answer>& answers);
  void on_join(std::uint32_t worker, const transport::FrameHeader& header, std::vector<Answer>& answers);
  void tell(Moment moment, const transport::FrameHeader& push) const {
    if (watch_) watch_(moment, push);
  }
  void accept(std::uint32_t worker, Round& round, transport::Frame frame);
  bool is_whole(const Round& round) const;
  void complete_next(Partition& partition, std::vector<Answer>& answers);
  void complete(Partition& partition, Round round, std::vector<Answer>& answers);
  void pass_on(Partition& partition, Round& round);
  void publish(Partition& partition, transport::Frame answer, const std::set<std::uint32_t>& holders,
               std::vector<Answer>& answers);
  void answer_again(const Partition& partition, std::uint32_t worker, const transport::FrameHeader& header,
                    std::vector<Answer>& answers);
  transport::Frame sum_or_error(Partition& partition, const Round& round);
  transport::Frame reply(Partition& partition, const Round& round);
  transport::Frame reply(Partition& partition, const Round& round, const compress::Codec& codec,
                         const Contributions& contributions);
  transport::Frame sum_with_leftover(Partition& partition, const Round& round, const compress::Codec& codec,
                                     const Contributions& contributions);
  static std::vector<float> decoded_sum(Partition& partition, const compress::Codec& codec,
                                        const Contributions& contributions);
  void update(Partition& partition, const Round& round, const compress::Codec& codec,
              const Contributions& contributions);
  void seal(transport::Frame& answer, const transport::FrameHeader& push);
  Round open_whole(const transport::FrameHeader& header);
  std::string left_text(std::uint32_t worker, std::uint64_t step, std::uint64_t key) const;
  void fail_waiters(const Round& round, const std::string& text, std::vector<Answer>& answers);
  // aggregator_weights.cpp
  void begin_with_sum(Partition& partition);
  void set_weight_replies(std::string_view text);
  transport::Frame first_value(const Partition& partition, const transport::FrameHeader& request);
  transport::Frame whole_weight(std::span<const float> weight, const transport::FrameHeader& request);
  transport::Frame encoded_weight(Content content, transport::Buffer payload,
                                  const transport::FrameHeader& request) const;
  transport::Frame weight(const Partition& partition, const transport::FrameHeader& request);
  transport::Frame tell_weight(const Partition& partition, std::vector<float>& told, std::uint32_t worker,
                               const transport::FrameHeader& request);
  transport::Frame new_weight(Partition& partition, const transport::FrameHeader& request);
  transport::Frame weight_at_once(std::uint32_t worker, Partition& partition,
                                  const transport::FrameHeader& request, Telling telling);
  transport::Frame last_answer(const Partition& partition, Content held);
  // aggregator_at_once.cpp. Require at_once_.has_policy()
  PushClocks& clocks_of(Partition& partition) const;
  void on_meet(std::uint32_t worker, const transport::FrameHeader& header, std::vector<Answer>& answers);
  void apply_at_once(std::uint32_t worker, Partition& partition, transport::Frame frame,
                     std::vector<Answer>& answers);
  void probe_at_once(std::uint32_t worker, Partition& partition, const transport::FrameHeader& header,
                     std::vector<Answer>& answers);
  void answer_the_early(Partition& partition, std::vector<Answer>& answers);
  transport::Frame answer_at_once(std::uint32_t worker, Partition& partition,
                                  const transport::FrameHeader& request, Telling telling);

  std::uint32_t workers_;
  Sealing sealing_;
  std::vector<std::uint32_t> contributors_;  ///< ascending
  Attendance attendance_;
  AtOnceWorkers at_once_;
  std::shared_ptr<LastPushes> last_pushes_;  // owners: the aggregators of one server
  Upstream upstream_;
  Watch watch_;
  Leavers gone_;
  std::map<PartitionId, Partition> partitions_;
  CodecTable codecs_;
  std::unique_ptr<Updater> updater_;
  std::string optimizer_;  ///< its name
  WeightReplies weight_replies_;
  transport::BufferPool pool_;
};

}  // namespace gradwire::kvstore
