#include "kvstore/aggregate/aggregator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include "kvstore/release_memory.h"
#include "kvstore/wire/lossless_frames.h"

namespace gradwire::kvstore {
namespace {

using compress::ReplyKind;
using transport::Buffer;
using transport::Frame;
using transport::FrameHeader;
using transport::Kind;

/// Largest partition, in elements; far above any partition size, it keeps sizes from overflowing.
constexpr std::uint64_t kMaxCount = std::uint64_t{1} << 40;

compress::Payload view(const Buffer& buffer) { return buffer.bytes(); }

}  // namespace

// A push goes through check_push(), which knows no round, and open_round(). The last one of a round makes
// complete_next() call complete(), whose publish() answers everybody and keeps the answer. What a worker asks
// again is answered from what is kept: by answer_again() once the round is over, by on_probe() before.
//
// Where sums go upstream, complete_next() hands the sum to forward_sum() instead. The round stays in `rounds`
// until answer() ends it, so that probes still find who has pushed.

Aggregator::Aggregator(std::uint32_t workers, Sealing sealing)
    : workers_(workers),
      sealing_(sealing),
      contributors_(workers),
      joined_(workers, "join"),
      async_workers_(workers),
      stragglers_(std::make_shared<StragglerCounts>(workers)),
      weights_(workers, pool_),
      sums_(workers, {codecs_, pool_, updater_, weights_, joined_}),
      async_(partitions_, async_workers_, gate_, sums_, weights_, codecs_, sealing),
      states_(partitions_, updater_, async_workers_) {
  std::iota(contributors_.begin(), contributors_.end(), 0U);
}

void Aggregator::handle(std::uint32_t worker, Frame frame, std::vector<Answer>& answers) {
  const FrameHeader header = frame.header;
  try {
    if (worker >= workers_)
      throw Refused{Refusal::kFinal, fmt::format("worker {} is not one of {}", worker, workers_)};
    if (header.count > kMaxCount) {
      throw Refused{Refusal::kFinal,
                    fmt::format("count {} of key {} is above {}", header.count, header.key, kMaxCount)};
    }
    // Compared here, on the thread that uses the payload: the Messenger does not read it
    // (transport/messenger.h).
    if (!frame.payload.is_intact()) {
      throw Refused{Refusal::kSendAgain,
                    fmt::format("key {} offset {}: the payload arrived damaged; send it again", header.key,
                                header.offset)};
    }
    switch (header.kind) {
      case Kind::kInit:
        return on_init(worker, frame, answers);
      case Kind::kPush:
        return on_push(worker, std::move(frame), answers);
      case Kind::kPull:
        return on_pull(worker, header, answers);
      case Kind::kProbe:
        return on_probe(worker, header, answers);
      case Kind::kReadState:
        return answers.push_back({worker, states_.read(header)});
      case Kind::kWriteState:
        return answers.push_back({worker, states_.write(worker, frame)});
      case Kind::kCommand:
        return on_command(worker, frame, answers);
      default:
        throw Refused{Refusal::kFinal,
                      fmt::format("frame kind {} is no request to a server", static_cast<int>(header.kind))};
    }
  } catch (const Refused& refused) {
    answers.push_back({worker, refusal_of(header, refused)});
  } catch (const std::exception& error) {  // an allocation or codec that failed for this request
    answers.push_back({worker, answer_to(header, Kind::kError, text_payload(error.what()))});
  }
}

void Aggregator::on_init(std::uint32_t worker, const Frame& frame, std::vector<Answer>& answers) {
  const FrameHeader& header = frame.header;
  if (header.dtype > static_cast<std::uint8_t>(Dtype::kFloat64)) {
    throw Refused{Refusal::kFinal, fmt::format("init of key {}: elements of dtype {} are unknown here",
                                               header.key, header.dtype)};
  }
  const bool is_float64 = dtype_of(header) == Dtype::kFloat64;
  const std::size_t width = is_float64 ? sizeof(double) : sizeof(float);
  if (header.count == 0 || frame.payload.size_bytes() != header.count * width) {
    throw Refused{Refusal::kFinal, fmt::format("init of key {}: {} bytes do not hold {} elements of {} bytes",
                                               header.key, frame.payload.size_bytes(), header.count, width)};
  }
  auto& partition = partitions_[{header.key, header.offset}];
  // A repeated request must undo neither pushes nor what was given later, by whomever.
  if (partition.next_step == 0 && partition.rounds.empty() && !partition.came_before(worker, header.step)) {
    partition.given[worker] = header.step;
    // What workers hold is of the value before. The next weight goes whole.
    release_memory(partition.held_by_workers);
    partition.count = header.count;
    partition.value.resize(header.count);
    partition.first64.resize(is_float64 ? header.count : 0);
    if (is_float64) {
      std::memcpy(partition.first64.data(), view(frame.payload).data(), frame.payload.size_bytes());
      std::ranges::transform(partition.first64, partition.value.begin(),
                             [](double element) { return static_cast<float>(element); });
      // Servers with an optimizer keep weights in float32, also for pulls before the first push.
      if (updater_.is_set()) partition.first64 = {};
    } else {
      std::memcpy(partition.value.data(), view(frame.payload).data(), frame.payload.size_bytes());
    }
  }
  // Also where nothing was stored: the first acknowledgement may have been lost.
  answers.push_back({worker, answer_to(header, Kind::kAck)});
}

void Aggregator::on_push(std::uint32_t worker, Frame frame, std::vector<Answer>& answers) {
  const FrameHeader header = frame.header;  // as it came: restored, a payload does not say that it was short
  check_push(worker, frame);
  auto& partition = partitions_[{header.key, header.offset}];
  // Without an optimizer a key may be pushed before it has a first value. Its first push then sets the size.
  partition.count = header.count;
  if (async_workers_.has_policy()) return async_.push(worker, partition, std::move(frame), answers);
  // Repeated: the answer was lost, or is on its way.
  if (header.step < partition.next_step) return answer_again(partition, worker, header, answers);
  open_round(worker, header, partition, std::move(frame), answers);
}

/// Throws where a push cannot be taken, whatever round it is of; restores its payload.
void Aggregator::check_push(std::uint32_t worker, Frame& frame) {
  const FrameHeader header = frame.header;
  if (header.count == 0)
    throw Refused{Refusal::kFinal, fmt::format("push of key {} holds no element", header.key)};
  if (!std::ranges::binary_search(contributors_, worker)) {
    throw Refused{
        Refusal::kFinal,
        fmt::format("push of key {}: worker {} is not awaited here, but worker {}; a host's workers push "
                    "through the first of them",
                    header.key, worker, fmt::join(contributors_, ", "))};
  }
  const auto& codec = codecs_.of(header);
  const auto kind = static_cast<ReplyKind>(header.reply);
  if (header.reply > static_cast<std::uint8_t>(ReplyKind::kSame) ||
      (kind == ReplyKind::kExact && !codec.has_exact_reply())) {
    throw Refused{Refusal::kFinal, fmt::format("push of key {}: codec {} has no reply kind {}", header.key,
                                               codec.name(), header.reply)};
  }
  const auto known = partitions_.find({header.key, header.offset});
  if (known != partitions_.end() &&
      known->second.count != header.count) {  // before anything of that size is made
    throw Refused{Refusal::kFinal, fmt::format("push of key {} offset {}: {} elements given, {} expected",
                                               header.key, header.offset, header.count, known->second.count)};
  }
  try {
    restore(frame, pool_);
    sums_.with_codec(header, view(frame.payload), [&](const compress::Codec& whole) {
      whole.validate(view(frame.payload), header.count);
    });
    // A payload that came without a checksum counts as intact. If it was damaged, that shows only here.
  } catch (const compress::DecodeError& error) {
    throw Refused{Refusal::kSendAgain,
                  fmt::format("push of key {} offset {}: {}", header.key, header.offset, error.what())};
  }
  if (async_workers_.has_policy()) gate_.require_optimizer(header, updater_.is_set());
  if (updater_.is_set() && (known == partitions_.end() || known->second.value.empty())) {
    throw Refused{
        Refusal::kFinal,
        fmt::format("push of key {}: the optimizer has no weight yet; init the key first", header.key)};
  }
}

void Aggregator::open_round(std::uint32_t worker, const FrameHeader& header, Partition& partition,
                            Frame frame, std::vector<Answer>& answers) {
  // It counts as absent from the round, and must not count as arrived too.
  if (joined_.is_away(worker)) {
    throw Refused{Refusal::kFinal,
                  fmt::format("push of key {} step {}: worker {} has joined, and may push when all have",
                              header.key, header.step, worker)};
  }
  // A worker has one round of a key in flight, so only one with a bug, or a hostile one, comes here.
  if (RoundGate::is_too_far_ahead(header.step, partition.next_step)) {
    throw Refused{Refusal::kFinal,
                  fmt::format("push of key {} is for step {}, more than {} ahead of step {}", header.key,
                              header.step, RoundGate::kMaxStepsAhead, partition.next_step)};
  }
  auto [found, opened] = partition.rounds.try_emplace(header.step);
  Round& round = found->second;
  if (opened) {
    round.first = header;
    round.payloads.resize(workers_);
  }
  accept(worker, round, std::move(frame));
  // As it was sent: accept() has got it restored. Not before it, which may refuse the push.
  round.takes_shortened |= (header.flags & transport::kFlagLossless) != 0;
  complete_next(partition, answers);
  // Who pushes after a worker has left hears at once that the round will never be whole.
  for (const std::uint32_t left : gate_.gone().ranks()) {
    // A round that is complete has been erased, and `round` with it. So the step is compared first.
    if (header.step < partition.next_step || round.payloads[left] || joined_.is_away(left)) continue;
    return fail_waiters(round, gate_.describe(left, header.step, header.key), answers);
  }
}

void Aggregator::accept(std::uint32_t worker, Round& round, Frame frame) {
  const FrameHeader& header = frame.header;
  if (round.payloads[worker]) return;  // repeated
  gate_.require_alike(worker, header, round.first);
  // One worker's NaN goes into the answer to all: ranks that skip such a step must all skip it.
  round.flags |= header.flags & transport::kFlagNonfinite;
  round.program_steps.add(worker, header.program_step);
  if (content_of(header) == Content::kWeightDelta) round.holders.insert(worker);
  round.payloads[worker] = std::move(frame.payload);
  ++round.arrived;
  // The others have waited for this push.
  if (is_whole(round)) stragglers_->note(worker);
  sums_.note(Moment::kTaken, header);
}

bool Aggregator::is_whole(const Round& round) const {
  // Nobody counts twice: a worker joins once its pushes are answered, and does not push until all have
  // joined.
  return round.arrived + joined_.away() == contributors_.size();
}

void Aggregator::complete_next(Partition& partition, std::vector<Answer>& answers) {
  for (auto next = partition.rounds.begin();
       next != partition.rounds.end() && next->first == partition.next_step && is_whole(next->second);
       next = partition.rounds.begin()) {
    // One at a time: answer() ends this round and looks at the next.
    if (upstream_) return forward_sum(partition, next->second);
    Round round = std::move(next->second);
    partition.rounds.erase(next);
    complete(partition, std::move(round), answers);
  }
}

void Aggregator::complete_round(const FrameHeader& header, std::vector<Buffer> payloads,
                                std::vector<Answer>& answers) {
  Round round = open_whole(header);
  for (Buffer& payload : payloads) round.payloads.emplace_back(std::move(payload));
  complete(partitions_[{header.key, header.offset}], std::move(round), answers);
}

void Aggregator::complete_round(const FrameHeader& header, IntegerContributions contributions,
                                std::vector<Answer>& answers) {
  Round round = open_whole(header);
  round.integers = std::move(contributions);
  complete(partitions_[{header.key, header.offset}], std::move(round), answers);
}

Round Aggregator::open_whole(const FrameHeader& header) {
  Partition& partition = partitions_[{header.key, header.offset}];
  partition.count = header.count;
  // A library gives rounds that are whole, and in order. None of them waits in `rounds`.
  partition.next_step = header.step;
  Round round;
  round.first = header;
  round.flags = header.flags & transport::kFlagNonfinite;
  return round;
}

void Aggregator::complete(Partition& partition, Round round, std::vector<Answer>& answers) {
  Frame answer = sums_.answer(partition, round);
  if (seals(sealing_, codecs_.of(round.first))) answer.payload.seal();
  sums_.note(Moment::kAnswerReady, round.first);
  publish(partition, std::move(answer), round.holders, answers);
}

void Aggregator::publish(Partition& partition, Frame answer, const std::set<std::uint32_t>& holders,
                         std::vector<Answer>& answers) {
  ++partition.next_step;
  // Kept until the next round is complete, because a worker that did not get it asks again.
  partition.answer = std::move(answer);
  std::optional<Frame> to_others;
  for (const std::uint32_t worker : contributors_) {
    if (joined_.is_away(worker)) continue;
    if (holders.contains(worker)) {
      answers.push_back({worker, share(*partition.answer)});
      continue;
    }
    // For workers that have not said that they hold the weight before. It is the answer itself if that is no
    // delta, and otherwise made once for all of them.
    if (!to_others) to_others = last_answer(partition, Content::kWeight);
    answers.push_back({worker, share(*to_others)});
  }
}

/// For a worker that has, or has not (held), the weight that a delta changes.
Frame Aggregator::last_answer(const Partition& partition, Content held) {
  return weights_.last_answer(partition, held, seals(sealing_, codecs_.of(partition.answer->header)));
}

/// A partition that goes on from a checkpoint has steps behind it and no answer yet.
void Aggregator::answer_again(const Partition& partition, std::uint32_t worker, const FrameHeader& header,
                              std::vector<Answer>& answers) {
  // Nobody needs an older answer: a worker pushes a step only after it has the answer to the one before.
  if (header.step + 1 == partition.next_step && partition.answer)
    answers.push_back({worker, last_answer(partition, content_of(header))});
}

void Aggregator::forward_sum(Partition& partition, Round& round) {
  // A push that is repeated while the sum is away leads here again.
  if (round.is_upstream) return;
  round.is_upstream = true;
  Frame sum = sums_.answer(partition, round);
  for (auto& payload : round.payloads) {
    // Empty, but still there: it says that this worker has pushed, and makes a repeated push change nothing.
    if (payload) payload = Buffer();
  }
  upstream_(std::move(sum));
}

void Aggregator::answer(Frame frame, std::vector<Answer>& answers) {
  const auto found = partitions_.find({frame.header.key, frame.header.offset});
  if (found == partitions_.end()) return;
  Partition& partition = found->second;
  if (frame.header.step != partition.next_step || partition.rounds.erase(partition.next_step) == 0) return;
  // On a host replies are of codec none, which are sealed only where all are.
  if (sealing_ == Sealing::kAll) frame.payload.seal();
  publish(partition, std::move(frame), {}, answers);
  complete_next(partition, answers);
}

void Aggregator::on_pull(std::uint32_t worker, const FrameHeader& header, std::vector<Answer>& answers) {
  const auto found = partitions_.find({header.key, header.offset});
  if (found == partitions_.end() || found->second.count != header.count) {
    throw Refused{
        Refusal::kFinal,
        fmt::format(
            "pull of key {} offset {} count {}: nothing of that size is held here; init or push it first",
            header.key, header.offset, header.count)};
  }
  Partition& partition = found->second;
  // Without an optimizer the sum of the last round has taken the value's place.
  if (partition.value.empty() && partition.answer) {
    Frame frame = share(*partition.answer);
    frame.header.priority = header.priority;
    // The pull's own step: a late answer must not be taken for one to a later pull.
    frame.header.step = header.step;
    answers.push_back({worker, std::move(frame)});
    return;
  }
  if (partition.value.empty()) {
    throw Refused{Refusal::kFinal,
                  fmt::format("pull of key {}: its first round is not complete; pull after a push of "
                              "your own, or init it",
                              header.key)};
  }
  if (!partition.first64.empty()) return answers.push_back({worker, weights_.first_value(partition, header)});
  answers.push_back({worker, async_workers_.has_policy() ? async_.pull(worker, partition, header)
                                                         : weights_.weight(partition, header)});
}

void Aggregator::on_probe(std::uint32_t worker, const FrameHeader& header, std::vector<Answer>& answers) {
  const auto found = partitions_.find({header.key, header.offset});
  // Nothing of the partition has come, so this worker's push was lost as well.
  if (found == partitions_.end()) {
    answers.push_back({worker, answer_to(header, Kind::kMissing)});
    return;
  }
  Partition& partition = found->second;
  if (async_workers_.has_policy()) return async_.probe(worker, partition, header, answers);
  if (header.step < partition.next_step) return answer_again(partition, worker, header, answers);
  const auto round = partition.rounds.find(header.step);
  // The push was lost. The worker still has its payload, and sends it again.
  if (round == partition.rounds.end() || !round->second.payloads[worker]) {
    answers.push_back({worker, answer_to(header, Kind::kMissing)});
    return;
  }
  std::vector<std::uint32_t> awaited;
  for (const std::uint32_t rank : contributors_) {
    if (round->second.payloads[rank] || joined_.is_away(rank)) continue;
    if (gate_.gone().contains(rank)) {  // this was said before, and may have been lost
      const std::string text = gate_.describe(rank, header.step, header.key);
      answers.push_back({worker, answer_to(header, Kind::kError, text_payload(text))});
      return;
    }
    awaited.push_back(rank);
  }
  answers.push_back({worker, held(header, awaited)});
}

void Aggregator::forget_worker(std::uint32_t worker, std::vector<Answer>& answers, const std::string& error) {
  // Its pushes make no round here. They go through the leader of its host, which counts.
  if (!std::ranges::binary_search(contributors_, worker)) return;
  gate_.forget_worker(worker, error);
  async_workers_.forget(worker);
  if (async_workers_.has_policy()) {
    // It gets no more answers, and those that waited for its clock do not have to.
    async_.forget_worker(worker);
    async_.answer_held(answers);
  }
  for (auto& [id, partition] : partitions_) {
    for (auto& [step, round] : partition.rounds) {
      // It has pushed this round, or the round goes on without it.
      if (round.payloads[worker] || joined_.is_away(worker)) continue;
      fail_waiters(round, gate_.describe(worker, step, id.key), answers);
    }
  }
}

void Aggregator::copy_payloads_of(std::uint32_t worker) {
  for (auto& [id, partition] : partitions_) {
    for (auto& [step, round] : partition.rounds) {
      if (auto& payload = round.payloads[worker]) payload = payload->copy();
    }
  }
}

void Aggregator::fail_waiters(const Round& round, const std::string& text, std::vector<Answer>& answers) {
  for (std::uint32_t rank = 0; rank < workers_; ++rank) {
    // The round stays open. A worker that asks again, because this error was lost, gets the same one.
    if (!round.payloads[rank] || gate_.gone().contains(rank)) continue;
    answers.push_back({rank, answer_to(round.first, Kind::kError, text_payload(text))});
  }
}

}  // namespace gradwire::kvstore
