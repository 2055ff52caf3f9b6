// The codecs' twins on CUDA devices.
//
// Threading: all functions may be called from any thread.
#pragma once

#include <memory>

#include "compress/codec.h"
#include "compress/device/device_codec.h"

namespace gradwire::compress {

/// Makes the CUDA twin of the codec that spec names; null where that codec has none, and must be encoded on
/// the host. Needs no device: the twin's calls do. Throws as make(), and std::runtime_error where this build
/// has no CUDA.
std::unique_ptr<DeviceCodec> make_cuda_codec(const CodecSpec& spec);

}  // namespace gradwire::compress
