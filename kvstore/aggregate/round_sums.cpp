#include "kvstore/aggregate/round_sums.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "compress/float64_codec.h"
#include "kvstore/leftover.h"
#include "kvstore/release_memory.h"
#include "kvstore/wire/answer.h"
#include "kvstore/wire/lossless_frames.h"

namespace gradwire::kvstore {

using compress::ReplyKind;
using transport::Buffer;
using transport::Frame;
using transport::FrameHeader;
using transport::Kind;

Frame RoundSums::answer(Partition& partition, const Round& round) {
  note(RoundMoment::kAllHere, round.first);
  try {
    // Only here, when all are here: the error then reaches every worker of the round, as its answer.
    round.program_steps.require_alike();
    return reply(partition, round);
  } catch (const std::exception& error) {  // payloads fine one by one, but not together
    return answer_to(
        round.first, Kind::kError,
        text_payload(fmt::format("key {} step {}: {}", round.first.key, round.first.step, error.what())));
  }
}

Frame RoundSums::reply(Partition& partition, const Round& round) {
  const Contributions contributions =
      round.integers ? Contributions(*round.integers, workers_) : Contributions(round.payloads);
  return with_codec(round.first, contributions.front(), [&](const compress::Codec& codec) {
    if (!parts_.updater.is_set()) return sum(partition, round, codec, contributions);
    update(partition, round, codec, contributions);
    Frame frame = parts_.weights.new_weight(partition, round.first);
    frame.header.flags = round.flags;
    return frame;
  });
}

Frame RoundSums::sum(Partition& partition, const Round& round, const compress::Codec& codec,
                     const Contributions& contributions) {
  const auto kind = static_cast<ReplyKind>(round.first.reply);
  const bool keeps_residual = kind == ReplyKind::kSame && codec.lossy();
  if (!keeps_residual && !partition.residual.empty())
    return sum_with_leftover(partition, round, codec, contributions);
  // Only replies of a lossy codec leave something, so that others take no memory for it.
  if (keeps_residual && partition.residual.empty()) partition.residual.assign(partition.count, 0.0F);
  Buffer out = parts_.pool.take(codec.max_reply_size(partition.count, contributions.ways(), kind));
  const auto encoded = contributions.encode_reply(
      codec, partition.count, kind,
      kind == ReplyKind::kSame ? std::span(partition.residual) : std::span<float>(), out.bytes());
  out.truncate(encoded.bytes);
  note(RoundMoment::kSummed, round.first);
  release_memory(partition.value);  // from now on the sum is what a pull gets
  release_memory(partition.first64);
  const std::uint32_t segments = round.first.flags & transport::kFlagSegments;
  std::uint32_t flags = round.flags | segments | (encoded.nonfinite ? transport::kFlagNonfinite : 0U);
  // A shortened push shows that the workers read shortened replies. The stage knows the codes of one tensor
  // only.
  if (kind == ReplyKind::kSame && round.takes_shortened && segments == 0)
    shorten(codec, partition.count, out, flags, parts_.pool);
  Frame frame = answer_to(round.first, Kind::kReply, std::move(out));
  frame.header.content = static_cast<std::uint8_t>(Content::kSum);
  frame.header.dtype = round.first.dtype;
  frame.header.flags = with_absent(flags, parts_.joined.away());
  return frame;
}

/// The sum and what replies of another kind have left, which this kind, being without loss, could not carry.
Frame RoundSums::sum_with_leftover(Partition& partition, const Round& round, const compress::Codec& codec,
                                   const Contributions& contributions) {
  const auto answer_with = [&]<typename Element>(const std::vector<Element>& sum) {
    note(RoundMoment::kSummed, round.first);
    release_memory(partition.value);  // as above
    release_memory(partition.first64);
    Buffer out = parts_.pool.take(sum.size() * sizeof(Element));
    std::memcpy(out.bytes().data(), sum.data(), out.size_bytes());
    const bool is_finite = std::ranges::all_of(sum, [](Element value) { return std::isfinite(value); });
    // kValue says that these are numbers as they are, and not a reply of the push's codec.
    Frame frame = answer_to(round.first, Kind::kValue, std::move(out));
    frame.header.content = static_cast<std::uint8_t>(Content::kSum);
    frame.header.dtype = round.first.dtype;
    frame.header.flags =
        with_absent(round.flags | (is_finite ? 0U : transport::kFlagNonfinite), parts_.joined.away());
    return frame;
  };
  // A sum of float64 stays one: it must not lose bits because an earlier codec has left something.
  if (codec.as_float64() == nullptr) return answer_with(decoded_sum(partition, codec, contributions));
  std::vector<double> sum(partition.count);
  contributions.encode_reply(codec, partition.count, ReplyKind::kSame, {},
                             std::as_writable_bytes(std::span(sum)));
  take_leftover<double>(sum, partition.residual);
  return answer_with(sum);
}

/// With what is left of replies before.
std::vector<float> RoundSums::decoded_sum(Partition& partition, const compress::Codec& codec,
                                          const Contributions& contributions) {
  std::vector<float> sum(partition.count);
  contributions.decode_sum(codec, sum);
  if (!partition.residual.empty()) take_leftover<float>(sum, partition.residual);
  return sum;
}

void RoundSums::update(Partition& partition, const Round& round, const compress::Codec& codec,
                       const Contributions& contributions) {
  const std::vector<float> gradient = decoded_sum(partition, codec, contributions);
  parts_.updater.updater->update(partition.value, gradient, partition.optimizer_state);
  note(RoundMoment::kSummed, round.first);
}

void RoundSums::apply(Partition& partition, Frame push) {
  note(RoundMoment::kAllHere, push.header);
  Round round;
  round.first = push.header;
  round.payloads.emplace_back(std::move(push.payload));
  const Contributions contributions(round.payloads);
  with_codec(round.first, contributions.front(),
             [&](const compress::Codec& codec) { update(partition, round, codec, contributions); });
}

void RoundSums::begin_with_sum(Partition& partition, std::size_t contributors) {
  // It has a weight already, or was never pushed and has to be initialised first.
  if (!partition.value.empty() || !partition.answer) return;
  Frame sum = share(*partition.answer);
  const FrameHeader& header = sum.header;
  if (content_of(header) != Content::kSum) return;
  if (header.kind == Kind::kValue) {
    partition.value.resize(partition.count);
    const auto payload = std::as_const(sum.payload).bytes();
    if (dtype_of(header) == Dtype::kFloat64) {
      compress::Float64Codec().decode_reply(payload, 1, compress::ReplyKind::kSame, partition.value, {});
    } else {
      std::memcpy(partition.value.data(), payload.data(), payload.size());
    }
  }
  // The last round failed, so its answer is an error and no sum.
  if (header.kind != Kind::kReply) return;
  if ((header.flags & transport::kFlagSegments) != 0) return;
  restore(sum, parts_.pool);
  const compress::Codec& codec = parts_.codecs.of(header);
  std::vector<float> value(partition.count);
  std::vector<compress::UnitScale> unused(codec.agrees_scales() ? compress::unit_count(value.size()) : 0);
  // Workers that had joined are not in the sum, and its form depends on how many are.
  codec.decode_reply(std::as_const(sum.payload).bytes(), contributors - absent_of(header.flags),
                     static_cast<compress::ReplyKind>(header.reply), value, unused);
  partition.value = std::move(value);
}

}  // namespace gradwire::kvstore
