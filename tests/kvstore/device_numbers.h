// Arrays of a caller on a device that needs no GPU.
#pragma once

#include <algorithm>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "kvstore/array_view.h"
#include "kvstore/options.h"
#include "tests/compress/device/streams_device.h"

namespace gradwire::kvstore {

/// What is written goes through a stream, which nobody waits for on the host.
class DeviceNumbers {
 public:
  DeviceNumbers(const std::shared_ptr<compress::StreamsDevice>& device, const std::vector<float>& values,
                ElementType type = ElementType::kFloat32)
      : device_(device),
        type_(type),
        bytes_(values.size() * transport::bytes_of(type)),
        memory_(device->allocate(bytes_)),
        stream_(finished_at_the_end(device)) {
    write(values);
  }

  ArrayView view() const { return {type_, {memory_.get(), bytes_}}; }
  std::span<float> span() const { return view().floats(); }
  OnDevice place() const { return {device_, stream_->handle}; }
  /// Rounded to the array's type.
  void write(const std::vector<float>& values) {
    std::vector<std::byte>& rounded = written_.emplace_back(bytes_);
    copy_floats(values, {type_, rounded});
    device_->copy(rounded.data(), memory_.get(), bytes_, *stream_);
  }
  /// As the host sees them after an operation has ended: its own thread reads them.
  std::vector<float> values() const {
    std::vector<float> widened(view().size());
    copy_as_floats(view(), widened);
    return widened;
  }

 private:
  using Stream = std::shared_ptr<const compress::DeviceStream>;
  /// What it still does is done before its last owner is gone.
  static Stream finished_at_the_end(const std::shared_ptr<compress::StreamsDevice>& device) {
    const Stream opened = device->open_stream();
    return {opened.get(), [device, opened](const compress::DeviceStream*) {
              try {
                device->finish(*opened);
              } catch (const std::runtime_error&) {  // a broken device does nothing more
              }
            }};
  }

  std::shared_ptr<compress::StreamsDevice> device_;
  ElementType type_;
  std::size_t bytes_;
  compress::Device::Memory memory_;
  std::list<std::vector<std::byte>> written_;  // all that a copy may still read
  Stream stream_;                              // last member: finished first
};

}  // namespace gradwire::kvstore
