// How fast the twins of the codecs are on a device, beside the device's own copy of the same floats
// (README.md).
//
// Threading: one thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "compress/device/device.h"

namespace gradwire::compress {

/// A device and how time passes on it.
struct TimedDevice {
  std::shared_ptr<Device> device;  // owners: this and the benchmark
  std::string description;         ///< "NVIDIA H200, ..."
  /// Runs work, which enqueues on a stream, and returns the seconds that the stream took for it.
  std::function<double(const DeviceStream& stream, const std::function<void()>& work)> seconds;
};

/// The whole program: reads the options, opens the device, compares every payload with the CPU codec's and
/// writes one CSV line per codec, operation and size to standard output. Returns the exit status.
int bench_codecs(int argc, char** argv, const std::string& program, const std::function<TimedDevice()>& open);

}  // namespace gradwire::compress
