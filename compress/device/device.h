// Device has what code with tensors on a device needs besides the codecs' twins: memory on both sides,
// copies, and the order of work on its streams.
//
// Threading: any thread, within a DeviceScope. Calls that take a stream enqueue work there and return;
// open_stream(), the two allocations and finish() may block.
// Lifetime: an object that a Device hands out is released with its last owner, which must be before the
// Device dies. Memory must stay until the streams have passed the work that touches it.
// Failure: std::runtime_error with the device's reason.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "compress/codec.h"
#include "compress/dense/dense_scalar.h"
#include "compress/device/device_codec.h"

namespace gradwire::compress {

class Device {
 public:
  using Memory = std::shared_ptr<std::byte>;
  /// A place in a stream's work.
  using Mark = std::shared_ptr<void>;
  /// Hears once that a stream has passed a place, or what went wrong there. Runs on a thread of the device:
  /// it must return at once, not throw, and not call the device.
  using Next = std::function<void(std::exception_ptr)>;

  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  /// "cuda:0", for people.
  virtual std::string name() const = 0;
  /// Makes the device the calling thread's. Returns what that had, for restore().
  virtual int use() const = 0;
  /// Gives the thread back what it had, if the process has used that device at all: an idle one would take
  /// memory.
  virtual void restore(int before) const noexcept = 0;
  /// Makes the twin of the codec that spec names; null where it has none. Throws as make().
  virtual std::unique_ptr<DeviceCodec> twin(const CodecSpec& spec) const = 0;

  /// Memory of the device, aligned for any use there.
  virtual Memory allocate(std::size_t bytes) const = 0;
  /// Memory of the host that the device reads and writes, at the same address.
  virtual Memory allocate_pinned(std::size_t bytes) const = 0;
  /// A stream that does not wait for another one unless it is made to.
  virtual std::shared_ptr<const DeviceStream> open_stream() const = 0;

  /// Marks the end of what `handle`, a stream as in DeviceStream, has been given so far.
  virtual Mark mark(void* handle) const = 0;
  /// Lets the stream go on only when the mark has been passed.
  virtual void wait(const DeviceStream& stream, const Mark& mark) const = 0;
  /// Copies within the device, or between it and the host, whose memory should be pinned, or the call may
  /// block.
  virtual void copy(const void* from, void* to, std::size_t bytes, const DeviceStream& stream) const = 0;
  virtual void zero(void* at, std::size_t bytes, const DeviceStream& stream) const = 0;

  // Within the device, as the functions of these names in dense/halves.h.

  virtual void floats_from_halves(dense::Format format, const std::byte* halves, std::span<float> out,
                                  const DeviceStream& stream) const = 0;
  virtual void halves_from_floats(dense::Format format, std::span<const float> values, std::byte* out,
                                  const DeviceStream& stream) const = 0;
  virtual void bf16_from_residuals(std::span<const float> values, std::byte* out,
                                   const DeviceStream& stream) const = 0;

  /// Calls next once the stream has passed what it was given so far.
  virtual void then(const DeviceStream& stream, Next next) const = 0;
  /// Blocks until the stream has passed everything, next() of then() included; throws what went wrong.
  virtual void finish(const DeviceStream& stream) const = 0;

 protected:
  Device() = default;
};

/// A device is the calling thread's, until the end of the scope: the thread may be a framework's, which goes
/// on with its own.
class DeviceScope {
 public:
  explicit DeviceScope(const Device& device) : device_(device), before_(device.use()) {}
  ~DeviceScope() { device_.restore(before_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  const Device& device_;
  const int before_;
};

}  // namespace gradwire::compress
