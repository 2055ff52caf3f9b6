// Stands in for the CUDA parts where CMake found no way to build them; it knows why.
#include <stdexcept>
#include <string>

#include "compress/codecs.h"
#include "compress/cuda/cuda_codec.h"
#include "compress/cuda/cuda_device.h"
#include "compress/cuda/cuda_devices.h"

namespace gradwire::compress {

CudaDevices cuda_devices() { return {0, "this build has no CUDA: " GRADWIRE_NO_CUDA}; }

void use_cuda_device(int device) {
  throw std::runtime_error("cuda: cannot use device " + std::to_string(device) + ": " +
                           cuda_devices().missing);
}

std::shared_ptr<Device> open_cuda_device(int number) {
  use_cuda_device(number);
  return nullptr;  // not reached: it throws
}

std::unique_ptr<DeviceCodec> make_cuda_codec(const CodecSpec& spec) {
  throw std::runtime_error("cuda: cannot make a twin of " + make(spec)->spec().name + ": " +
                           cuda_devices().missing);
}

}  // namespace gradwire::compress
