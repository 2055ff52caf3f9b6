// A CUDA device as a Device.
//
// Threading: as Device.
#pragma once

#include <memory>

#include "compress/device/device.h"

namespace gradwire::compress {

/// Opens CUDA's device of this number. Throws std::runtime_error with the reason where it cannot be used.
std::shared_ptr<Device> open_cuda_device(int number);

}  // namespace gradwire::compress
