#include <utility>

#include "compress/cuda/cuda_backend.h"
#include "compress/cuda/cuda_twins.h"
#include "compress/device/natural_thrust.h"
#include "compress/device/terngrad_thrust.h"

namespace gradwire::compress {

std::unique_ptr<DeviceCodec> make_natural_cuda(std::unique_ptr<Codec> codec) {
  return make_natural_twin<CudaBackend>(std::move(codec));
}

std::unique_ptr<DeviceCodec> make_terngrad_cuda(std::unique_ptr<Codec> codec) {
  return make_terngrad_twin<CudaBackend>(std::move(codec));
}

}  // namespace gradwire::compress
