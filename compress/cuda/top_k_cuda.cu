#include <utility>

#include "compress/cuda/cuda_backend.h"
#include "compress/cuda/cuda_twins.h"
#include "compress/device/top_k_thrust.h"

namespace gradwire::compress {

std::unique_ptr<DeviceCodec> make_top_k_cuda(std::unique_ptr<Codec> codec) {
  return make_top_k_twin<CudaBackend>(std::move(codec));
}

}  // namespace gradwire::compress
