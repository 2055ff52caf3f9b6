// RoundSums makes a round's answer from its payloads, in rank order: their sum, encoded as workers want it,
// or, with an optimizer, the new weight.
//
// Threading: one owner. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "compress/codec.h"
#include "compress/payload/segmented.h"
#include "kvstore/aggregate/arrival_set.h"
#include "kvstore/aggregate/contributions.h"
#include "kvstore/aggregate/partition.h"
#include "kvstore/aggregate/servers_updater.h"
#include "kvstore/aggregate/weight_sender.h"
#include "kvstore/wire/codec_cache.h"
#include "transport/frame.h"

namespace gradwire::kvstore {

/// Events of a round, for recorders of spans.
enum class RoundMoment : std::uint8_t {
  kTaken,        ///< a push was checked and kept; of that push
  kAllHere,      ///< the sum begins; like what follows, of the first push
  kSummed,       ///< and encoded, in the same pass
  kAnswerReady,  ///< sealed
};

class RoundSums {
 public:
  using Watch = std::function<void(RoundMoment, const transport::FrameHeader& push)>;
  /// What it works with; all of it outlives this.
  struct Parts {
    CodecCache& codecs;
    transport::BufferPool& pool;
    const ServersUpdater& updater;
    WeightSender& weights;
    const ArrivalSet& joined;
  };
  RoundSums(std::uint32_t workers, const Parts& parts) : workers_(workers), parts_(parts) {}

  void set_watch(Watch watch) { watch_ = std::move(watch); }
  void note(RoundMoment moment, const transport::FrameHeader& push) const {
    if (watch_) watch_(moment, push);
  }

  /// The answer to a round; a kError where its payloads are fine one by one, but not together.
  transport::Frame answer(Partition& partition, const Round& round);
  /// Has a partition's weight go on by one push. Throws what its codec or its optimizer does.
  void apply(Partition& partition, transport::Frame push);
  /// Where a job has summed so far, what a pull brings is the last sum, to the bit, and so what an optimizer
  /// goes on from. Not so of several tensors in one: where servers have an optimizer, each tensor goes alone.
  /// contributors: workers in a sum.
  void begin_with_sum(Partition& partition, std::size_t contributors);

  /// Calls use(codec) with the codec of a push, which for several tensors in one depends on the payload (or
  /// on the head of one, integer_sums.h). Throws DecodeError for a codec that does not exist.
  template <typename Use>
  auto with_codec(const transport::FrameHeader& header, compress::Payload payload, const Use& use) {
    const compress::Codec& codec = parts_.codecs.of(header);
    if ((header.flags & transport::kFlagSegments) == 0) return use(codec);
    const compress::Segmented whole(codec, compress::Segmented::segments_of(payload, header.count));
    return use(static_cast<const compress::Codec&>(whole));
  }

 private:
  transport::Frame reply(Partition& partition, const Round& round);
  transport::Frame sum(Partition& partition, const Round& round, const compress::Codec& codec,
                       const Contributions& contributions);
  transport::Frame sum_with_leftover(Partition& partition, const Round& round, const compress::Codec& codec,
                                     const Contributions& contributions);
  static std::vector<float> decoded_sum(Partition& partition, const compress::Codec& codec,
                                        const Contributions& contributions);
  void update(Partition& partition, const Round& round, const compress::Codec& codec,
              const Contributions& contributions);

  const std::uint32_t workers_;
  const Parts parts_;
  Watch watch_;
};

}  // namespace gradwire::kvstore
