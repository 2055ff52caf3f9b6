// The conversions of device/halves_thrust.h on a CUDA stream.
//
// Threading and failure: as DeviceCodec.
#pragma once

#include <cstddef>
#include <span>

#include "compress/device/device.h"

namespace gradwire::compress {

void cuda_floats_from_halves(const DeviceStream& stream, dense::Format format, const std::byte* halves,
                             std::span<float> out);
void cuda_halves_from_floats(const DeviceStream& stream, dense::Format format, std::span<const float> values,
                             std::byte* out);
void cuda_bf16_from_residuals(const DeviceStream& stream, std::span<const float> values, std::byte* out);

}  // namespace gradwire::compress
