// How fast the CUDA twins are, against the device's own copy of the same floats in the same run (README.md).
//
// Writes one CSV line per codec and operation to standard output. Every payload is compared with the CPU
// codec's before anything is timed.
#include <cuda_runtime_api.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "compress/codecs.h"
#include "compress/cuda_codec.h"
#include "compress/cuda_devices.h"
#include "compress/cuda_error.h"

namespace {

using namespace gradwire::compress;

template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t count) : count_(count) {
    expect_cuda(cudaMalloc(reinterpret_cast<void**>(&values_), std::max<std::size_t>(count, 1) * sizeof(T)),
                "allocate device memory");
    expect_cuda(cudaMemset(values_, 0, count * sizeof(T)), "clear device memory");
    expect_cuda(cudaDeviceSynchronize(),
                "clear device memory");  // the benchmark's stream does not wait for it
  }
  ~DeviceArray() { cudaFree(values_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  std::span<T> span() const { return {values_, count_}; }
  T* data() const { return values_; }
  void upload(std::span<const T> from) {
    expect_cuda(cudaMemcpy(values_, from.data(), from.size_bytes(), cudaMemcpyHostToDevice), "upload");
    expect_cuda(cudaDeviceSynchronize(), "upload");
  }
  std::vector<T> download(std::size_t count) const {
    std::vector<T> values(count);
    expect_cuda(cudaMemcpy(values.data(), values_, count * sizeof(T), cudaMemcpyDeviceToHost), "download");
    return values;
  }

 private:
  std::size_t count_;
  T* values_ = nullptr;
};

class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream) : stream_(stream) {
    expect_cuda(cudaEventCreate(&begin_), "create an event");
    expect_cuda(cudaEventCreate(&end_), "create an event");
  }
  ~Stopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  double seconds(const std::function<void()>& work) {
    expect_cuda(cudaEventRecord(begin_, stream_), "record an event");
    work();
    expect_cuda(cudaEventRecord(end_, stream_), "record an event");
    expect_cuda(cudaEventSynchronize(end_), "wait for the work");
    float milliseconds = 0;
    expect_cuda(cudaEventElapsedTime(&milliseconds, begin_, end_), "read the events");
    return static_cast<double>(milliseconds) / 1e3;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_;
  cudaEvent_t end_;
};

struct Operation {
  std::string name;
  std::function<void()> run;
  std::vector<double> seconds = {};
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

std::vector<float> gaussian(std::size_t elements, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.4f);
  std::vector<float> values(elements);
  for (float& value : values) value = normal(random);
  return values;
}

/// One codec with its buffers on the device, and what the host's codec makes of the same gradient.
class Bench {
 public:
  Bench(const std::string& spec, const std::vector<float>& grad, cudaStream_t stream)
      : spec_(spec),
        codec_(make(parse_spec(spec))),
        twin_(make_cuda_codec(parse_spec(spec))),
        elements_(grad.size()),
        stream_(stream),
        grad_(elements_),
        residual_(elements_),
        out_(elements_),
        payload_(codec_->max_encoded_size(elements_)),
        reply_(codec_->max_reply_size(elements_, kWays, ReplyKind::kFp32)),
        scales_(codec_->agrees_scales() ? unit_count(elements_) : 0),
        report_(1),
        scratch_(twin_->scratch_bytes(elements_)),
        work_{{0, stream}, report_.data(), scratch_.span()} {
    grad_.upload(grad);
    agree(grad);
    prepare(grad);
  }

  std::vector<Operation> operations() {
    std::vector<Operation> all;
    all.push_back({"copy", [this] {
                     expect_cuda(cudaMemcpyAsync(out_.data(), grad_.data(), elements_ * sizeof(float),
                                                 cudaMemcpyDeviceToDevice, stream_),
                                 "copy");
                   }});
    all.push_back({"encode", [this] {
                     twin_->encode(grad_.span(), residual_.span(), scales_.span(), payload_.span(), work_);
                   }});
    all.push_back({"decode_sum of 1", [this] {
                     const Payload host(host_payload_);
                     twin_->decode_sum({{&host, 1}, good_payload_->data(), 0}, 0.5f, out_.span(), work_);
                   }});
    if (codec_->has_exact_reply()) {
      all.push_back({"decode exact reply of 2", [this] {
                       twin_->decode_reply({host_reply_, reply_.data()}, kWays, ReplyKind::kExact, 0.5f,
                                           out_.span(), {}, work_);
                     }});
    }
    return all;
  }

 private:
  static constexpr std::size_t kWays = 2;

  /// One round of this gradient alone, by the host, where the codec needs scales.
  void agree(const std::vector<float>& grad) {
    if (!codec_->agrees_scales()) return;
    std::vector<std::byte> bytes(codec_->max_encoded_size(elements_));
    bytes.resize(codec_->encode(grad, {}, {}, bytes).bytes);
    const Payload payload(bytes);
    std::vector<std::byte> reply(codec_->max_reply_size(elements_, 1, ReplyKind::kFp32));
    reply.resize(codec_->encode_reply({&payload, 1}, elements_, ReplyKind::kFp32, {}, reply).bytes);
    std::vector<float> sum(elements_);
    host_scales_.resize(unit_count(elements_));
    codec_->decode_reply(reply, 1, ReplyKind::kFp32, sum, host_scales_);
    scales_.upload(host_scales_);
  }

  /// Makes the payload on both sides, compares, and leaves a payload and a reply to decode.
  void prepare(const std::vector<float>& grad) {
    host_payload_.resize(codec_->max_encoded_size(elements_));
    host_payload_.resize(codec_->encode(grad, {}, host_scales_, host_payload_).bytes);
    const std::size_t bytes = twin_->encode(grad_.span(), {}, scales_.span(), payload_.span(), work_);
    expect_cuda(cudaStreamSynchronize(stream_), "encode");
    if (payload_.download(bytes) != host_payload_)
      throw std::runtime_error(spec_ + ": the device's payload is not the host's");
    good_payload_ = std::make_unique<DeviceArray<std::byte>>(host_payload_.size());
    good_payload_->upload(host_payload_);
    if (!codec_->has_exact_reply()) return;
    const std::vector<Payload> payloads(kWays, Payload(host_payload_));
    host_reply_.resize(codec_->max_reply_size(elements_, kWays, ReplyKind::kExact));
    host_reply_.resize(codec_->encode_reply(payloads, elements_, ReplyKind::kExact, {}, host_reply_).bytes);
    reply_.upload(host_reply_);
  }

  std::string spec_;
  std::unique_ptr<Codec> codec_;
  std::unique_ptr<DeviceCodec> twin_;
  std::size_t elements_;
  cudaStream_t stream_;
  DeviceArray<float> grad_;
  DeviceArray<float> residual_;
  DeviceArray<float> out_;
  DeviceArray<std::byte> payload_;
  DeviceArray<std::byte> reply_;
  DeviceArray<UnitScale> scales_;
  DeviceArray<DeviceReport> report_;
  DeviceArray<std::byte> scratch_;
  DeviceWork work_;
  std::vector<UnitScale> host_scales_;
  std::vector<std::byte> host_payload_;
  std::vector<std::byte> host_reply_;
  std::unique_ptr<DeviceArray<std::byte>> good_payload_;
};

void run(const std::string& spec, std::size_t elements, int passes, cudaStream_t stream) {
  Bench bench(spec, gaussian(elements, 1), stream);
  Stopwatch watch(stream);
  std::vector<Operation> operations = bench.operations();
  for (Operation& operation : operations) operation.run();  // loads the kernels
  // Interleaved: whatever else the machine does meets all of them alike.
  for (int pass = 0; pass < passes; ++pass) {
    for (Operation& operation : operations) operation.seconds.push_back(watch.seconds(operation.run));
  }
  const double copy = median(operations[0].seconds);
  for (const Operation& operation : operations) {
    const double seconds = median(operation.seconds);
    std::printf("%s,%s,%zu,%.1f,%.1f,%.3f\n", spec.c_str(), operation.name.c_str(), elements, seconds * 1e6,
                static_cast<double>(elements * sizeof(float)) / seconds / 1e9, copy / seconds);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("CUDA twins of the codecs against the device's copy");
  std::vector<std::size_t> sizes{1u << 20, 25'000'000};
  std::vector<std::string> specs{"fp16", "bf16", "2bit", "2bit:threshold=auto"};
  int passes = 51;
  app.add_option("--elements", sizes, "float32 elements of a gradient");
  app.add_option("--codec", specs, "codecs, as parse_spec() reads them");
  app.add_option("--passes", passes, "timed runs of each operation; the median counts")
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  if (const std::string missing = cuda_devices().missing; !missing.empty()) {
    std::fprintf(stderr, "gradwire-cuda-codec: %s\n", missing.c_str());
    return 1;
  }
  try {
    use_cuda_device(0);
    cudaDeviceProp properties;
    expect_cuda(cudaGetDeviceProperties(&properties, 0), "ask for the device's name");
    cudaStream_t stream = nullptr;
    expect_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "create a stream");
    std::printf("# %s\ncodec,operation,elements,microseconds,gradient_gb_per_s,ratio_to_copy\n",
                properties.name);
    for (const std::string& spec : specs) {
      for (const std::size_t elements : sizes) run(spec, elements, passes, stream);
    }
    cudaStreamDestroy(stream);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gradwire-cuda-codec: %s\n", error.what());
    return 1;
  }
  return 0;
}
