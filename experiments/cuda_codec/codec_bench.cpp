#include "experiments/cuda_codec/codec_bench.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <random>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "compress/codecs.h"

namespace gradwire::compress {
namespace {

constexpr std::size_t kReplyWays = 2;
constexpr std::size_t kSumWays = 4;

/// Values in the memory of a device.
template <typename T>
class DeviceArray {
 public:
  DeviceArray(const Device& device, const DeviceStream& stream, std::span<const T> values)
      : DeviceArray(device, stream, values.size()) {
    device.copy(values.data(), data(), values.size_bytes(), stream);
    device.finish(stream);
  }
  DeviceArray(const Device& device, const DeviceStream& stream, std::size_t count)
      : memory_(device.allocate(count * sizeof(T))), count_(count) {
    device.zero(memory_.get(), count * sizeof(T), stream);
  }

  T* data() const { return reinterpret_cast<T*>(memory_.get()); }
  std::span<T> span() const { return {data(), count_}; }

 private:
  Device::Memory memory_;
  std::size_t count_;
};

struct Operation {
  std::string name;
  std::size_t moved_bytes;  ///< that it reads and writes at the least
  std::function<void()> run;
  std::vector<double> seconds = {};
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<float> gaussian(std::size_t elements, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.4f);
  std::vector<float> values(elements);
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<std::byte> encoded(const Codec& codec, std::span<const float> grad,
                               std::span<const UnitScale> scales) {
  std::vector<std::byte> payload(codec.max_encoded_size(grad.size()));
  payload.resize(codec.encode(grad, {}, scales, payload).bytes);
  return payload;
}

/// The scales that one round of this gradient alone agrees on; empty where the codec needs none.
std::vector<UnitScale> agreed_scales(const Codec& codec, std::span<const float> grad) {
  if (!codec.agrees_scales()) return {};
  const auto bytes = encoded(codec, grad, {});
  const Payload payload(bytes);
  std::vector<std::byte> reply(codec.max_reply_size(grad.size(), 1, ReplyKind::kFp32));
  reply.resize(codec.encode_reply({&payload, 1}, grad.size(), ReplyKind::kFp32, {}, reply).bytes);
  std::vector<float> sum(grad.size());
  std::vector<UnitScale> scales(unit_count(grad.size()));
  codec.decode_reply(reply, 1, ReplyKind::kFp32, sum, scales);
  return scales;
}

std::vector<std::byte> exact_reply(const Codec& codec, const std::vector<std::byte>& payload,
                                   std::size_t elements) {
  if (!codec.has_exact_reply()) return {};
  const std::vector<Payload> payloads(kReplyWays, Payload(payload));
  std::vector<std::byte> reply(codec.max_reply_size(elements, kReplyWays, ReplyKind::kExact));
  reply.resize(codec.encode_reply(payloads, elements, ReplyKind::kExact, {}, reply).bytes);
  return reply;
}

std::size_t aligned(std::size_t bytes) {
  return (bytes + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
}

/// kSumWays copies of a payload, as decode_sum() takes them.
std::vector<std::byte> side_by_side(const std::vector<std::byte>& payload) {
  std::vector<std::byte> all(kSumWays * aligned(payload.size()));
  for (std::size_t way = 0; way < kSumWays; ++way)
    std::ranges::copy(payload, all.begin() + static_cast<std::ptrdiff_t>(way * aligned(payload.size())));
  return all;
}

/// One codec with its buffers on the device, and what the host's codec makes of the same gradient.
class Bench {
 public:
  Bench(std::string spec, const std::vector<float>& grad, const Device& device, const DeviceStream& stream)
      : spec_(std::move(spec)),
        device_(device),
        stream_(stream),
        codec_(make(parse_spec(spec_))),
        twin_(device.twin(parse_spec(spec_))),
        elements_(grad.size()),
        host_scales_(agreed_scales(*codec_, grad)),
        host_payload_(encoded(*codec_, grad, host_scales_)),
        host_reply_(exact_reply(*codec_, host_payload_, elements_)),
        host_payloads_(kSumWays, Payload(host_payload_)),
        grad_(device, stream, std::span(grad)),
        residual_(device, stream, codec_->lossy() ? elements_ : 0),
        out_(device, stream, elements_),
        scales_(device, stream, std::span<const UnitScale>(host_scales_)),
        payload_(device, stream, codec_->max_encoded_size(elements_)),
        payloads_(device, stream, std::span<const std::byte>(side_by_side(host_payload_))),
        reply_(device, stream, std::span<const std::byte>(host_reply_)),
        report_(device, stream, 1),
        scratch_(device, stream, twin_->scratch_bytes(elements_)),
        work_{stream, report_.data(), scratch_.span()} {
    compare();
  }
  Bench(const Bench&) = delete;  // its spans and operations point into it
  Bench& operator=(const Bench&) = delete;

  std::vector<Operation> operations() {
    const std::size_t floats = elements_ * sizeof(float);
    const std::size_t encoded_bytes = (codec_->lossy() ? 3 : 1) * floats + host_payload_.size();
    std::vector<Operation> all;
    all.push_back(
        {"copy", 2 * floats, [this, floats] { device_.copy(grad_.data(), out_.data(), floats, stream_); }});
    all.push_back({"encode", encoded_bytes, [this] {
                     twin_->encode(grad_.span(), residual_.span(), scales_.span(), payload_.span(), work_);
                   }});
    for (const std::size_t ways : {std::size_t{1}, kSumWays}) {
      all.push_back(
          {"decode_sum of " + std::to_string(ways), ways * host_payload_.size() + floats, [this, ways] {
             const std::span<const Payload> host = std::span(host_payloads_).first(ways);
             const std::size_t stride = aligned(host_payload_.size());
             twin_->decode_sum({host, payloads_.data(), stride}, 0.5f, out_.span(), work_);
           }});
    }
    if (codec_->has_exact_reply()) {
      all.push_back({"decode exact reply of 2", host_reply_.size() + floats, [this] {
                       twin_->decode_reply({host_reply_, reply_.data()}, kReplyWays, ReplyKind::kExact, 0.5f,
                                           out_.span(), {}, work_);
                     }});
    }
    return all;
  }

 private:
  /// Throws std::runtime_error where the device's payload is not the host's.
  void compare() {
    const std::size_t bytes = twin_->encode(grad_.span(), {}, scales_.span(), payload_.span(), work_);
    std::vector<std::byte> made(bytes);
    device_.copy(payload_.data(), made.data(), bytes, stream_);
    device_.finish(stream_);
    if (made != host_payload_) throw std::runtime_error(spec_ + ": the device's payload is not the host's");
  }

  const std::string spec_;
  const Device& device_;
  const DeviceStream stream_;
  const std::unique_ptr<Codec> codec_;
  const std::unique_ptr<DeviceCodec> twin_;
  const std::size_t elements_;
  const std::vector<UnitScale> host_scales_;
  const std::vector<std::byte> host_payload_;
  const std::vector<std::byte> host_reply_;
  const std::vector<Payload> host_payloads_;
  const DeviceArray<float> grad_;
  const DeviceArray<float> residual_;
  const DeviceArray<float> out_;
  const DeviceArray<UnitScale> scales_;
  const DeviceArray<std::byte> payload_;
  const DeviceArray<std::byte> payloads_;
  const DeviceArray<std::byte> reply_;
  const DeviceArray<DeviceReport> report_;
  const DeviceArray<std::byte> scratch_;
  const DeviceWork work_;
};

void run(const std::string& spec, std::size_t elements, int passes, const TimedDevice& timed,
         const DeviceStream& stream) {
  Bench bench(spec, gaussian(elements, 1), *timed.device, stream);
  std::vector<Operation> operations = bench.operations();
  for (Operation& operation : operations) operation.run();  // loads the kernels
  // Interleaved: a disturbance of the machine affects all operations alike.
  for (int pass = 0; pass < passes; ++pass) {
    for (Operation& operation : operations) operation.seconds.push_back(timed.seconds(stream, operation.run));
  }
  const double copy = median(operations[0].seconds);
  for (const Operation& operation : operations) {
    const double seconds = median(operation.seconds);
    const double share_of_copy_bytes =
        static_cast<double>(operation.moved_bytes) / static_cast<double>(operations[0].moved_bytes);
    std::printf("\"%s\",%s,%zu,%.1f,%.1f,%.2f,%.3f,%.3f\n", spec.c_str(), operation.name.c_str(), elements,
                seconds * 1e6, static_cast<double>(elements * sizeof(float)) / seconds / 1e9,
                static_cast<double>(operation.moved_bytes) / static_cast<double>(elements), copy / seconds,
                share_of_copy_bytes * copy / seconds);
    std::fflush(stdout);
  }
}

/// Every codec that has a twin, and 2bit with agreed scales besides.
std::vector<std::string> specs_with_twin(const Device& device) {
  std::vector<std::string> specs;
  for (const CodecEntry& entry : codecs()) specs.emplace_back(entry.name);
  specs.emplace_back("2bit:threshold=auto");
  std::erase_if(specs, [&](const std::string& spec) { return device.twin(parse_spec(spec)) == nullptr; });
  return specs;
}

}  // namespace

int bench_codecs(int argc, char** argv, const std::string& program,
                 const std::function<TimedDevice()>& open) {
  CLI::App app("The codecs' twins on a device, beside the device's own copy of the same floats", program);
  std::vector<std::size_t> sizes{65'536, 1u << 20, 25'000'000};
  std::vector<std::string> specs;
  int passes = 51;
  app.add_option("--elements", sizes, "float32 elements of a gradient; repeatable")->capture_default_str();
  app.add_option("--codec", specs, "codec, as \"2bit:threshold=0.5\"; repeatable; default: every twin");
  app.add_option("--passes", passes, "timed runs of each operation; the median counts")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    const TimedDevice timed = open();
    const std::shared_ptr<const DeviceStream> stream = timed.device->open_stream();
    if (specs.empty()) specs = specs_with_twin(*timed.device);
    std::printf(
        "# %s\ncodec,operation,elements,microseconds,gradient_gb_per_s,bytes_an_element,ratio_to_copy,"
        "ratio_to_copy_by_bytes\n",
        timed.description.c_str());
    for (const std::string& spec : specs) {
      for (const std::size_t elements : sizes) run(spec, elements, passes, timed, *stream);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", program.c_str(), error.what());
    return 1;
  }
  return 0;
}

}  // namespace gradwire::compress
