#include <utility>

#include "compress/device/block_thrust.h"
#include "compress/device/cuda_backend.h"
#include "compress/device/cuda_twins.h"

namespace gradwire::compress {

std::unique_ptr<DeviceCodec> make_block_cuda(std::unique_ptr<Codec> codec) {
  return make_block_twin<CudaBackend>(std::move(codec));
}

}  // namespace gradwire::compress
