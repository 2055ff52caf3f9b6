// The twins of each codec family on a CUDA device, each compiled in a file of its own.
//
// Threading: all functions may be called from any thread.
#pragma once

#include <memory>

#include "compress/device/device_codec.h"

namespace gradwire::compress {

/// Each requires a codec of the family that it names, and makes its twin.
std::unique_ptr<DeviceCodec> make_dense_cuda(std::unique_ptr<Codec> codec);     ///< none, fp16, bf16
std::unique_ptr<DeviceCodec> make_two_bit_cuda(std::unique_ptr<Codec> codec);   ///< 2bit
std::unique_ptr<DeviceCodec> make_one_bit_cuda(std::unique_ptr<Codec> codec);   ///< 1bit
std::unique_ptr<DeviceCodec> make_block_cuda(std::unique_ptr<Codec> codec);     ///< of BlockCodec
std::unique_ptr<DeviceCodec> make_top_k_cuda(std::unique_ptr<Codec> codec);     ///< topk
std::unique_ptr<DeviceCodec> make_natural_cuda(std::unique_ptr<Codec> codec);   ///< natural
std::unique_ptr<DeviceCodec> make_terngrad_cuda(std::unique_ptr<Codec> codec);  ///< terngrad

}  // namespace gradwire::compress
