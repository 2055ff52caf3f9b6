// Buffer and BufferPool: hand-over, shares, reuse.
#include "transport/buffer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <thread>

#include "transport/checksum.h"

namespace gradwire::transport {
namespace {

bool is_aligned(const Buffer& buffer) {
  return reinterpret_cast<std::uintptr_t>(buffer.bytes().data()) % 64 == 0;
}

TEST(Buffer, AllocateGivesTheAskedSizeAlignedToACacheLine) {
  for (const std::size_t size : {1, 63, 64, 4097, 1 << 20}) {
    Buffer buffer = Buffer::allocate(size);
    ASSERT_EQ(buffer.size_bytes(), size);
    EXPECT_TRUE(is_aligned(buffer));
    std::memset(buffer.bytes().data(), 7, size);  // under ASan: the block is that large
  }
  EXPECT_EQ(Buffer::allocate(0).size_bytes(), 0u);
}

TEST(Buffer, BorrowCallsReleasedOnceWithTheLastShare) {
  int released = 0;
  std::vector<std::byte> bytes(16);
  std::optional<Buffer> share;
  {
    const Buffer buffer = Buffer::borrow(bytes, [&] { ++released; });
    EXPECT_EQ(buffer.bytes().data(), bytes.data());
    share = buffer.share();
  }
  EXPECT_EQ(released, 0);
  share.reset();
  EXPECT_EQ(released, 1);
}

TEST(Buffer, BorrowOfNothingIsReleasedToo) {
  int released = 0;
  Buffer::borrow({}, [&] { ++released; });
  EXPECT_EQ(released, 1);
}

TEST(Buffer, TruncateKeepsTheFront) {
  Buffer buffer = Buffer::allocate(100);
  const std::byte* front = buffer.bytes().data();
  buffer.truncate(10);
  EXPECT_EQ(buffer.size_bytes(), 10u);
  EXPECT_EQ(buffer.bytes().data(), front);
}

TEST(Buffer, ASealIsTheChecksumOfTheBytesAndItsSharesHaveIt) {
  Buffer buffer = Buffer::allocate(100);
  std::memset(buffer.bytes().data(), 7, 100);
  EXPECT_FALSE(buffer.checksum());
  EXPECT_TRUE(buffer.is_intact());
  buffer.seal();
  EXPECT_EQ(buffer.checksum(), checksum(buffer.bytes()));
  EXPECT_EQ(buffer.share().checksum(), buffer.checksum());
  EXPECT_TRUE(buffer.share().is_intact());
}

TEST(Buffer, DamageIsNoticedByTheSealAlone) {
  Buffer buffer = Buffer::allocate(100);
  std::memset(buffer.bytes().data(), 7, 100);
  buffer.seal();
  buffer.bytes()[99] ^= std::byte{1};
  EXPECT_FALSE(buffer.is_intact());
  EXPECT_FALSE(buffer.share().is_intact());
  buffer.seal(checksum(buffer.bytes()));
  EXPECT_TRUE(buffer.is_intact());
}

TEST(Buffer, TruncateBreaksTheSeal) {
  Buffer buffer = Buffer::allocate(100);
  buffer.seal(1);
  buffer.truncate(99);
  EXPECT_FALSE(buffer.checksum());
}

TEST(Buffer, AShareOfAPartKeepsTheWholeAlive) {
  int released = 0;
  std::vector<std::byte> bytes(16);
  std::optional<Buffer> part;
  {
    const Buffer whole = Buffer::borrow(bytes, [&] { ++released; });
    part = whole.share(8, 4);
  }
  EXPECT_EQ(part->bytes().data(), bytes.data() + 8);
  EXPECT_EQ(part->size_bytes(), 4u);
  EXPECT_EQ(released, 0);
  part.reset();
  EXPECT_EQ(released, 1);
}

TEST(Buffer, ACopyIsItsOwn) {
  std::vector<std::byte> bytes(16, std::byte{3});
  const Buffer copy = Buffer::borrow(bytes).copy();
  bytes.assign(16, std::byte{4});
  EXPECT_EQ(std::vector<std::byte>(copy.bytes().begin(), copy.bytes().end()),
            std::vector<std::byte>(16, std::byte{3}));
  EXPECT_EQ(Buffer().copy().size_bytes(), 0u);
}

TEST(BufferPool, TakesBackWhatTheLastShareLetGo) {
  BufferPool pool;
  const std::byte* first = nullptr;
  {
    Buffer buffer = pool.take(1'000'000);
    first = buffer.bytes().data();
    const Buffer share = buffer.share();
    buffer = Buffer();
    EXPECT_NE(pool.take(1'000'000).bytes().data(), first) << "handed out while a share lives";
  }
  EXPECT_EQ(pool.take(1'000'000).bytes().data(), first);
  const Buffer smaller = pool.take(999'000);  // the same size class
  EXPECT_EQ(smaller.bytes().data(), first);
  EXPECT_EQ(smaller.size_bytes(), 999'000u);
}

TEST(BufferPool, EverySizeFitsItsBlock) {
  BufferPool pool;
  for (std::size_t size = 1; size < 3'000'000; size = size * 5 / 4 + 1) {
    Buffer buffer = pool.take(size);
    ASSERT_EQ(buffer.size_bytes(), size);
    EXPECT_TRUE(is_aligned(buffer));
    std::memset(buffer.bytes().data(), 1, size);  // under ASan: the block is that large
  }
}

TEST(BufferPool, KeepsNoMoreThanItWasTold) {
  BufferPool pool(0);
  { const Buffer buffer = pool.take(4096); }
  const Buffer other = pool.take(4096);  // under ASan: the first block was freed, and nothing leaks
  EXPECT_EQ(other.size_bytes(), 4096u);
}

TEST(BufferPool, BuffersOutliveThePool) {
  auto pool = std::make_optional<BufferPool>();
  Buffer buffer = pool->take(8192);
  pool.reset();
  std::memset(buffer.bytes().data(), 1, 8192);
}

TEST(BufferPool, ServesManyThreads) {
  BufferPool pool;
  const auto work = [&](int seed) {
    for (int i = 0; i < 2000; ++i) {
      Buffer buffer = pool.take(static_cast<std::size_t>(1 + (i * seed) % 50'000));
      buffer.bytes().front() = static_cast<std::byte>(seed);
      ASSERT_EQ(buffer.bytes().front(), static_cast<std::byte>(seed));
    }
  };
  std::vector<std::jthread> threads;
  for (const int seed : {3, 5, 7, 11}) threads.emplace_back(work, seed);
}

TEST(BufferPool, FreesWhatNobodyUsesWhenAsked) {
  int blocks = 0;
  BufferPool pool(std::size_t{1} << 20, [&blocks](std::size_t bytes) {
    ++blocks;
    return std::shared_ptr<std::byte>(new std::byte[bytes], [&blocks](const std::byte* block) {
      --blocks;
      delete[] block;
    });
  });
  const Buffer used = pool.take(1000);
  static_cast<void>(pool.take(5000));
  EXPECT_EQ(blocks, 2);
  pool.free_idle();
  EXPECT_EQ(blocks, 1);
  static_cast<void>(pool.take(5000));
  EXPECT_EQ(blocks, 2);
}

}  // namespace
}  // namespace gradwire::transport
