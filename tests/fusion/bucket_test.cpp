#include "fusion/bucket.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <barrier>
#include <numeric>
#include <random>
#include <thread>

namespace gradwire::fusion {
namespace {

std::vector<std::uint64_t> random_slots(std::mt19937& random) {
  std::vector<std::uint64_t> slots(random() % 40);
  for (std::uint64_t& bytes : slots) bytes = random() % (random() % 5 == 0 ? 300 : 40);
  return slots;
}

// Labels slots from the last to the first: a slot opens a bucket unless its predecessor's is still short of
// min_bytes and it is itself small.
std::vector<std::uint32_t> fuse_by_brute_force(const std::vector<std::uint64_t>& slots,
                                               std::uint64_t min_bytes) {
  std::vector<std::uint32_t> bucket_of_slot(slots.size());
  std::uint32_t bucket = 0;
  for (std::size_t n = 0; n < slots.size(); ++n) {
    const std::size_t i = slots.size() - 1 - n;
    std::uint64_t held = 0;
    for (std::size_t j = i + 1; j < slots.size(); ++j) held += bucket_of_slot[j] == bucket ? slots[j] : 0;
    if (n > 0 && (held >= min_bytes || slots[i] >= min_bytes)) ++bucket;
    bucket_of_slot[i] = bucket;
  }
  return bucket_of_slot;
}

TEST(Fuse, EqualsBruteForceOnRandomInputs) {
  std::mt19937 random(8);
  for (int round = 0; round < 10000; ++round) {
    const std::vector<std::uint64_t> slots = random_slots(random);
    const std::uint64_t min_bytes = random() % 100;
    ASSERT_EQ(fuse(slots, min_bytes).bucket_of_slot, fuse_by_brute_force(slots, min_bytes));
  }
}

TEST(Fuse, SlotsOfOtherGroupsDoNotShareABucket) {
  std::mt19937 random(10);
  for (int round = 0; round < 1000; ++round) {
    const std::vector<std::uint64_t> slots = random_slots(random);
    std::vector<std::uint32_t> groups(slots.size());
    for (std::uint32_t& group : groups) group = random() % 3;
    const BucketLayout layout = fuse(slots, 60, groups);
    // Each group by itself is fused as if the others were not there.
    for (std::uint32_t group = 0; group < 3; ++group) {
      std::vector<std::uint64_t> alone;
      std::vector<std::uint32_t> found;
      for (std::size_t i = 0; i < slots.size(); ++i) {
        if (groups[i] != group) continue;
        alone.push_back(slots[i]);
        found.push_back(layout.bucket_of_slot[i]);
      }
      const auto expected = fuse(alone, 60).bucket_of_slot;
      for (std::size_t i = 0; i + 1 < found.size(); ++i)
        ASSERT_EQ(found[i] == found[i + 1], expected[i] == expected[i + 1]);
    }
    // In the order in which backward() completes them.
    for (std::size_t b = 0; b + 1 < layout.buckets.size(); ++b)
      ASSERT_GT(layout.buckets[b].slots.back(), layout.buckets[b + 1].slots.back());
  }
}

TEST(Fuse, BucketsHoldEverySlotOnceFromLastToFirstAndLargeOnesAlone) {
  std::mt19937 random(9);
  for (int round = 0; round < 10000; ++round) {
    const std::vector<std::uint64_t> slots = random_slots(random);
    const std::uint64_t min_bytes = random() % 100;
    const BucketLayout layout = fuse(slots, min_bytes);
    std::vector<std::uint32_t> seen;
    for (std::uint32_t b = 0; b < layout.buckets.size(); ++b) {
      const Bucket& bucket = layout.buckets[b];
      std::uint64_t bytes = 0;
      for (const std::uint32_t slot : bucket.slots) {
        ASSERT_EQ(layout.bucket_of_slot[slot], b);
        bytes += slots[slot];
        ASSERT_TRUE(slots[slot] < min_bytes || bucket.slots.size() == 1);
      }
      ASSERT_EQ(bucket.bytes, bytes);
      seen.insert(seen.end(), bucket.slots.begin(), bucket.slots.end());
    }
    std::vector<std::uint32_t> expected(slots.size());
    std::iota(expected.rbegin(), expected.rend(), 0U);
    ASSERT_EQ(seen, expected);
  }
}

TEST(Fuse, ExampleOfASmallNetwork) {
  const std::vector<std::uint64_t> slots{10, 10, 500, 10, 60, 60};  // front layer first
  const BucketLayout layout = fuse(slots, 100);
  EXPECT_THAT(layout.buckets, testing::ElementsAre(Bucket{{5, 4}, 120}, Bucket{{3}, 10}, Bucket{{2}, 500},
                                                   Bucket{{1, 0}, 20}));
  EXPECT_THAT(fuse({}, 100).buckets, testing::IsEmpty());
}

// Eight threads mark disjoint slots of every step in a random order; each writes to its slot first, and
// whoever seals a bucket reads them all without a lock, so ThreadSanitizer sees a missing release or acquire.
TEST(BucketCountdown, ExactlyOneThreadSealsEachBucketOfEachStep) {
  constexpr std::uint32_t kThreads = 8;
  constexpr std::uint32_t kSlots = 61;
  constexpr std::uint32_t kSteps = 400;
  std::vector<std::uint64_t> slot_bytes(kSlots);
  std::mt19937 sizes(10);
  for (std::uint64_t& bytes : slot_bytes) bytes = 1 + sizes() % 40;
  const BucketLayout layout = fuse(slot_bytes, 100);
  ASSERT_GT(layout.buckets.size(), 5U);
  BucketCountdown countdown(layout);

  std::vector<std::uint32_t> written_step(kSlots, 0);  // plain memory, ordered by arrive() alone
  std::vector<std::atomic<std::uint32_t>> seals(layout.buckets.size());  // over all steps
  std::atomic<int> torn{0};
  std::barrier step_end(kThreads);
  auto mark = [&](std::uint32_t thread) {
    std::mt19937 random(thread);
    std::vector<std::uint32_t> mine;
    for (std::uint32_t slot = thread; slot < kSlots; slot += kThreads) mine.push_back(slot);
    for (std::uint32_t step = 1; step <= kSteps; ++step) {
      std::ranges::shuffle(mine, random);
      for (const std::uint32_t slot : mine) {
        written_step[slot] = step;
        const std::uint32_t bucket = layout.bucket_of_slot[slot];
        if (!countdown.arrive(bucket)) continue;
        seals[bucket].fetch_add(1);
        for (const std::uint32_t other : layout.buckets[bucket].slots) torn += written_step[other] != step;
      }
      step_end.arrive_and_wait();
      for (const auto& count : seals) torn += count.load() != step;
      step_end.arrive_and_wait();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::uint32_t thread = 0; thread < kThreads; ++thread) threads.emplace_back(mark, thread);
  }
  EXPECT_EQ(torn.load(), 0);
}

// The front end may start the next step in one thread while the sealer of this one has not yet returned.
TEST(BucketCountdown, NeedsNoPauseBetweenSteps) {
  constexpr std::uint32_t kThreads = 4;
  constexpr std::uint32_t kArrivals = 30000;
  const std::vector<std::uint64_t> slots{1, 1, 1};
  BucketCountdown countdown(fuse(slots, 100));
  std::atomic<std::uint32_t> sealed{0};
  {
    std::vector<std::jthread> threads;
    for (std::uint32_t thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&] {
        for (std::uint32_t i = 0; i < kArrivals; ++i) sealed += countdown.arrive(0) ? 1 : 0;
      });
    }
  }
  EXPECT_EQ(sealed.load(), kThreads * kArrivals / slots.size());
}

}  // namespace
}  // namespace gradwire::fusion
