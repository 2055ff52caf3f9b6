// gradwire._core: the codecs' twins on CUDA devices, for code that keeps its arrays there and sends payloads
// by itself. Memory and streams are the caller's: nothing here allocates or waits.
#include "compress/device/device_codec.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "compress/codecs.h"
#include "compress/cuda/cuda_codec.h"
#include "compress/cuda/cuda_devices.h"
#include "python/src/arrays.h"
#include "python/src/bindings.h"

namespace gradwire::python {

namespace nb = nanobind;
using namespace nb::literals;
using compress::DeviceCodec;
using compress::DeviceReport;
using compress::DeviceWork;
using compress::Payload;
using compress::UnitScale;

namespace {

using CudaBytes = nb::ndarray<std::uint8_t, nb::c_contig, nb::device::cuda>;
using ConstCudaBytes = nb::ndarray<const std::uint8_t, nb::c_contig, nb::device::cuda>;
/// A DeviceReport: what the device found. PyTorch has no whole support for uint32.
using CudaReport = nb::ndarray<std::int32_t, nb::shape<2>, nb::c_contig, nb::device::cuda>;
static_assert(sizeof(DeviceReport) == 2 * sizeof(std::int32_t));

std::span<std::byte> bytes_in(const CudaBytes& array) {
  return {reinterpret_cast<std::byte*>(array.data()), array.size()};
}

/// What a call works with; makes the arrays' device that of this thread.
DeviceWork work_of(const CudaReport& report, std::span<std::byte> scratch, std::uintptr_t stream) {
  compress::use_cuda_device(report.device_id());
  return {{report.device_id(), reinterpret_cast<void*>(stream)},
          reinterpret_cast<DeviceReport*>(report.data()),
          scratch};
}

std::span<UnitScale> scales_in(const std::optional<CudaFloats>& scales, std::size_t elements) {
  static_assert(sizeof(UnitScale) == 2 * sizeof(float));
  if (!scales) return {};
  const std::size_t units = compress::unit_count(elements);
  if (scales->size() != 2 * units) {
    throw std::invalid_argument("scales has " + std::to_string(scales->size()) + " floats, expected (" +
                                std::to_string(units) + ", 2): threshold and level per unit");
  }
  return {reinterpret_cast<UnitScale*>(scales->data()), units};
}

/// The payloads of a round: where they were received, and the same in one block on the device.
struct Round {
  Round(const std::vector<GivenArray>& received, const ConstCudaBytes& block) {
    if (block.ndim() != 2 || block.shape(0) != received.size()) {
      throw std::invalid_argument("payloads: " + std::to_string(received.size()) +
                                  " were received; give as many on the device: uint8 (payloads, stride)");
    }
    for (const GivenArray& payload : received) host.push_back(bytes_of(payload, "payloads", "a payload"));
    payloads = {host, reinterpret_cast<const std::byte*>(block.data()), block.shape(1)};
  }
  std::vector<Payload> host;
  compress::DevicePayloads payloads;
};

std::unique_ptr<DeviceCodec> make_twin(const std::string& spec) {
  const compress::CodecSpec parsed = compress::parse_spec(spec);
  (void)compress::make(parsed);  // a wrong spec is an error where there is no device, too
  if (compress::cuda_devices().count == 0) return nullptr;
  return compress::make_cuda_codec(parsed);
}

std::size_t encode(const DeviceCodec& twin, const ConstCudaFloats& grad,
                   const std::optional<CudaFloats>& residual, const std::optional<CudaFloats>& scales,
                   std::uint32_t key, std::uint32_t rank, std::uint64_t step, const CudaBytes& out,
                   const CudaReport& report, const CudaBytes& scratch, std::uintptr_t stream) {
  const auto agreed = scales_in(scales, grad.size());
  return twin.encode(flat(grad), residual ? flat(*residual) : std::span<float>(), agreed, bytes_in(out),
                     compress::Position{key, rank, step, 0}, work_of(report, bytes_in(scratch), stream));
}

}  // namespace

void bind_device_codec(nb::module_& module) {
  nb::class_<DeviceCodec>(
      module, "DeviceCodec",
      "A codec's twin on CUDA devices: the payloads and sums of Codec, bit for bit. Immutable; any thread "
      "may\n"
      "use it. A call enqueues its work on `stream` (a cudaStream_t as a number) and returns; arrays must "
      "stay\n"
      "until the stream has passed it. All lie on one device, contiguous, and begin at multiples of 8 "
      "bytes.\n"
      "report, int32 (2,), begins as zeros: its first number becomes 1 where Codec.encode_flagged() says "
      "True.\n"
      "scratch, uint8, has at least scratch_bytes(n); calls on other streams need others.")
      .def("scratch_bytes", &DeviceCodec::scratch_bytes, "elements"_a)
      .def(
          "sum_bytes",
          [](const DeviceCodec& twin, std::size_t elements, std::size_t ways) {
            return twin.codec().max_reply_size(elements, ways, compress::ReplyKind::kFp32);
          },
          "elements"_a, "ways"_a, "Bytes that encode_sum() writes for so many payloads.")
      .def("encode", &encode, "grad"_a.noconvert(), nb::kw_only(), "residual"_a.noconvert() = nb::none(),
           "scales"_a.noconvert() = nb::none(), "key"_a = 0, "rank"_a = 0, "step"_a = 0, "out"_a.noconvert(),
           "report"_a.noconvert(), "scratch"_a.noconvert(), "stream"_a,
           "As Codec.encode() to out; returns the payload's length, which depends on no value.")
      .def(
          "decode_sum",
          [](const DeviceCodec& twin, const std::vector<GivenArray>& received, const ConstCudaBytes& payloads,
             const CudaFloats& out, const CudaReport& report, std::uintptr_t stream) {
            const Round round(received, payloads);
            twin.decode_sum(round.payloads, 1, flat(out), work_of(report, {}, stream));
          },
          "received"_a.noconvert(), "payloads"_a.noconvert(), nb::kw_only(), "out"_a.noconvert(),
          "report"_a.noconvert(), "stream"_a,
          "As Codec.decode_sum() to out. received: the payloads on the host, which are checked; payloads, "
          "uint8 "
          "(ranks, stride):\nthe same on the device, stride a multiple of 8. Raises DecodeError.")
      .def(
          "encode_sum",
          [](const DeviceCodec& twin, const std::vector<GivenArray>& received, const ConstCudaBytes& payloads,
             std::size_t elements, const CudaBytes& out, const CudaReport& report, const CudaBytes& scratch,
             std::uintptr_t stream) {
            const Round round(received, payloads);
            return twin.encode_reply(round.payloads, elements, compress::ReplyKind::kFp32, {}, bytes_in(out),
                                     work_of(report, bytes_in(scratch), stream));
          },
          "received"_a.noconvert(), "payloads"_a.noconvert(), "elements"_a, nb::kw_only(),
          "out"_a.noconvert(), "report"_a.noconvert(), "scratch"_a.noconvert(), "stream"_a,
          "As Codec.encode_reply(reply='fp32') to out; returns the reply's length. The sum is its last "
          "elements "
          "floats.")
      .def(
          "read_sum",
          [](const DeviceCodec& twin, const GivenArray& received, const ConstCudaBytes& reply,
             std::size_t ways, const CudaFloats& out, const CudaFloats& next, const CudaReport& report,
             std::uintptr_t stream) {
            const Payload host = bytes_of(received, "read_sum", "received");
            twin.decode_reply({host, reinterpret_cast<const std::byte*>(reply.data())}, ways,
                              compress::ReplyKind::kFp32, 1, flat(out), scales_in(next, out.size()),
                              work_of(report, {}, stream));
          },
          "received"_a.noconvert(), "reply"_a.noconvert(), "ways"_a, nb::kw_only(), "out"_a.noconvert(),
          "scales"_a.noconvert(), "report"_a.noconvert(), "stream"_a,
          "As Codec.decode_reply(reply='fp32') to out, and the next round's scales to scales, float32 "
          "(units, "
          "2). received: the\nreply on the host, of which what is before the floats is read. Raises "
          "DecodeError.");
  module.def(
      "make_device_codec", &make_twin, "spec"_a,
      "The twin of make_codec(spec) on this machine's CUDA devices; None where that codec has none, or there "
      "is no device.\nRaises ValueError.");
}

}  // namespace gradwire::python
