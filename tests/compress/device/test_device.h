// A place where a DeviceCodec works, as the conformance suite sees it: memory, copies, streams and the twins.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compress/codec.h"
#include "compress/device/device_codec.h"

namespace gradwire::compress {

class TestDevice {
 public:
  virtual ~TestDevice() = default;

  virtual std::unique_ptr<DeviceCodec> twin(const CodecSpec& spec) const = 0;

  /// Memory of exactly `bytes` bytes, aligned to 16.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) = 0;
  virtual void upload(const void* from, void* to, std::size_t bytes) = 0;
  virtual void download(const void* from, void* to, std::size_t bytes) = 0;

  virtual std::size_t stream_count() const = 0;
  virtual DeviceStream stream(std::size_t index) = 0;
  /// Blocks until the stream has passed everything, and throws what went wrong there.
  virtual void finish(const DeviceStream& stream) = 0;
};

/// Values on the device. `shift` elements lie before the first, so that it is not aligned to 16 bytes.
template <typename T>
class DeviceArray {
 public:
  DeviceArray(TestDevice& device, const std::vector<T>& values, std::size_t shift = 0)
      : device_(device), shift_(shift), count_(values.size()) {
    memory_ = static_cast<T*>(device.allocate((shift + count_) * sizeof(T)));
    device.upload(values.data(), data(), count_ * sizeof(T));
  }
  ~DeviceArray() { device_.release(memory_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return memory_ + shift_; }
  std::span<T> span() const { return {data(), count_}; }
  /// Empty unless wanted: what a call without residual is given.
  std::span<T> span_if(bool wanted) const { return wanted ? span() : std::span<T>(); }
  std::vector<T> values() const {
    std::vector<T> copy(count_);
    device_.download(data(), copy.data(), count_ * sizeof(T));
    return copy;
  }

 private:
  TestDevice& device_;
  std::size_t shift_;
  std::size_t count_;
  T* memory_;
};

/// One kind of device, and why it cannot be had here, if it cannot.
struct TestDeviceEntry {
  std::string name;
  std::unique_ptr<TestDevice> (*open)();
  std::string (*missing)();  ///< empty where open() works

  friend std::ostream& operator<<(std::ostream& to, const TestDeviceEntry& entry) { return to << entry.name; }
};

}  // namespace gradwire::compress
