// Aggregator with an optimizer: who gets a whole weight, who what changes the one that it has.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "compress/codecs.h"
#include "kvstore/aggregate/partition_state.h"
#include "tests/kvstore/requests.h"
#include "tests/kvstore/sums.h"

namespace gradwire::kvstore {
namespace {

using testing::HasSubstr;
using transport::Frame;
using transport::Kind;
using Floats = std::vector<float>;

constexpr std::size_t kElements = 600;

/// Workers that keep what they are told of a server's weight, key 4, to which pushes are added times 0.1.
class SentWeight {
 public:
  SentWeight(std::uint32_t workers, const std::string& weights, const std::string& rounds = "")
      : replies_(weights), aggregator_(workers) {
    if (!rounds.empty()) tell("rounds " + rounds);
    tell("optimizer test rescale_grad=0.1");
    tell("weights " + weights);
    handle(aggregator_, 0, request(Kind::kInit, kNoStep, first_));
    wants_ = rounds.empty() ? Content::kSum : Content::kWeight;
  }

  void tell(const std::string& text) {
    ASSERT_EQ(handle(aggregator_, 0, command(text)).at(0).frame.header.kind, Kind::kAck) << text;
  }
  /// A push that says whether the worker still has what it was told last.
  Answers push(std::uint32_t worker, std::uint64_t step, bool holds) {
    Frame frame = request(Kind::kPush, step, random_floats(kElements, 10 * step + worker), worker);
    frame.header.content = static_cast<std::uint8_t>(holds ? Content::kWeightDelta : wants_);
    return handle(aggregator_, worker, std::move(frame));
  }
  Answers ask(Kind kind, std::uint32_t worker, std::uint64_t step, Content content) {
    Frame frame = request(kind, step, first_, worker);
    frame.payload = {};
    frame.header.content = static_cast<std::uint8_t>(content);
    return handle(aggregator_, worker, std::move(frame));
  }
  Answers forget(std::uint32_t worker) {
    Answers answers;
    aggregator_.forget_worker(worker, answers);
    return answers;
  }
  void forget_sent() { aggregator_.forget_sent(); }
  /// Workers take their answers.
  void take(const Answers& answers) {
    for (const auto& [worker, frame] : answers) {
      ASSERT_EQ(frame.header.kind, Kind::kValue) << text_of(frame);
      contents_[worker] = content_of(frame.header);
      bytes_[worker] = frame.payload.size_bytes();
      if (content_of(frame.header) == Content::kWeightDelta) {
        EXPECT_EQ(frame.header.codec, static_cast<std::uint8_t>(replies_.codec().wire_id()));
        EXPECT_TRUE(frame.payload.checksum());
        add_delta(replies_.codec(), frame.payload.bytes(), held_.at(worker));
      } else {
        held_[worker] = floats_of(frame);
      }
    }
  }
  /// A round of all workers, which have what they were told but those of `without`.
  void round(std::uint32_t workers, std::uint64_t step, const std::set<std::uint32_t>& without = {}) {
    for (std::uint32_t worker = 0; worker < workers; ++worker)
      take(push(worker, step, !without.contains(worker)));
  }
  PartitionState state() {
    const auto answers = ask(Kind::kReadState, 0, 0, Content::kSum);
    return decode_partition_state(answers.at(0).frame.payload.bytes(), kElements);
  }
  Answers write(const PartitionState& state) {
    Frame frame = request(Kind::kWriteState, 0, first_);
    frame.payload = encode_state(state);
    return handle(aggregator_, 0, std::move(frame));
  }

  const Floats& held(std::uint32_t worker) { return held_[worker]; }
  Content content(std::uint32_t worker) { return contents_[worker]; }
  std::size_t bytes(std::uint32_t worker) { return bytes_[worker]; }

 private:
  const Floats first_ = random_floats(kElements, 999);
  WeightReplies replies_;
  Aggregator aggregator_;
  Content wants_;
  std::map<std::uint32_t, Floats> held_;
  std::map<std::uint32_t, Content> contents_;
  std::map<std::uint32_t, std::size_t> bytes_;
};

Frame encoded_push(const compress::Codec& codec, compress::ReplyKind reply, std::uint32_t worker) {
  const Floats values = random_floats(kElements, worker);
  Floats residual(kElements);
  Frame frame = request(Kind::kPush, 0, values, worker);
  frame.header.codec = static_cast<std::uint8_t>(codec.wire_id());
  frame.header.codec_parameters = codec.wire_parameters();
  frame.header.reply = static_cast<std::uint8_t>(reply);
  frame.payload = transport::Buffer::allocate(codec.max_encoded_size(kElements));
  frame.payload.truncate(codec.encode(values, residual, {}, frame.payload.bytes()).bytes);
  return frame;
}

TEST(AggregatorWeights, AnOptimizerThatComesLaterBeginsWithTheLastSum) {
  using compress::ReplyKind;
  for (const auto& [text, reply] :
       std::vector<std::pair<std::string, ReplyKind>>{{"none", ReplyKind::kSame},
                                                      {"fp16", ReplyKind::kSame},
                                                      {"2bit:threshold=0.25", ReplyKind::kExact},
                                                      {"2bit:threshold=0.25", ReplyKind::kSame},
                                                      {"2bit:threshold=auto", ReplyKind::kExact},
                                                      {"topk", ReplyKind::kFp32},
                                                      {"int8", ReplyKind::kSame}}) {
    const auto codec = compress::make(spec(text));
    Aggregator aggregator(2);
    handle(aggregator, 0, encoded_push(*codec, reply, 0));
    const auto answers = handle(aggregator, 1, encoded_push(*codec, reply, 1));
    Floats weight(kElements);
    std::vector<compress::UnitScale> scales(codec->agrees_scales() ? 1 : 0);
    codec->decode_reply(answers.at(0).frame.payload.bytes(), 2, reply, weight, scales);
    const auto state = handle(aggregator, 0, request(Kind::kReadState, kNoStep - 7, Floats(kElements), 0));
    Floats left = decode_partition_state(state.at(0).frame.payload.bytes(), kElements).residual;
    left.resize(kElements);
    ASSERT_EQ(handle(aggregator, 0, command("optimizer test rescale_grad=0.5")).at(0).frame.header.kind,
              Kind::kAck);
    Frame pull = request(Kind::kPull, kNoStep, weight);
    pull.payload = {};
    EXPECT_EQ(floats_of(handle(aggregator, 0, std::move(pull)).at(0).frame), weight) << text;
    const Floats ones(kElements, 1);
    handle(aggregator, 0, request(Kind::kPush, 1, ones));
    const auto updated = handle(aggregator, 1, request(Kind::kPush, 1, ones, 1));
    ASSERT_EQ(updated.at(0).frame.header.kind, Kind::kValue) << text_of(updated.at(0).frame);
    for (std::size_t i = 0; i < weight.size(); ++i) weight[i] += 0.5F * (2 + left[i]);
    EXPECT_EQ(floats_of(updated.at(0).frame), weight) << text << " and what its replies have left";
  }
}

TEST(AggregatorWeights, ARoundsDeltaGoesToThoseWhoHoldTheWeightBeforeAndAWholeOneToOthers) {
  SentWeight job(3, "delta:int8");
  job.round(3, 0, {0, 1, 2});
  EXPECT_EQ(job.held(2), job.state().value);  // nothing was left out yet
  job.round(3, 1);
  for (const std::uint32_t worker : {0, 1, 2}) {
    EXPECT_EQ(job.content(worker), Content::kWeightDelta);
    EXPECT_EQ(job.bytes(worker), compress::make({"int8", {}})->max_encoded_size(kElements));
    EXPECT_EQ(job.held(worker), job.state().held_by_workers);
  }
  EXPECT_NE(job.held(0), job.state().value);
  job.round(3, 2, {1});
  EXPECT_EQ(job.content(0), Content::kWeightDelta);
  EXPECT_EQ(job.content(1), Content::kWeight);
  for (const std::uint32_t worker : {0, 1, 2}) EXPECT_EQ(job.held(worker), job.state().held_by_workers);
}

TEST(AggregatorWeights, WhatADeltaLeavesOutComesLater) {
  SentWeight job(1, "delta:topk:ratio=0.1");
  for (std::uint64_t step = 0; step < 10; ++step)
    job.round(1, step, step == 0 ? std::set{0U} : std::set<std::uint32_t>());
  EXPECT_NE(job.held(0), job.state().value);
  job.tell("optimizer test rescale_grad=0");
  for (std::uint64_t step = 10; step < 20; ++step) job.round(1, step);
  EXPECT_EQ(job.content(0), Content::kWeightDelta);
  const Floats value = job.state().value;
  for (std::size_t i = 0; i < kElements; ++i) EXPECT_NEAR(job.held(0)[i], value[i], 1e-7);
}

TEST(AggregatorWeights, ARoundsLastAnswerIsTheSameHoweverOftenItIsAskedFor) {
  SentWeight job(2, "delta:2bit:threshold=0.01");
  job.round(2, 0, {0, 1});
  job.push(0, 1, true);
  job.take(job.push(1, 1, true));  // both answers
  const Floats told = job.state().held_by_workers;
  EXPECT_EQ(job.held(0), told);
  for (const Kind kind : {Kind::kProbe, Kind::kPush}) {
    const auto answers =
        kind == Kind::kPush ? job.push(1, 1, true) : job.ask(kind, 1, 1, Content::kWeightDelta);
    ASSERT_EQ(answers.size(), 1U);
    EXPECT_EQ(content_of(answers[0].frame.header), Content::kWeightDelta);
  }
  job.take(
      job.ask(Kind::kProbe, 1, 1, Content::kSum));  // who does not have the weight before gets this one whole
  EXPECT_EQ(job.content(1), Content::kWeight);
  EXPECT_EQ(job.held(1), told);
  EXPECT_EQ(job.state().held_by_workers, told);
  job.take(job.ask(Kind::kPull, 0, 7, Content::kSum));
  EXPECT_EQ(job.content(0), Content::kWeight);
  EXPECT_EQ(job.held(0), told);
}

TEST(AggregatorWeights, OnesThatAreNotFiniteGoWhole) {
  SentWeight job(1, "delta:int8");
  job.round(1, 0, {0});
  Floats wrong(kElements, 1.0F);
  wrong[7] = std::numeric_limits<float>::infinity();
  PartitionState state = job.state();
  SentWeight other(1, "delta:int8");
  state.value = wrong;
  ASSERT_EQ(other.write(state).at(0).frame.header.kind, Kind::kAck);
  other.take(other.push(0, 1, true));
  EXPECT_EQ(other.content(0), Content::kWeight);
  EXPECT_EQ(other.held(0)[7], wrong[7]);
  EXPECT_EQ(other.held(0), other.state().held_by_workers);
}

TEST(AggregatorWeights, AStateGoesOnWithWhatWorkersWereTold) {
  SentWeight job(2, "delta:int4");
  for (std::uint64_t step = 0; step < 3; ++step)
    job.round(2, step, step == 0 ? std::set{0U, 1U} : std::set<std::uint32_t>());
  const PartitionState state = job.state();
  ASSERT_EQ(state.held_by_workers, job.held(1));
  SentWeight restored(2, "delta:int4");
  ASSERT_EQ(restored.write(state).at(0).frame.header.kind, Kind::kAck);
  restored.take(restored.ask(Kind::kPull, 0, 0, Content::kSum));
  EXPECT_EQ(restored.held(0), job.held(0));
  job.round(2, 3);
  restored.round(2, 3, {0, 1});
  EXPECT_EQ(restored.content(0), Content::kWeight);
  EXPECT_EQ(restored.held(1), job.held(1));
  EXPECT_EQ(restored.state(), job.state());
}

TEST(AggregatorWeights, AreRoundedForPullsToo) {
  SentWeight job(1, "fp16");
  const auto fp16 = compress::make({"fp16", {}});
  for (const Kind kind : {Kind::kPush, Kind::kPull}) {
    const auto answers = kind == Kind::kPush ? job.push(0, 0, false) : job.ask(kind, 0, 1, Content::kSum);
    const Frame& frame = answers.at(0).frame;
    EXPECT_EQ(content_of(frame.header), Content::kWeightRounded);
    EXPECT_EQ(frame.header.codec, static_cast<std::uint8_t>(compress::WireId::kFp16));
    ASSERT_EQ(frame.payload.size_bytes(), 2 * kElements);
    Floats rounded(kElements);
    fp16->decode(frame.payload.bytes(), rounded);
    const Floats value = job.state().value;
    for (std::size_t i = 0; i < kElements; ++i) EXPECT_NEAR(rounded[i], value[i], 0x1p-11);
    EXPECT_NE(rounded, value);
  }
  EXPECT_TRUE(job.state().held_by_workers.empty());
}

TEST(AggregatorWeights, AtOnceEachWorkerHasItsOwn) {
  SentWeight job(2, "delta:int8", "at_once");
  job.take(job.push(0, 0, false));
  EXPECT_EQ(job.content(0), Content::kWeight);
  job.take(job.push(0, 1, true));
  EXPECT_EQ(job.content(0), Content::kWeightDelta);
  job.take(job.push(1, 0, false));
  EXPECT_EQ(job.content(1), Content::kWeight);
  EXPECT_EQ(job.held(1), job.state().value);
  EXPECT_NE(job.held(0), job.held(1));
  job.take(job.push(1, 1, true));
  job.take(job.push(0, 2, true));  // what worker 1 pushed meanwhile is in it
  EXPECT_EQ(job.content(0), Content::kWeightDelta);
  const Floats value = job.state().value;
  for (std::size_t i = 0; i < kElements; ++i) EXPECT_NEAR(job.held(0)[i], value[i], 1e-3);
}

// What workers of rounds of all held is nothing here, and shall not come back with a later checkpoint.
TEST(AggregatorWeights, AtOnceWhatACheckpointSaysTheyWereToldIsDropped) {
  SentWeight in_rounds(1, "delta:topk:ratio=0.05");
  for (std::uint64_t step = 0; step < 3; ++step) in_rounds.round(1, step);
  const PartitionState saved = in_rounds.state();
  ASSERT_FALSE(saved.held_by_workers.empty());
  SentWeight async(1, "delta:topk:ratio=0.05", "at_once");
  async.write(saved);
  EXPECT_THAT(async.state().held_by_workers, testing::IsEmpty());
  EXPECT_EQ(async.state().value, saved.value);
}

TEST(AggregatorWeights, AtOnceWhoAsksAgainGetsAWholeOneAndGoesOnFromThat) {
  SentWeight job(1, "delta:int8", "at_once");
  job.take(job.push(0, 0, false));
  job.push(0, 1, true);  // its answer is lost
  job.take(job.ask(Kind::kProbe, 0, 1, Content::kWeightDelta));
  EXPECT_EQ(job.content(0), Content::kWeight);
  job.take(job.push(0, 2, true));
  EXPECT_EQ(job.content(0), Content::kWeightDelta);
  job.take(job.ask(Kind::kPull, 0, 9, Content::kWeightDelta));  // a pull goes on from that push
  EXPECT_EQ(job.content(0), Content::kWeightDelta);
  const Floats value = job.state().value;
  for (std::size_t i = 0; i < kElements; ++i) EXPECT_NEAR(job.held(0)[i], value[i], 1e-5);
}

/// Worker 1 pushes between two copies of each request of worker 0, of which that takes one answer, whichever.
TEST(AggregatorWeights, AtOnceARequestThatComesTwiceLeavesItsWorkerWithOneWeight) {
  for (const std::size_t taken : {0U, 1U}) {
    SentWeight job(2, "delta:int8", "at_once");
    std::uint64_t others = 0;
    const auto twice = [&](const auto& ask) {
      Answers answers[2];
      for (Answers& one : answers) {
        one = ask();
        job.push(1, others++, false);
      }
      job.take(answers[taken]);
    };
    const auto expect_near = [&](const char* after) {
      job.push(1, others++, false);
      job.take(job.ask(Kind::kPull, 0, kNoStep - 1'000 - others, Content::kWeightDelta));
      const Floats value = job.state().value;
      for (std::size_t i = 0; i < kElements; ++i) ASSERT_NEAR(job.held(0)[i], value[i], 5e-3) << after;
    };
    twice([&] { return job.push(0, 0, false); });
    expect_near("a first push");
    twice([&] { return job.push(0, 1, true); });
    expect_near("a push that gets a delta");
    twice([&] { return job.ask(Kind::kPull, 0, kNoStep - 2'000, Content::kWeightDelta); });
    job.ask(Kind::kProbe, 0, 1, Content::kWeightDelta);  // late, as is the next
    job.ask(Kind::kPull, 0, kNoStep - 1'900, Content::kSum);
    job.take(job.push(0, 2, true));
    EXPECT_EQ(job.content(0), Content::kWeightDelta);
    const Floats value = job.state().value;
    for (std::size_t i = 0; i < kElements; ++i) ASSERT_NEAR(job.held(0)[i], value[i], 5e-3) << "a pull";
  }
}

/// A server and its mirror hear worker 1's goodbye at different places, and worker 0 has waited for that one.
TEST(AggregatorWeights, AtOnceWhoServesInAnothersPlaceBeginsWithWholeOnes) {
  SentWeight server(3, "delta:int8", "at_once staleness_bound=1"),
      mirror(3, "delta:int8", "at_once staleness_bound=1");
  const auto both = [&](std::uint32_t worker, std::uint64_t step, bool holds) {
    server.take(server.push(worker, step, holds));
    mirror.take(mirror.push(worker, step, holds));
  };
  both(0, 0, false);
  both(2, 0, false);
  both(0, 1, true);  // waits for worker 1
  server.take(server.forget(1));
  both(2, 1, true);
  mirror.take(mirror.forget(1));
  ASSERT_NE(server.held(0), mirror.held(0)) << "told at another place";
  ASSERT_EQ(server.state().value, mirror.state().value);
  mirror.forget_sent();
  mirror.take(mirror.push(0, 2, true));
  EXPECT_EQ(mirror.content(0), Content::kWeight);
  EXPECT_EQ(mirror.held(0), mirror.state().value);
  mirror.push(2, 2, false);
  mirror.take(mirror.push(0, 3, true));
  EXPECT_EQ(mirror.content(0), Content::kWeightDelta);
}

TEST(AggregatorWeights, OtherRepliesBeginWithWholeOnes) {
  SentWeight job(1, "delta:int8");
  job.round(1, 0, {0});
  job.tell("weights delta:int8");  // the same: nothing changes
  job.round(1, 1);
  EXPECT_EQ(job.content(0), Content::kWeightDelta);
  job.tell("weights delta:int4");
  job.round(1, 2);
  EXPECT_EQ(job.content(0), Content::kWeight);
  job.tell("weights fp32");
  job.round(1, 3);
  EXPECT_EQ(job.content(0), Content::kWeight);
  EXPECT_EQ(job.held(0), job.state().value);
  EXPECT_TRUE(job.state().held_by_workers.empty());
}

TEST(AggregatorWeights, RefuseRepliesThatAreNone) {
  Aggregator aggregator(1);
  const auto answers = handle(aggregator, 0, command("weights delta:none"));
  ASSERT_EQ(answers.at(0).frame.header.kind, Kind::kError);
  EXPECT_THAT(text_of(answers[0].frame), HasSubstr("leaves nothing out"));
}

}  // namespace
}  // namespace gradwire::kvstore
