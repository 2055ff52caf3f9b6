#include "kvstore/collectives/blob_store.h"

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

const BlobId kFromZero{0, 5, 0, 64};

Buffer bytes_of(const std::string& text) {
  Buffer buffer = Buffer::allocate(text.size());
  std::ranges::copy(std::as_bytes(std::span(text)), buffer.bytes().begin());
  return buffer;
}

std::string text_of(const Frame& frame) {
  return {reinterpret_cast<const char*>(frame.payload.bytes().data()), frame.payload.size_bytes()};
}

Answers handle(BlobStore& blobs, std::uint32_t worker, Frame frame) {
  Answers answers;
  blobs.handle(worker, std::move(frame), answers);
  return answers;
}

Answers post(BlobStore& blobs, const BlobId& id, const std::string& text, const Readers& readers = {}) {
  return handle(blobs, id.poster, {header_of(Kind::kPost, id, text.size(), readers), bytes_of(text)});
}

Answers fetch(BlobStore& blobs, std::uint32_t worker, const BlobId& id, std::uint64_t bytes) {
  return handle(blobs, worker, {header_of(Kind::kFetch, id, bytes), Buffer()});
}

Answers receipt(BlobStore& blobs, std::uint32_t worker, const BlobId& id, std::uint64_t bytes) {
  return handle(blobs, worker, {header_of(Kind::kReceipt, id, bytes), Buffer()});
}

void expect_refused(const Answers& answers, std::uint32_t worker, const std::string& why) {
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_EQ(answers[0].worker, worker);
  EXPECT_EQ(answers[0].frame.header.kind, Kind::kError);
  EXPECT_EQ(answers[0].frame.header.content, static_cast<std::uint8_t>(Refusal::kBlob));
  EXPECT_THAT(text_of(answers[0].frame), HasSubstr(why));
}

void expect_blob(const Answers& answers, std::uint32_t worker, const std::string& text) {
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_EQ(answers[0].worker, worker);
  EXPECT_EQ(answers[0].frame.header.kind, Kind::kBlob);
  EXPECT_EQ(text_of(answers[0].frame), text);
}

TEST(BlobStore, WhatArrivesDamagedIsAsIfItWereLost) {
  BlobStore blobs(3);
  post(blobs, kFromZero, "blob");
  Buffer damaged = bytes_of("no fetch has any");
  damaged.seal();
  damaged.bytes()[0] ^= std::byte{1};
  EXPECT_THAT(handle(blobs, 1, {header_of(Kind::kFetch, kFromZero, 6), std::move(damaged)}), IsEmpty());
  EXPECT_THAT(fetch(blobs, 1, kFromZero, 6), SizeIs(1));
}

TEST(BlobStore, AFetchBeforeItsBlobWaitsForIt) {
  BlobStore blobs(3);
  EXPECT_THAT(fetch(blobs, 2, kFromZero, 5), IsEmpty());
  expect_blob(post(blobs, kFromZero, "hello"), 2, "hello");
  expect_blob(fetch(blobs, 1, kFromZero, 5), 1, "hello");
}

TEST(BlobStore, ThePosterIsToldOnceAllHaveIt) {
  BlobStore blobs(3);
  post(blobs, kFromZero, "hello");
  for (const std::uint32_t reader : {1U, 2U}) fetch(blobs, reader, kFromZero, 5);
  EXPECT_THAT(receipt(blobs, 1, kFromZero, 5), IsEmpty());
  const auto answers = receipt(blobs, 2, kFromZero, 5);
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_EQ(answers[0].worker, 0U);
  EXPECT_EQ(answers[0].frame.header.kind, Kind::kDelivered);
}

TEST(BlobStore, ADeliveredBlobsBytesAreLetGo) {
  BlobStore blobs(2);
  bool released = false;
  const std::string text = "hello";
  handle(blobs, 0,
         {header_of(Kind::kPost, kFromZero, text.size()),
          Buffer::borrow(std::as_bytes(std::span(text)), [&] { released = true; })});
  fetch(blobs, 1, kFromZero, 5);
  EXPECT_FALSE(released);
  receipt(blobs, 1, kFromZero, 5);
  EXPECT_TRUE(released);
}

TEST(BlobStore, OnlyThoseNamedMayRead) {
  BlobStore blobs(4);
  post(blobs, kFromZero, "for 2", {.only = 2});
  expect_refused(fetch(blobs, 1, kFromZero, 5), 1, "not for worker 1");
  expect_blob(fetch(blobs, 2, kFromZero, 5), 2, "for 2");
  BlobId second = kFromZero;
  second.offset = 0;
  EXPECT_THAT(fetch(blobs, 3, second, 7), IsEmpty());
  expect_refused(post(blobs, second, "private", {.except = 3}), 3, "not for worker 3");
}

// A request, or its answer, may be lost and asked for again.
TEST(BlobStore, RepeatedRequestsChangeNothing) {
  BlobStore blobs(2);
  fetch(blobs, 1, kFromZero, 5);
  EXPECT_THAT(fetch(blobs, 1, kFromZero, 5), IsEmpty());
  expect_blob(post(blobs, kFromZero, "hello"), 1, "hello");
  expect_blob(post(blobs, kFromZero, "hello"), 1, "hello");  // no receipt came: the blob may be lost
  expect_blob(fetch(blobs, 1, kFromZero, 5), 1, "hello");
  EXPECT_THAT(receipt(blobs, 1, kFromZero, 5), SizeIs(1));
  EXPECT_THAT(receipt(blobs, 1, kFromZero, 5), IsEmpty());
  EXPECT_THAT(fetch(blobs, 1, kFromZero, 5), IsEmpty());
  const auto again = post(blobs, kFromZero, "hello");  // its answer was lost
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_EQ(again[0].frame.header.kind, Kind::kDelivered);
}

TEST(BlobStore, ADamagedBlobCountsAsLost) {
  BlobStore blobs(2);
  Frame frame{header_of(Kind::kPost, kFromZero, 5), bytes_of("hello")};
  frame.payload.seal();
  frame.payload.bytes()[0] ^= std::byte{1};
  EXPECT_THAT(handle(blobs, 0, std::move(frame)), IsEmpty());
  EXPECT_THAT(fetch(blobs, 1, kFromZero, 5), IsEmpty());
  expect_blob(post(blobs, kFromZero, "hello"), 1, "hello");
}

TEST(BlobStore, ALaterSequenceForgetsWhatCameBefore) {
  BlobStore blobs(2, 3);
  BlobId id{0, 0, 0, 0};
  for (id.sequence = 1; id.sequence < 20; ++id.sequence) {
    for (id.offset = 0; id.offset < 3; ++id.offset) {
      EXPECT_THAT(post(blobs, id, "x"), IsEmpty());
      fetch(blobs, 1, id, 1);
      EXPECT_THAT(receipt(blobs, 1, id, 1), SizeIs(1)) << id.sequence;
    }
  }
}

TEST(BlobStore, RefusesWhatMakesNoSense) {
  BlobStore blobs(2);
  expect_refused(handle(blobs, 1, {header_of(Kind::kPost, kFromZero, 5), bytes_of("hello")}), 1,
                 "worker 1 posted the blob 5/0/64 of worker 0");
  expect_refused(handle(blobs, 0, {header_of(Kind::kPost, kFromZero, 6), bytes_of("hello")}), 0,
                 "5 bytes given, 6 announced");
  expect_refused(handle(blobs, 0, {header_of(Kind::kPost, kFromZero, 0), Buffer()}), 0, "at least one");
  expect_refused(post(blobs, kFromZero, "hello", {.only = 2}), 0, "none of the other 1 workers");
  expect_refused(post(blobs, kFromZero, "hello", {.only = 0}), 0, "none of the other 1 workers");
  expect_refused(fetch(blobs, 0, kFromZero, 5), 0, "expected another worker's");
  expect_refused(fetch(blobs, 1, {7, 5, 0, 0}, 5), 1, "expected another worker's");
  expect_refused(handle(blobs, 9, {header_of(Kind::kFetch, kFromZero, 5), Buffer()}), 9,
                 "worker 9 is not one of 2");
  EXPECT_THAT(post(blobs, kFromZero, "hello"), IsEmpty()) << "nothing was kept of all that";
  expect_refused(receipt(blobs, 1, kFromZero, 5), 1, "not sent to worker 1");
  expect_refused(fetch(blobs, 1, kFromZero, 4), 1, "4 bytes asked for, it has 5");
  expect_blob(fetch(blobs, 1, kFromZero, 5), 1, "hello");
}

TEST(BlobStore, HoldsOnlySoMuchOfOneWorker) {
  BlobStore blobs(3, 4);
  BlobId id{0, 1, 0, 0};
  for (; id.offset < 4; ++id.offset) EXPECT_THAT(post(blobs, id, "x"), IsEmpty());
  expect_refused(post(blobs, id, "x"), 0, "at most 4 are held");
  BlobId unknown{2, 1, 0, 0};
  for (; unknown.offset < 4; ++unknown.offset) EXPECT_THAT(fetch(blobs, 1, unknown, 1), IsEmpty());
  expect_refused(fetch(blobs, 1, unknown, 1), 1, "at most 4 are noted");
  EXPECT_THAT(post(blobs, {2, 1, 0, 9}, "x"), IsEmpty()) << "others are not affected";
  EXPECT_THAT(fetch(blobs, 0, unknown, 1), IsEmpty());
}

TEST(BlobStore, WhoLeavesFailsThoseThatNeedIt) {
  BlobStore blobs(3);
  fetch(blobs, 1, {2, 5, 0, 0}, 5);
  post(blobs, kFromZero, "hello");
  Answers answers;
  blobs.forget_worker(2, answers);
  ASSERT_THAT(answers, SizeIs(2));
  EXPECT_EQ(answers[0].worker, 1U);
  EXPECT_THAT(text_of(answers[0].frame), HasSubstr("worker 2 left the job before it posted"));
  EXPECT_EQ(answers[1].worker, 0U);
  EXPECT_THAT(text_of(answers[1].frame), HasSubstr("worker 2 left the job before it fetched"));
  expect_refused(fetch(blobs, 1, {2, 6, 0, 0}, 5), 1, "worker 2 left the job before it posted");
  expect_refused(post(blobs, {0, 6, 0, 0}, "late"), 0, "worker 2 left the job before it fetched");
  EXPECT_THAT(post(blobs, {0, 6, 0, 1}, "late", {.only = 1}), IsEmpty()) << "not needed by this one";
  expect_refused(post(blobs, {0, 6, 0, 0}, "late"), 0, "worker 2 left the job before it fetched");
}

// Its receipt may have been lost, and it cannot be asked for another.
TEST(BlobStore, WhoWasSentABlobAndLeavesHasIt) {
  BlobStore blobs(3);
  post(blobs, kFromZero, "hello");
  expect_blob(fetch(blobs, 1, kFromZero, 5), 1, "hello");
  expect_blob(fetch(blobs, 2, kFromZero, 5), 2, "hello");
  Answers answers;
  blobs.forget_worker(2, answers);
  EXPECT_THAT(answers, IsEmpty());
  answers = receipt(blobs, 1, kFromZero, 5);
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_EQ(answers[0].worker, 0U);
  EXPECT_EQ(answers[0].frame.header.kind, Kind::kDelivered);
}

// Else those that come again, late, would add up in a long job until no more are noted.
TEST(BlobStore, AFetchThatComesAgainLongAfterItsBlobIsNotNoted) {
  BlobStore blobs(2, 4);
  for (std::uint64_t sequence = 1; sequence < 20; ++sequence) {
    const BlobId id{0, sequence, 0, 0};
    post(blobs, id, "x");
    fetch(blobs, 1, id, 1);
    receipt(blobs, 1, id, 1);
    if (sequence > 1) {
      EXPECT_THAT(fetch(blobs, 1, {0, sequence - 1, 0, 0}, 1), IsEmpty()) << sequence;
    }
  }
}

// Whatever comes in, nothing is thrown, and a blob to come still arrives.
TEST(BlobStore, SurvivesAnyFrame) {
  std::mt19937 random(4);
  const auto pick = [&](std::initializer_list<std::uint64_t> values) {
    return values.begin()[random() % values.size()];
  };
  BlobStore blobs(3, 64);
  for (int i = 0; i < 100'000; ++i) {
    const auto kind = static_cast<Kind>(pick({43, 44, 46, 45, 33, 255}));
    const BlobId id{static_cast<std::uint32_t>(pick({0, 1, 2, 3, 0xFFFFFFFF})), pick({0, 1, 2}),
                    pick({0, 1, ~0ULL}), pick({0, 1, ~0ULL})};
    const Readers readers{static_cast<std::uint32_t>(pick({0, 1, 2, 0xFFFFFFFF})),
                          static_cast<std::uint32_t>(pick({0, 1, 0xFFFFFFFF}))};
    Frame frame{header_of(kind, id, pick({0, 1, 5, ~0ULL}), readers),
                bytes_of(std::string("hello").substr(random() % 6))};
    EXPECT_NO_THROW(handle(blobs, static_cast<std::uint32_t>(pick({0, 1, 2, 3})), std::move(frame)));
  }
  post(blobs, {0, 9, 0, 0}, "hello", {.only = 1});
  expect_blob(fetch(blobs, 1, {0, 9, 0, 0}, 5), 1, "hello");
}

}  // namespace
}  // namespace gradwire::kvstore
