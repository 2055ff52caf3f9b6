#include "kvstore/collectives/mailbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <span>
#include <string>

#include "kvstore/wire/protocol.h"

namespace gradwire::kvstore {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using transport::Buffer;
using transport::Frame;
using transport::Kind;
using Answers = std::vector<Answer>;

const LetterId kFromZero{0, 5, 0, 64};

Buffer bytes_of(const std::string& text) {
  Buffer buffer = Buffer::allocate(text.size());
  std::ranges::copy(std::as_bytes(std::span(text)), buffer.bytes().begin());
  return buffer;
}

std::string text_of(const Frame& frame) {
  return {reinterpret_cast<const char*>(frame.payload.bytes().data()), frame.payload.size_bytes()};
}

Answers handle(Mailbox& mailbox, std::uint32_t worker, Frame frame) {
  Answers answers;
  mailbox.handle(worker, std::move(frame), answers);
  return answers;
}

Answers post(Mailbox& mailbox, const LetterId& id, const std::string& text, const Readers& readers = {}) {
  return handle(mailbox, id.poster, {header_of(Kind::kPost, id, text.size(), readers), bytes_of(text)});
}

Answers fetch(Mailbox& mailbox, std::uint32_t worker, const LetterId& id, std::uint64_t bytes) {
  return handle(mailbox, worker, {header_of(Kind::kFetch, id, bytes), Buffer()});
}

Answers receipt(Mailbox& mailbox, std::uint32_t worker, const LetterId& id, std::uint64_t bytes) {
  return handle(mailbox, worker, {header_of(Kind::kReceipt, id, bytes), Buffer()});
}

void expect_refused(const Answers& answers, std::uint32_t worker, const std::string& why) {
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_EQ(answers[0].worker, worker);
  EXPECT_EQ(answers[0].frame.header.kind, Kind::kError);
  EXPECT_EQ(answers[0].frame.header.content, static_cast<std::uint8_t>(Refusal::kLetter));
  EXPECT_THAT(text_of(answers[0].frame), HasSubstr(why));
}

void expect_letter(const Answers& answers, std::uint32_t worker, const std::string& text) {
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_EQ(answers[0].worker, worker);
  EXPECT_EQ(answers[0].frame.header.kind, Kind::kLetter);
  EXPECT_EQ(text_of(answers[0].frame), text);
}

TEST(Mailbox, WhatArrivesDamagedIsAsIfItWereLost) {
  Mailbox mailbox(3);
  post(mailbox, kFromZero, "letter");
  Buffer damaged = bytes_of("no fetch has any");
  damaged.seal();
  damaged.bytes()[0] ^= std::byte{1};
  EXPECT_THAT(handle(mailbox, 1, {header_of(Kind::kFetch, kFromZero, 6), std::move(damaged)}), IsEmpty());
  EXPECT_THAT(fetch(mailbox, 1, kFromZero, 6), SizeIs(1));
}

TEST(Mailbox, AFetchBeforeItsLetterWaitsForIt) {
  Mailbox mailbox(3);
  EXPECT_THAT(fetch(mailbox, 2, kFromZero, 5), IsEmpty());
  expect_letter(post(mailbox, kFromZero, "hello"), 2, "hello");
  expect_letter(fetch(mailbox, 1, kFromZero, 5), 1, "hello");
}

TEST(Mailbox, ThePosterIsToldOnceAllHaveIt) {
  Mailbox mailbox(3);
  post(mailbox, kFromZero, "hello");
  for (const std::uint32_t reader : {1U, 2U}) fetch(mailbox, reader, kFromZero, 5);
  EXPECT_THAT(receipt(mailbox, 1, kFromZero, 5), IsEmpty());
  const auto answers = receipt(mailbox, 2, kFromZero, 5);
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_EQ(answers[0].worker, 0U);
  EXPECT_EQ(answers[0].frame.header.kind, Kind::kDelivered);
}

TEST(Mailbox, ADeliveredLettersBytesAreLetGo) {
  Mailbox mailbox(2);
  bool released = false;
  const std::string text = "hello";
  handle(mailbox, 0,
         {header_of(Kind::kPost, kFromZero, text.size()),
          Buffer::borrow(std::as_bytes(std::span(text)), [&] { released = true; })});
  fetch(mailbox, 1, kFromZero, 5);
  EXPECT_FALSE(released);
  receipt(mailbox, 1, kFromZero, 5);
  EXPECT_TRUE(released);
}

TEST(Mailbox, OnlyThoseNamedMayRead) {
  Mailbox mailbox(4);
  post(mailbox, kFromZero, "for 2", {.only = 2});
  expect_refused(fetch(mailbox, 1, kFromZero, 5), 1, "not for worker 1");
  expect_letter(fetch(mailbox, 2, kFromZero, 5), 2, "for 2");
  LetterId second = kFromZero;
  second.offset = 0;
  EXPECT_THAT(fetch(mailbox, 3, second, 7), IsEmpty());
  expect_refused(post(mailbox, second, "private", {.except = 3}), 3, "not for worker 3");
}

// A request, or its answer, may be lost and asked for again.
TEST(Mailbox, RepeatedRequestsChangeNothing) {
  Mailbox mailbox(2);
  fetch(mailbox, 1, kFromZero, 5);
  EXPECT_THAT(fetch(mailbox, 1, kFromZero, 5), IsEmpty());
  expect_letter(post(mailbox, kFromZero, "hello"), 1, "hello");
  expect_letter(post(mailbox, kFromZero, "hello"), 1, "hello");  // no receipt came: the letter may be lost
  expect_letter(fetch(mailbox, 1, kFromZero, 5), 1, "hello");
  EXPECT_THAT(receipt(mailbox, 1, kFromZero, 5), SizeIs(1));
  EXPECT_THAT(receipt(mailbox, 1, kFromZero, 5), IsEmpty());
  EXPECT_THAT(fetch(mailbox, 1, kFromZero, 5), IsEmpty());
  const auto again = post(mailbox, kFromZero, "hello");  // its answer was lost
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_EQ(again[0].frame.header.kind, Kind::kDelivered);
}

TEST(Mailbox, ADamagedLetterCountsAsLost) {
  Mailbox mailbox(2);
  Frame frame{header_of(Kind::kPost, kFromZero, 5), bytes_of("hello")};
  frame.payload.seal();
  frame.payload.bytes()[0] ^= std::byte{1};
  EXPECT_THAT(handle(mailbox, 0, std::move(frame)), IsEmpty());
  EXPECT_THAT(fetch(mailbox, 1, kFromZero, 5), IsEmpty());
  expect_letter(post(mailbox, kFromZero, "hello"), 1, "hello");
}

TEST(Mailbox, ALaterSequenceForgetsWhatCameBefore) {
  Mailbox mailbox(2, 3);
  LetterId id{0, 0, 0, 0};
  for (id.sequence = 1; id.sequence < 20; ++id.sequence) {
    for (id.offset = 0; id.offset < 3; ++id.offset) {
      EXPECT_THAT(post(mailbox, id, "x"), IsEmpty());
      fetch(mailbox, 1, id, 1);
      EXPECT_THAT(receipt(mailbox, 1, id, 1), SizeIs(1)) << id.sequence;
    }
  }
}

TEST(Mailbox, RefusesWhatMakesNoSense) {
  Mailbox mailbox(2);
  expect_refused(handle(mailbox, 1, {header_of(Kind::kPost, kFromZero, 5), bytes_of("hello")}), 1,
                 "worker 1 posted the letter 5/0/64 of worker 0");
  expect_refused(handle(mailbox, 0, {header_of(Kind::kPost, kFromZero, 6), bytes_of("hello")}), 0,
                 "5 bytes given, 6 announced");
  expect_refused(handle(mailbox, 0, {header_of(Kind::kPost, kFromZero, 0), Buffer()}), 0, "at least one");
  expect_refused(post(mailbox, kFromZero, "hello", {.only = 2}), 0, "none of the other 1 workers");
  expect_refused(post(mailbox, kFromZero, "hello", {.only = 0}), 0, "none of the other 1 workers");
  expect_refused(fetch(mailbox, 0, kFromZero, 5), 0, "expected another worker's");
  expect_refused(fetch(mailbox, 1, {7, 5, 0, 0}, 5), 1, "expected another worker's");
  expect_refused(handle(mailbox, 9, {header_of(Kind::kFetch, kFromZero, 5), Buffer()}), 9,
                 "worker 9 is not one of 2");
  EXPECT_THAT(post(mailbox, kFromZero, "hello"), IsEmpty()) << "nothing was kept of all that";
  expect_refused(receipt(mailbox, 1, kFromZero, 5), 1, "not sent to worker 1");
  expect_refused(fetch(mailbox, 1, kFromZero, 4), 1, "4 bytes asked for, it has 5");
  expect_letter(fetch(mailbox, 1, kFromZero, 5), 1, "hello");
}

TEST(Mailbox, HoldsOnlySoMuchOfOneWorker) {
  Mailbox mailbox(3, 4);
  LetterId id{0, 1, 0, 0};
  for (; id.offset < 4; ++id.offset) EXPECT_THAT(post(mailbox, id, "x"), IsEmpty());
  expect_refused(post(mailbox, id, "x"), 0, "at most 4 are held");
  LetterId unknown{2, 1, 0, 0};
  for (; unknown.offset < 4; ++unknown.offset) EXPECT_THAT(fetch(mailbox, 1, unknown, 1), IsEmpty());
  expect_refused(fetch(mailbox, 1, unknown, 1), 1, "at most 4 are noted");
  EXPECT_THAT(post(mailbox, {2, 1, 0, 9}, "x"), IsEmpty()) << "others are not affected";
  EXPECT_THAT(fetch(mailbox, 0, unknown, 1), IsEmpty());
}

TEST(Mailbox, WhoLeavesFailsThoseThatNeedIt) {
  Mailbox mailbox(3);
  fetch(mailbox, 1, {2, 5, 0, 0}, 5);
  post(mailbox, kFromZero, "hello");
  Answers answers;
  mailbox.forget_worker(2, answers);
  ASSERT_THAT(answers, SizeIs(2));
  EXPECT_EQ(answers[0].worker, 1U);
  EXPECT_THAT(text_of(answers[0].frame), HasSubstr("worker 2 left the job before it posted"));
  EXPECT_EQ(answers[1].worker, 0U);
  EXPECT_THAT(text_of(answers[1].frame), HasSubstr("worker 2 left the job before it fetched"));
  expect_refused(fetch(mailbox, 1, {2, 6, 0, 0}, 5), 1, "worker 2 left the job before it posted");
  expect_refused(post(mailbox, {0, 6, 0, 0}, "late"), 0, "worker 2 left the job before it fetched");
  EXPECT_THAT(post(mailbox, {0, 6, 0, 1}, "late", {.only = 1}), IsEmpty()) << "not needed by this one";
  expect_refused(post(mailbox, {0, 6, 0, 0}, "late"), 0, "worker 2 left the job before it fetched");
}

// Its receipt may have been lost, and it cannot be asked for another.
TEST(Mailbox, WhoWasSentALetterAndLeavesHasIt) {
  Mailbox mailbox(3);
  post(mailbox, kFromZero, "hello");
  expect_letter(fetch(mailbox, 1, kFromZero, 5), 1, "hello");
  expect_letter(fetch(mailbox, 2, kFromZero, 5), 2, "hello");
  Answers answers;
  mailbox.forget_worker(2, answers);
  EXPECT_THAT(answers, IsEmpty());
  answers = receipt(mailbox, 1, kFromZero, 5);
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_EQ(answers[0].worker, 0U);
  EXPECT_EQ(answers[0].frame.header.kind, Kind::kDelivered);
}

// Else those that come again, late, would add up in a long job until no more are noted.
TEST(Mailbox, AFetchThatComesAgainLongAfterItsLetterIsNotNoted) {
  Mailbox mailbox(2, 4);
  for (std::uint64_t sequence = 1; sequence < 20; ++sequence) {
    const LetterId id{0, sequence, 0, 0};
    post(mailbox, id, "x");
    fetch(mailbox, 1, id, 1);
    receipt(mailbox, 1, id, 1);
    if (sequence > 1) {
      EXPECT_THAT(fetch(mailbox, 1, {0, sequence - 1, 0, 0}, 1), IsEmpty()) << sequence;
    }
  }
}

// Whatever comes in, nothing is thrown, and a letter to come still arrives.
TEST(Mailbox, SurvivesAnyFrame) {
  std::mt19937 random(4);
  const auto pick = [&](std::initializer_list<std::uint64_t> values) {
    return values.begin()[random() % values.size()];
  };
  Mailbox mailbox(3, 64);
  for (int i = 0; i < 100'000; ++i) {
    const auto kind = static_cast<Kind>(pick({43, 44, 46, 45, 33, 255}));
    const LetterId id{static_cast<std::uint32_t>(pick({0, 1, 2, 3, 0xFFFFFFFF})), pick({0, 1, 2}),
                      pick({0, 1, ~0ULL}), pick({0, 1, ~0ULL})};
    const Readers readers{static_cast<std::uint32_t>(pick({0, 1, 2, 0xFFFFFFFF})),
                          static_cast<std::uint32_t>(pick({0, 1, 0xFFFFFFFF}))};
    Frame frame{header_of(kind, id, pick({0, 1, 5, ~0ULL}), readers),
                bytes_of(std::string("hello").substr(random() % 6))};
    EXPECT_NO_THROW(handle(mailbox, static_cast<std::uint32_t>(pick({0, 1, 2, 3})), std::move(frame)));
  }
  post(mailbox, {0, 9, 0, 0}, "hello", {.only = 1});
  expect_letter(fetch(mailbox, 1, {0, 9, 0, 0}, 5), 1, "hello");
}

}  // namespace
}  // namespace gradwire::kvstore
