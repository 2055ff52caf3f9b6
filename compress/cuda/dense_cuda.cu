#include <utility>

#include "compress/cuda/cuda_backend.h"
#include "compress/cuda/cuda_twins.h"
#include "compress/device/dense_thrust.h"

namespace gradwire::compress {

std::unique_ptr<DeviceCodec> make_dense_cuda(std::unique_ptr<Codec> codec) {
  return make_dense_twin<CudaBackend>(std::move(codec));
}

}  // namespace gradwire::compress
