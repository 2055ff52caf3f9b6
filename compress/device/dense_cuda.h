// none, fp16 and bf16 on a CUDA device.
//
// Threading: all functions may be called from any thread.
#pragma once

#include <memory>

#include "compress/device/device_codec.h"

namespace gradwire::compress {

/// Makes the twin of codec, which is none, fp16 or bf16.
std::unique_ptr<DeviceCodec> make_dense_cuda(std::unique_ptr<Codec> codec);

}  // namespace gradwire::compress
