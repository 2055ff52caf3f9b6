#include <utility>

#include "compress/cuda/cuda_backend.h"
#include "compress/cuda/cuda_twins.h"
#include "compress/device/two_bit_auto_thrust.h"

namespace gradwire::compress {

std::unique_ptr<DeviceCodec> make_two_bit_cuda(std::unique_ptr<Codec> codec) {
  return make_two_bit_twin<CudaBackend>(std::move(codec));
}

}  // namespace gradwire::compress
