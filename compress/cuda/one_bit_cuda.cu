#include <utility>

#include "compress/cuda/cuda_backend.h"
#include "compress/cuda/cuda_twins.h"
#include "compress/device/one_bit_thrust.h"

namespace gradwire::compress {

std::unique_ptr<DeviceCodec> make_one_bit_cuda(std::unique_ptr<Codec> codec) {
  return make_one_bit_twin<CudaBackend>(std::move(codec));
}

}  // namespace gradwire::compress
