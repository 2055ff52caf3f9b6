// Buffer is a run of bytes that outlives the call that made it. Moving it in hands it over.
//
// Threading: one thread at a time uses a Buffer; copies made by share() only read.
// Lifetime: the owner behind a Buffer (heap, pool, ZeroMQ message, a caller's array) is released with the
// last share.
// A sealed Buffer knows the checksum of its bytes, from its maker or sender. Nothing compares the two unless
// asked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace gradwire::transport {

class Buffer {
 public:
  Buffer() = default;
  /// Wraps bytes kept alive by owner.
  Buffer(std::shared_ptr<void> owner, std::span<std::byte> bytes) : owner_(std::move(owner)), bytes_(bytes) {}
  Buffer(Buffer&&) noexcept = default;
  Buffer& operator=(Buffer&&) noexcept = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  /// Takes uninitialised bytes from the heap.
  static Buffer allocate(std::size_t size_bytes);
  /// Borrows bytes; the caller keeps them alive and unchanged until released() was called by the last share.
  static Buffer borrow(std::span<const std::byte> bytes, std::function<void()> released = {});

  std::span<std::byte> bytes() noexcept { return bytes_; }
  std::span<const std::byte> bytes() const noexcept { return bytes_; }
  std::size_t size_bytes() const noexcept { return bytes_.size(); }

  /// Cuts the buffer to its first size_bytes bytes and breaks the seal. Requires size_bytes <=
  /// this->size_bytes().
  void truncate(std::size_t size_bytes);
  /// Another handle on the same bytes, sealed alike, to send one payload to many. Nobody may write from then
  /// on.
  Buffer share() const;
  /// Another handle on size_bytes of the bytes, from offset on, without a seal. Requires that this one has
  /// them.
  Buffer share(std::size_t offset, std::size_t size_bytes) const {
    return Buffer(owner_, bytes_.subspan(offset, size_bytes));
  }
  /// Takes bytes from the heap and copies these there, sealed alike.
  Buffer copy() const;

  /// Computes the checksum (checksum.h), best while the bytes are in the cache. Nobody may write from then
  /// on.
  void seal();
  /// Takes the checksum that came with the bytes.
  void seal(std::uint32_t checksum) noexcept { checksum_ = checksum; }
  void unseal() noexcept { checksum_.reset(); }
  std::optional<std::uint32_t> checksum() const noexcept { return checksum_; }
  /// Whether the bytes have the checksum of their seal; true without one. Reads every byte.
  bool is_intact() const noexcept;

 private:
  std::shared_ptr<void> owner_;  // owners: this Buffer and every share() of it
  std::span<std::byte> bytes_;
  std::optional<std::uint32_t> checksum_;
};

/// Hands out buffers of the asked size and takes them back when the last share dies, so that large
/// payloads are not mapped and unmapped every step. Thread-safe. Buffers may outlive the pool.
class BufferPool {
 public:
  /// Makes a block of that many bytes, for pools of memory that is not the heap's.
  using MakeBlock = std::function<std::shared_ptr<std::byte>(std::size_t size_bytes)>;

  /// keep_bytes: of blocks that nobody uses.
  explicit BufferPool(std::size_t keep_bytes = std::size_t{512} << 20, MakeBlock make_block = {});
  Buffer take(std::size_t size_bytes);
  /// Frees the blocks that nobody uses.
  void free_idle();

 private:
  struct Shelf;
  std::shared_ptr<Shelf> shelf_;  // owners: the pool and every Buffer it handed out
};

}  // namespace gradwire::transport
