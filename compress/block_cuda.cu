#include <utility>

#include "compress/block_cuda.h"
#include "compress/block_thrust.h"
#include "compress/cuda_backend.h"

namespace gradwire::compress {

std::unique_ptr<DeviceCodec> make_block_cuda(std::unique_ptr<Codec> codec) {
  return make_block_twin<CudaBackend>(std::move(codec));
}

}  // namespace gradwire::compress
