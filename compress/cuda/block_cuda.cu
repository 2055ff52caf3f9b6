#include <utility>

#include "compress/cuda/cuda_backend.h"
#include "compress/cuda/cuda_twins.h"
#include "compress/device/block_thrust.h"

namespace gradwire::compress {

std::unique_ptr<DeviceCodec> make_block_cuda(std::unique_ptr<Codec> codec) {
  return make_block_twin<CudaBackend>(std::move(codec));
}

}  // namespace gradwire::compress
