#include "transport/buffer.h"

#include <bit>
#include <cstring>
#include <map>
#include <new>

#include "transport/checksum.h"

namespace gradwire::transport {
namespace {

constexpr std::align_val_t kAlignment{64};  // a cache line, and the widest vector register

struct AlignedDelete {
  void operator()(std::byte* bytes) const noexcept { ::operator delete(bytes, kAlignment); }
};
using Block = std::shared_ptr<std::byte>;

Block new_block(std::size_t size_bytes) {
  return {static_cast<std::byte*>(::operator new(size_bytes, kAlignment)), AlignedDelete{}};
}

// Rounds up to a quarter of a power of two, so that sizes that differ a little share blocks and waste at most
// 25 %.
std::size_t size_class(std::size_t size_bytes) {
  constexpr std::size_t kSmallest = 4096;
  if (size_bytes <= kSmallest) return kSmallest;
  const std::size_t step = std::bit_floor(size_bytes - 1) / 4;
  return (size_bytes + step - 1) / step * step;
}

}  // namespace

Buffer Buffer::allocate(std::size_t size_bytes) {
  if (size_bytes == 0) return {};
  Block block = new_block(size_bytes);
  std::byte* const bytes = block.get();
  return Buffer(std::move(block), {bytes, size_bytes});
}

Buffer Buffer::borrow(std::span<const std::byte> bytes, std::function<void()> released) {
  auto* data = const_cast<std::byte*>(bytes.data());  // a sent payload is only read; see share()
  std::shared_ptr<void> owner;
  // A shared_ptr calls its deleter for a null pointer, too: a borrowed empty span is released like any other.
  if (released) owner = std::shared_ptr<void>(data, [released = std::move(released)](void*) { released(); });
  return Buffer(std::move(owner), {data, bytes.size()});
}

void Buffer::truncate(std::size_t size_bytes) {
  bytes_ = bytes_.first(size_bytes);
  // The seal is of all bytes.
  checksum_.reset();
}

Buffer Buffer::share() const {
  Buffer share(owner_, bytes_);
  share.checksum_ = checksum_;
  return share;
}

void Buffer::seal() { checksum_ = transport::checksum(bytes_); }

bool Buffer::is_intact() const noexcept { return !checksum_ || *checksum_ == transport::checksum(bytes_); }

Buffer Buffer::copy() const {
  Buffer copy = allocate(size_bytes());
  if (size_bytes() > 0) std::memcpy(copy.bytes_.data(), bytes_.data(), size_bytes());
  copy.checksum_ = checksum_;
  return copy;
}

struct BufferPool::Shelf {
  Shelf(std::size_t limit, MakeBlock make) : keep_bytes(limit), make_block(std::move(make)) {}

  Block take(std::size_t block_bytes) {
    {
      const std::lock_guard lock(mutex);
      auto& blocks = idle[block_bytes];
      if (!blocks.empty()) {
        Block block = std::move(blocks.back());
        blocks.pop_back();
        idle_bytes -= block_bytes;
        return block;
      }
    }
    // Without the lock: pinned memory may take milliseconds to make.
    return make_block ? make_block(block_bytes) : new_block(block_bytes);
  }

  void free_idle() {
    std::map<std::size_t, std::vector<Block>> freed;  // after the lock
    const std::lock_guard lock(mutex);
    freed.swap(idle);
    idle_bytes = 0;
  }

  void put(Block block, std::size_t block_bytes) {
    const std::lock_guard lock(mutex);
    if (idle_bytes + block_bytes > keep_bytes) return;  // the block is freed, after the lock
    idle[block_bytes].push_back(std::move(block));
    idle_bytes += block_bytes;
  }

  const std::size_t keep_bytes;
  const MakeBlock make_block;
  std::mutex mutex;
  std::map<std::size_t, std::vector<Block>> idle;
  std::size_t idle_bytes = 0;
};

BufferPool::BufferPool(std::size_t keep_bytes, MakeBlock make_block)
    : shelf_(std::make_shared<Shelf>(keep_bytes, std::move(make_block))) {}

Buffer BufferPool::take(std::size_t size_bytes) {
  if (size_bytes == 0) return {};
  const std::size_t block_bytes = size_class(size_bytes);
  Block block = shelf_->take(block_bytes);
  std::byte* const bytes = block.get();
  // It owns the shelf, so buffers may outlive the pool. What is given back then dies with the last of them.
  auto give_back = [shelf = shelf_, block_bytes, block = std::move(block)](std::byte*) mutable {
    shelf->put(std::move(block), block_bytes);
  };
  return Buffer(std::shared_ptr<std::byte>(bytes, std::move(give_back)), {bytes, size_bytes});
}

void BufferPool::free_idle() { shelf_->free_idle(); }

}  // namespace gradwire::transport
