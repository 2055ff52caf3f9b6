#include "compress/cuda/cuda_backend.h"
#include "compress/cuda/cuda_halves.h"
#include "compress/device/halves_thrust.h"

namespace gradwire::compress {

void cuda_floats_from_halves(const DeviceStream& stream, dense::Format format, const std::byte* halves,
                             std::span<float> out) {
  enqueue_floats_from_halves<CudaBackend>(stream, format, halves, out);
}

void cuda_halves_from_floats(const DeviceStream& stream, dense::Format format, std::span<const float> values,
                             std::byte* out) {
  enqueue_halves_from_floats<CudaBackend>(stream, format, values, out);
}

void cuda_bf16_from_residuals(const DeviceStream& stream, std::span<const float> values, std::byte* out) {
  enqueue_bf16_from_residuals<CudaBackend>(stream, values, out);
}

}  // namespace gradwire::compress
