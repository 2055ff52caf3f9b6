// DeviceLink connects a worker and one device: a side stream in each direction, the memory that payloads
// pass through, the codecs' twins, and a count of the bytes that crossed.
//
// Threading: any thread may call every method.
// Lifetime: the Device outlives it; tensors and operations on the device share it. Call settle() before what
// its callbacks call is gone.
// Failure: as Device.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "compress/device/device.h"
#include "kvstore/array_view.h"
#include "transport/buffer.h"

namespace gradwire::kvstore {

class DeviceLink {
 public:
  using Marks = std::vector<compress::Device::Mark>;
  enum class Way : std::uint8_t { kToHost, kToDevice };
  class Batch;

  /// staged_bytes: of device memory that take_memory() keeps while nobody uses it.
  DeviceLink(std::shared_ptr<compress::Device> device, std::size_t staged_bytes);
  ~DeviceLink();
  DeviceLink(const DeviceLink&) = delete;
  DeviceLink& operator=(const DeviceLink&) = delete;

  const compress::Device& device() const noexcept { return *device_; }
  /// The twin of the codec; null where the device has none. Lives as long as this.
  const compress::DeviceCodec* twin(const compress::Codec& codec);
  /// Memory of the device, to keep.
  compress::Device::Memory allocate(std::size_t size_bytes);
  /// The same for `count` floats.
  std::shared_ptr<float> allocate_floats(std::size_t count);
  /// Memory of the device for a while, from a pool: an allocation there waits for all that it does.
  transport::Buffer take_memory(std::size_t size_bytes) { return memory_.take(size_bytes); }
  /// Pinned memory of the host, from a pool.
  transport::Buffer take_pinned(std::size_t size_bytes) { return pinned_.take(size_bytes); }
  /// Waits until both streams have run dry and every callback has been called. A device in a lasting error
  /// says so at once, and calls them later: for these it waits ten seconds at most.
  void settle() noexcept;

  std::uint64_t bytes_to_host() const noexcept { return crossed_[index(Way::kToHost)]; }
  std::uint64_t bytes_to_device() const noexcept { return crossed_[index(Way::kToDevice)]; }

 private:
  struct Lane {
    std::mutex mutex;
    std::shared_ptr<const compress::DeviceStream> stream;
    std::span<std::byte> staging, scratch, widened;
    /// What these are, or were when batches that may not have ended took them. At most as much again as is in
    /// use.
    std::vector<compress::Device::Memory> memory;
  };
  /// Callbacks that are still to come. They share it: the last one is not over when it is counted.
  struct Calls {
    std::mutex mutex;
    std::condition_variable ended;
    std::size_t left = 0;
  };
  static constexpr std::size_t index(Way way) { return static_cast<std::size_t>(way); }

  const std::shared_ptr<compress::Device> device_;  // owners: its opener, and this
  transport::BufferPool pinned_, memory_;
  std::array<Lane, 2> lanes_;
  std::array<std::atomic<std::uint64_t>, 2> crossed_{};
  const std::shared_ptr<Calls> calls_ = std::make_shared<Calls>();
  std::mutex twins_mutex_;
  std::map<std::string, std::unique_ptr<compress::DeviceCodec>> twins_;  ///< by spec; null: none
};

/// Work that goes on one side stream as a whole: while a Batch lives, no other thread puts work there. What
/// it was given is done before the next one's begins, so batches share staging and scratch. One that does not
/// reach then() waits for the stream when it ends, so that nothing touches memory that its maker gives up.
class DeviceLink::Batch {
 public:
  Batch(DeviceLink& link, Way way);
  ~Batch();
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  const compress::DeviceStream& stream() const noexcept { return *lane_.stream; }
  /// Memory of the device for what crosses, and for what a twin works with; until the batch ends.
  std::span<std::byte> staging(std::size_t size_bytes);
  std::span<std::byte> scratch(std::size_t size_bytes);
  /// The same for floats in the place of what is kept in 16 bits. Begins at a multiple of 16 bytes.
  std::span<float> widened(std::size_t count);

  void wait_for(const Marks& marks);
  /// Copies between host and device, counted.
  void cross(const void* from, void* to, std::size_t size_bytes);
  /// The same between numbers of at most 32 bits there and floats on the host, a run at a time.
  void fetch(ConstArrayView from, std::span<float> to);
  void bring(std::span<const float> from, ArrayView to);
  /// From floats there to numbers of at most 32 bits on the host, which are rounded before they cross.
  void fetch_rounded(std::span<const float> from, ArrayView to);

  // Copies within the device. Those with a type on one side are as the functions of these names in
  // array_view.h and residual.h, of types of at most 32 bits.

  void copy(std::span<const std::byte> from, std::span<std::byte> to);
  void copy_as_floats(ConstArrayView from, std::span<float> to);
  void copy_floats(std::span<const float> from, ArrayView to);
  /// Requires a run of kBfloat16.
  void round_residual(std::span<const float> values, ArrayView run);

  /// Ends the batch: next is called when all of it is done.
  void then(compress::Device::Next next);
  /// Ends the batch and blocks until all of it is done. Throws what went wrong.
  void finish();

 private:
  std::span<std::byte> room(std::span<std::byte>& bytes, std::size_t size_bytes);

  DeviceLink& link_;
  const Way way_;
  Lane& lane_;
  std::unique_lock<std::mutex> lock_;
  const compress::DeviceScope scope_;
  bool handed_on_ = false;
};

}  // namespace gradwire::kvstore
