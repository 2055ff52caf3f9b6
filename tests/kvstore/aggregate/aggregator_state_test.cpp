// What is kept of a partition between rounds, read and written by workers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "compress/codecs.h"
#include "kvstore/aggregate/aggregator.h"
#include "kvstore/aggregate/partition_state.h"
#include "kvstore/wire/protocol.h"

namespace gradwire::kvstore {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using transport::Buffer;
using transport::Frame;
using transport::Kind;
using Answers = std::vector<Answer>;

Buffer bytes_of(std::span<const float> values) {
  Buffer buffer = Buffer::allocate(values.size_bytes());
  std::memcpy(buffer.bytes().data(), values.data(), values.size_bytes());
  return buffer;
}

std::vector<float> floats_of(const Frame& frame) {
  std::vector<float> values(frame.payload.size_bytes() / sizeof(float));
  std::memcpy(values.data(), frame.payload.bytes().data(), frame.payload.size_bytes());
  return values;
}

std::string text_of(const Frame& frame) {
  return {reinterpret_cast<const char*>(frame.payload.bytes().data()), frame.payload.size_bytes()};
}

Frame request(Kind kind, std::uint64_t step = 0, Buffer payload = {}) {
  Frame frame;
  frame.header.kind = kind;
  frame.header.key = 4;
  frame.header.step = step;
  frame.header.count = 3;
  frame.payload = std::move(payload);
  return frame;
}

Answers handle(Aggregator& aggregator, std::uint32_t worker, Frame frame) {
  Answers answers;
  aggregator.handle(worker, std::move(frame), answers);
  return answers;
}

Frame only_answer(Aggregator& aggregator, Frame frame) {
  Answers answers = handle(aggregator, 0, std::move(frame));
  EXPECT_EQ(answers.size(), 1U);
  return std::move(answers.at(0).frame);
}

Frame command(const std::string& text) {
  Frame frame = request(Kind::kCommand);
  frame.payload = Buffer::allocate(text.size());
  std::memcpy(frame.payload.bytes().data(), text.data(), text.size());
  return frame;
}

PartitionState at_step(std::uint64_t step) { return {step, {}, {}, {}}; }

PartitionState read(Aggregator& aggregator) {
  const Frame answer = only_answer(aggregator, request(Kind::kReadState));
  EXPECT_EQ(answer.header.kind, Kind::kState) << text_of(answer);
  return decode_partition_state(answer.payload.bytes(), 3);
}

Frame write(Aggregator& aggregator, const PartitionState& state) {
  return only_answer(aggregator, request(Kind::kWriteState, kNoStep - 1, encode_state(state)));
}

Frame of_optimizer(Frame request) {
  request.header.content = static_cast<std::uint8_t>(StateScope::kOptimizer);
  return request;
}

OptimizerState read_optimizer(Aggregator& aggregator) {
  const Frame answer = only_answer(aggregator, of_optimizer(request(Kind::kReadState)));
  EXPECT_EQ(answer.header.kind, Kind::kState) << text_of(answer);
  return decode_optimizer_state(answer.payload.bytes(), 3);
}

/// load: the step of the request.
Frame write_optimizer(Aggregator& aggregator, const OptimizerState& state, std::uint64_t load = 1) {
  return only_answer(aggregator, of_optimizer(request(Kind::kWriteState, load, encode_state(state))));
}

std::vector<float> push(Aggregator& aggregator, std::uint64_t step, std::vector<float> values) {
  const Frame answer = only_answer(aggregator, request(Kind::kPush, step, bytes_of(values)));
  EXPECT_NE(answer.header.kind, Kind::kError) << text_of(answer);
  return floats_of(answer);
}

TEST(AggregatorState, OfWhatIsNotHeldIsEmpty) {
  Aggregator aggregator(1);
  EXPECT_EQ(read(aggregator), PartitionState());
}

TEST(AggregatorState, GoesOnElsewhereAsItWouldHaveHere) {
  Aggregator first(1);
  handle(first, 0, request(Kind::kInit, kNoStep, bytes_of(std::vector<float>{1, 2, 3})));
  handle(first, 0, command("optimizer adam learning_rate=0.5"));
  push(first, 0, {1, -1, 2});
  const PartitionState state = read(first);
  EXPECT_EQ(state.next_step, 1U);
  EXPECT_EQ(state.optimizer.steps, 1U);
  EXPECT_EQ(state.optimizer.moments.size(), 6U);

  Aggregator second(1);
  handle(second, 0, command("optimizer adam learning_rate=0.5"));
  EXPECT_EQ(write(second, state).header.kind, Kind::kAck);
  EXPECT_EQ(floats_of(only_answer(second, request(Kind::kPull))), state.value);
  EXPECT_EQ(read(second), state);
  EXPECT_EQ(push(second, 1, {3, 0, 1}), push(first, 1, {3, 0, 1}));
}

TEST(AggregatorState, ResidualsOfRepliesGoOn) {
  const auto codec = compress::make(compress::parse_spec("2bit:threshold=0.5"));
  const auto round = [&](Aggregator& aggregator, std::uint64_t step) {
    std::vector<float> grad = {0.6F, -0.6F, 0.1F}, residual(3);
    Buffer payload = Buffer::allocate(codec->max_encoded_size(3));
    payload.truncate(codec->encode(grad, residual, {}, payload.bytes()).bytes);
    Frame frame = request(Kind::kPush, step, std::move(payload));
    frame.header.codec = static_cast<std::uint8_t>(codec->wire_id());
    frame.header.codec_parameters = codec->wire_parameters();
    frame.header.reply = static_cast<std::uint8_t>(compress::ReplyKind::kSame);
    return text_of(only_answer(aggregator, std::move(frame)));
  };
  Aggregator first(1);
  for (std::uint64_t step = 0; step < 3; ++step) round(first, step);
  Aggregator second(1);
  write(second, read(first));
  for (std::uint64_t step = 3; step < 6; ++step) EXPECT_EQ(round(second, step), round(first, step));
  EXPECT_EQ(read(second), read(first));
}

TEST(AggregatorState, IsNotReadOrWrittenDuringARound) {
  Aggregator aggregator(2);
  handle(aggregator, 1, request(Kind::kPush, 0, bytes_of(std::vector<float>{1, 1, 1})));
  const Frame refused = only_answer(aggregator, request(Kind::kReadState));
  EXPECT_EQ(refused.header.kind, Kind::kError);
  EXPECT_THAT(text_of(refused), HasSubstr("step 0 is under way"));
  EXPECT_EQ(write(aggregator, {}).header.kind, Kind::kError);
}

TEST(AggregatorState, IsNotTurnedBack) {
  Aggregator aggregator(1);
  push(aggregator, 0, {1, 1, 1});
  push(aggregator, 1, {1, 1, 1});
  const Frame refused = write(aggregator, at_step(1));
  EXPECT_EQ(refused.header.kind, Kind::kError);
  EXPECT_THAT(text_of(refused), HasSubstr("load a checkpoint into a job that has not pushed yet"));
  EXPECT_EQ(write(aggregator, at_step(2)).header.kind, Kind::kAck);
}

struct AsyncAggregator : Aggregator {
  AsyncAggregator(std::uint32_t workers, const std::string& policy) : Aggregator(workers) {
    kvstore::handle(*this, 0, command("rounds " + policy));
    kvstore::handle(*this, 0, command("optimizer sgd learning_rate=1 momentum=0.5"));
  }
};

Answers push_async(Aggregator& aggregator, std::uint32_t worker, std::uint64_t step) {
  return handle(aggregator, worker, request(Kind::kPush, step, bytes_of(std::vector<float>{1, 2, 3})));
}

TEST(AggregatorState, AtOnceAllWorkersGoOnFromTheOneThatIsFurthest) {
  AsyncAggregator first(2, "at_once");
  handle(first, 0, request(Kind::kInit, kNoStep, bytes_of(std::vector<float>{1, 2, 3})));
  for (const std::uint64_t step : {0, 1, 2}) push_async(first, 0, step);
  push_async(first, 1, 0);
  const PartitionState state = read(first);
  EXPECT_EQ(state.next_step, 3U);
  EXPECT_EQ(state.optimizer.moments.size(), 3U);

  AsyncAggregator second(3, "at_once staleness_bound=1");
  handle(second, 0, request(Kind::kInit, kNoStep, bytes_of(std::vector<float>{0, 0, 0})));
  handle(second, 2, request(Kind::kPull));  // makes clocks
  EXPECT_EQ(write(second, state).header.kind, Kind::kAck);
  EXPECT_EQ(read(second), state);
  EXPECT_EQ(push_async(second, 2, 3).size(), 1U);
  EXPECT_THAT(push_async(second, 2, 4), IsEmpty()) << "two ahead of the others";
  push_async(second, 0, 3);
  EXPECT_EQ(push_async(second, 1, 3).size(), 2U) << "nobody is behind any more";
}

TEST(AggregatorState, AtOnceItIsNotTurnedBack) {
  AsyncAggregator aggregator(1, "at_once");
  handle(aggregator, 0, request(Kind::kInit, kNoStep, bytes_of(std::vector<float>{1, 2, 3})));
  push_async(aggregator, 0, 0);
  const PartitionState state = read(aggregator);
  EXPECT_THAT(text_of(write(aggregator, state)), HasSubstr("a job that has not pushed"));
}

TEST(AggregatorState, MomentsMustBeTheOptimizersOwn) {
  const PartitionState of_adam{1, {1, 2, 3}, {}, {{1, 2, 3, 4, 5, 6}, 1}};
  Aggregator aggregator(1);
  EXPECT_THAT(text_of(write(aggregator, of_adam)), HasSubstr("no optimizer is set"));
  handle(aggregator, 0, command("optimizer sgd momentum=0.9"));
  EXPECT_THAT(text_of(write(aggregator, of_adam)), HasSubstr("2 moments an element given, but sgd keeps 1"));
  handle(aggregator, 0, command("optimizer adam"));
  EXPECT_EQ(write(aggregator, of_adam).header.kind, Kind::kAck);
}

// Its answer was given before the checkpoint, to workers that are gone.
TEST(AggregatorState, AStepBeforeItHasNoAnswer) {
  Aggregator aggregator(1);
  write(aggregator, at_step(5));
  for (const Kind kind : {Kind::kPush, Kind::kProbe}) {
    for (const std::uint64_t step : {0, 4})
      EXPECT_THAT(handle(aggregator, 0, request(kind, step, bytes_of(std::vector<float>{1, 1, 1}))),
                  IsEmpty());
  }
  EXPECT_EQ(push(aggregator, 5, {1, 2, 3}), (std::vector<float>{1, 2, 3}));
}

/// One worker's, with a weight and three steps of adam behind it.
void train(Aggregator& aggregator) {
  handle(aggregator, 0, request(Kind::kInit, kNoStep, bytes_of(std::vector<float>{1, 2, 3})));
  handle(aggregator, 0, command("optimizer adam learning_rate=0.5"));
  for (std::uint64_t step = 0; step < 3; ++step) push(aggregator, step, {1, -1, 2});
}

TEST(AggregatorOptimizerState, GoesOnBesideAnyWeight) {
  Aggregator first(1), second(1);
  train(first);
  const OptimizerState state = read_optimizer(first);
  EXPECT_EQ(state, read(first).optimizer);
  EXPECT_EQ(state.steps, 3U);

  const auto weight = read(first).value;
  handle(second, 0, request(Kind::kInit, kNoStep, bytes_of(weight)));
  handle(second, 0, command("optimizer adam learning_rate=0.5"));
  EXPECT_EQ(write_optimizer(second, state).header.kind, Kind::kAck);
  EXPECT_EQ(read(second), (PartitionState{0, weight, {}, state}));  // weight and step are its own
  EXPECT_EQ(push(second, 0, {3, 0, 1}), push(first, 3, {3, 0, 1}));
}

TEST(AggregatorOptimizerState, OfWhatIsNotHeldIsEmpty) {
  Aggregator aggregator(1);
  EXPECT_EQ(read_optimizer(aggregator), OptimizerState());
  const Frame refused = write_optimizer(aggregator, {});
  EXPECT_EQ(refused.header.kind, Kind::kError);
  EXPECT_THAT(text_of(refused), HasSubstr("no weight of that size is held here; init the key first"));
}

// So one worker can save by itself, whatever the others do meanwhile.
TEST(AggregatorOptimizerState, IsReadWhileARoundWaitsAndNotWritten) {
  Aggregator aggregator(2);
  handle(aggregator, 0, request(Kind::kInit, kNoStep, bytes_of(std::vector<float>{1, 2, 3})));
  handle(aggregator, 0, command("optimizer adam"));
  for (const std::uint32_t worker : {0U, 1U})
    handle(aggregator, worker, request(Kind::kPush, 0, bytes_of(std::vector<float>{1, 1, 1})));
  const OptimizerState state = read_optimizer(aggregator);
  handle(aggregator, 1, request(Kind::kPush, 1, bytes_of(std::vector<float>{2, 2, 2})));
  EXPECT_EQ(read_optimizer(aggregator), state);
  EXPECT_THAT(text_of(write_optimizer(aggregator, {})), HasSubstr("step 1 is under way"));
  EXPECT_EQ(read_optimizer(aggregator), state);
}

TEST(AggregatorOptimizerState, ARequestThatComesAgainChangesNothing) {
  Aggregator aggregator(1);
  train(aggregator);
  const OptimizerState loaded{{1, 2, 3, 4, 5, 6}, 9};
  EXPECT_EQ(write_optimizer(aggregator, loaded, 1).header.kind, Kind::kAck);
  push(aggregator, 3, {1, 1, 1});
  const OptimizerState state = read_optimizer(aggregator);
  EXPECT_EQ(write_optimizer(aggregator, loaded, 1).header.kind, Kind::kAck);
  EXPECT_EQ(read_optimizer(aggregator), state);
  EXPECT_EQ(write_optimizer(aggregator, loaded, 2).header.kind, Kind::kAck);
  EXPECT_EQ(read_optimizer(aggregator), loaded);
}

TEST(AggregatorOptimizerState, MomentsMustBeTheOptimizersOwn) {
  Aggregator aggregator(1);
  train(aggregator);
  const OptimizerState state = read_optimizer(aggregator);
  EXPECT_THAT(text_of(write_optimizer(aggregator, {{1, 2, 3}, 1})),
              HasSubstr("1 moments an element given, but adam keeps 2"));
  EXPECT_EQ(write_optimizer(aggregator, {{1, 2}, 1}).header.kind, Kind::kError);
  Frame other = request(Kind::kReadState);
  other.header.content = 2;
  EXPECT_THAT(text_of(only_answer(aggregator, std::move(other))), HasSubstr("content 2 given, expected 0"));
  EXPECT_EQ(read_optimizer(aggregator), state);
}

TEST(AggregatorState, HostileFramesChangeNothing) {
  std::mt19937 random(5);
  Aggregator aggregator(1);
  push(aggregator, 0, {1, 1, 1});
  const PartitionState before = read(aggregator);
  for (int round = 0; round < 3000; ++round) {
    Frame frame = request(random() % 2 == 0 ? Kind::kReadState : Kind::kWriteState, random());
    frame.header.content = static_cast<std::uint8_t>(random() % 3);
    frame.header.key = random() % 2 == 0 ? 4 : random();
    frame.header.offset = random() % 2 == 0 ? 0 : random();
    frame.header.count = random() % 2 == 0 ? random() % 4 : std::uint64_t{random()} << (random() % 32);
    frame.payload = Buffer::allocate(random() % 64);
    for (std::byte& byte : frame.payload.bytes()) byte = static_cast<std::byte>(random());
    const bool is_ours = frame.header.key == 4 && frame.header.offset == 0;
    const bool is_of_optimizer = frame.header.content == 1;
    const Frame answer = only_answer(aggregator, std::move(frame));
    if (is_ours && answer.header.kind == Kind::kState) continue;
    if (answer.header.kind != Kind::kState) {
      EXPECT_EQ(answer.header.kind, Kind::kError);
    } else if (is_of_optimizer) {  // of a partition that nobody has
      EXPECT_EQ(decode_optimizer_state(answer.payload.bytes(), 1), OptimizerState());
    } else {
      EXPECT_EQ(decode_partition_state(answer.payload.bytes(), 1), PartitionState());
    }
  }
  EXPECT_EQ(read(aggregator), before);
}

}  // namespace
}  // namespace gradwire::kvstore
