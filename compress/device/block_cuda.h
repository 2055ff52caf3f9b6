// int8, int4, nf2, nf4 and fp8 on a CUDA device.
//
// Threading: all functions may be called from any thread.
#pragma once

#include <memory>

#include "compress/device/device_codec.h"

namespace gradwire::compress {

/// Makes the twin of codec, which is int8, int4, nf2, nf4 or fp8.
std::unique_ptr<DeviceCodec> make_block_cuda(std::unique_ptr<Codec> codec);

}  // namespace gradwire::compress
