// The device codecs where they belong. Skipped, with the reason, on a machine without a CUDA device.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "compress/cuda/cuda_codec.h"
#include "compress/cuda/cuda_devices.h"
#include "compress/cuda/cuda_error.h"
#include "tests/compress/device/device_codec_conformance.h"

namespace gradwire::compress {
namespace {

class CudaDevice final : public TestDevice {
 public:
  static std::unique_ptr<TestDevice> open() { return std::make_unique<CudaDevice>(); }
  static std::string missing() { return cuda_devices().missing; }

  CudaDevice() {
    use_cuda_device(0);
    for (cudaStream_t& stream : streams_) {
      expect_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "create a stream");
    }
  }
  ~CudaDevice() override {
    for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
  }

  std::unique_ptr<DeviceCodec> twin(const CodecSpec& spec) const override { return make_cuda_codec(spec); }

  void* allocate(std::size_t bytes) override {
    void* memory = nullptr;
    expect_cuda(cudaMalloc(&memory, bytes == 0 ? 1 : bytes), "allocate device memory");
    return memory;
  }
  void release(void* memory) override { cudaFree(memory); }

  // cudaMemcpy() runs on the default stream, which the others do not wait for: so the host waits.
  void upload(const void* from, void* to, std::size_t bytes) override {
    if (bytes == 0) return;
    expect_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "copy to the device");
    expect_cuda(cudaStreamSynchronize(nullptr), "wait for the copy");
  }
  void download(const void* from, void* to, std::size_t bytes) override {
    if (bytes == 0) return;
    expect_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "copy from the device");
  }

  std::size_t stream_count() const override { return std::size(streams_); }
  DeviceStream stream(std::size_t index) override { return {0, streams_[index]}; }
  void finish(const DeviceStream& stream) override {
    expect_cuda(cudaStreamSynchronize(static_cast<cudaStream_t>(stream.handle)), "run what was enqueued");
  }

 private:
  cudaStream_t streams_[3] = {};
};

TEST(CudaTwins, AreMissingOnlyWhereThisSaysSo) {
  const std::string missing = codecs_without_twin(make_cuda_codec);
  for (const char* name : {"none", "fp16", "bf16", "2bit", "int8", "int4", "nf2", "nf4", "fp8", "1bit",
                           "topk", "qsgd", "natural", "terngrad"}) {
    EXPECT_NE(make_cuda_codec({name, {}}), nullptr) << name;
  }
  if (!missing.empty()) GTEST_SKIP() << "no CUDA twin yet: " << missing;
}

const TestDeviceEntry kCuda{"cuda", CudaDevice::open, CudaDevice::missing};

INSTANTIATE_TEST_SUITE_P(Cuda, DeviceCodecConformance,
                         testing::Combine(testing::Values(kCuda),
                                          testing::ValuesIn(specs_with_twin(make_cuda_codec))),
                         device_case_name);
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceGolden, testing::Values(kCuda), device_name);

/// Memory of the host that the device reads and writes.
template <typename T>
class PinnedArray {
 public:
  explicit PinnedArray(const std::vector<T>& values) : count_(values.size()) {
    expect_cuda(cudaHostAlloc(reinterpret_cast<void**>(&values_), count_ * sizeof(T), cudaHostAllocDefault),
                "allocate pinned memory");
    std::copy(values.begin(), values.end(), values_);
  }
  ~PinnedArray() { cudaFreeHost(values_); }
  PinnedArray(const PinnedArray&) = delete;
  PinnedArray& operator=(const PinnedArray&) = delete;

  std::span<T> span() const { return {values_, count_}; }

 private:
  std::size_t count_;
  T* values_ = nullptr;
};

class CudaCodecOnDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string missing = cuda_devices().missing; !missing.empty()) GTEST_SKIP() << missing;
  }
};

TEST_F(CudaCodecOnDevice, PinnedPayloadsNeedNoCopyAndStreamsKeepTheOrder) {
  CudaDevice device;
  const std::size_t elements = 3 * kUnitElements + 5;
  const auto grad = gaussian(elements, 1);
  for (const std::string& name : specs_with_twin(make_cuda_codec)) {
    SCOPED_TRACE(name);
    const auto codec = make(parse_spec(name));
    const auto twin = device.twin(parse_spec(name));
    const auto expected = encoded(*codec, grad, {}, {});
    std::vector<float> values(elements);
    codec->decode(expected, values);

    const PinnedArray<float> written_late(grad);
    const PinnedArray<std::byte> payload(std::vector<std::byte>(codec->max_encoded_size(elements)));
    const PinnedArray<DeviceReport> report(std::vector<DeviceReport>(1));
    const DeviceArray<float> grad_there(device, std::vector<float>(elements));
    const DeviceArray<float> out(device, std::vector<float>(elements));
    const DeviceArray<std::byte> scratch(device, std::vector<std::byte>(twin->scratch_bytes(elements)));
    const DeviceWork work{device.stream(0), report.span().data(), scratch.span()};
    auto* const stream = static_cast<cudaStream_t>(work.stream.handle);
    // The gradient arrives on the stream while the host is already asking for its payload.
    expect_cuda(cudaMemcpyAsync(grad_there.data(), written_late.span().data(), elements * sizeof(float),
                                cudaMemcpyHostToDevice, stream),
                "enqueue a copy");
    const std::size_t bytes = twin->encode(grad_there.span(), {}, {}, payload.span(), work);
    device.finish(work.stream);
    const Payload host = payload.span().first(bytes);
    ASSERT_TRUE(std::equal(host.begin(), host.end(), expected.begin(), expected.end()));
    EXPECT_EQ(report.span()[0].nonfinite, 0u);

    twin->decode_sum({{&host, 1}, host.data(), 0}, 1, out.span(), work);
    device.finish(work.stream);
    EXPECT_EQ(out.values(), values);
  }
}

TEST_F(CudaCodecOnDevice, AStreamOfAnotherDeviceIsRefused) {
  CudaDevice device;
  const auto twin = device.twin({"fp16", {}});
  const DeviceArray<float> grad(device, gaussian(8, 1));
  const DeviceArray<std::byte> out(device, std::vector<std::byte>(16));
  const DeviceArray<DeviceReport> report(device, std::vector<DeviceReport>(1));
  EXPECT_THROW(twin->encode(grad.span(), {}, {}, out.span(), {{1, nullptr}, report.data(), {}}),
               std::invalid_argument);
}

}  // namespace
}  // namespace gradwire::compress
