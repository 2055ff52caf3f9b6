// gradwire-thrust-codec: the same algorithms on Thrust's CPP backend, so that the benchmark itself is tested
// without a GPU. Its times say nothing about one.
#include <chrono>
#include <memory>

#include "experiments/cuda_codec/codec_bench.h"
#include "tests/compress/device/streams_device.h"

namespace gradwire::compress {
namespace {

TimedDevice open() {
  const auto device = std::make_shared<StreamsDevice>();
  return {device, "Thrust's CPP backend: no GPU",
          [device](const DeviceStream& stream, const std::function<void()>& work) {
            const auto began = std::chrono::steady_clock::now();
            work();
            device->finish(stream);
            return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
          }};
}

}  // namespace
}  // namespace gradwire::compress

int main(int argc, char** argv) {
  return gradwire::compress::bench_codecs(argc, argv, "gradwire-thrust-codec", gradwire::compress::open);
}
