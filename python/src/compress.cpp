// gradwire._core: codecs. Payloads are uint8 arrays without any frame header.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "compress/codecs.h"
#include "compress/ef21.h"
#include "compress/error_feedback.h"
#include "compress/two_bit/lossless.h"
#include "compress/two_bit/two_bit_scalar.h"
#include "python/src/arrays.h"
#include "python/src/bindings.h"

namespace gradwire::python {

namespace nb = nanobind;
using namespace nb::literals;
using compress::Codec;
using compress::EF21;
using compress::ErrorFeedback;
using compress::Payload;
using compress::Position;

namespace {

using NumpyBytes = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;
using NumpyFloats = nb::ndarray<nb::numpy, float>;

template <typename T>
T* owned(std::unique_ptr<T[]> array, nb::capsule& owner) {
  T* data = array.release();
  owner = nb::capsule(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return data;
}

NumpyBytes numpy_bytes(std::unique_ptr<std::uint8_t[]> array, std::size_t size) {
  nb::capsule owner;
  std::uint8_t* data = owned(std::move(array), owner);
  return NumpyBytes(data, {size}, owner);
}

NumpyFloats numpy_floats(std::unique_ptr<float[]> array, std::size_t rows, std::size_t columns = 0) {
  nb::capsule owner;
  float* data = owned(std::move(array), owner);
  if (columns == 0) return NumpyFloats(data, {rows}, owner);
  return NumpyFloats(data, {rows, columns}, owner);
}

NumpyFloats numpy_copy(std::span<const float> values) {
  std::unique_ptr<float[]> out(new float[values.size()]);
  std::copy(values.begin(), values.end(), out.get());
  return numpy_floats(std::move(out), values.size());
}

std::vector<Payload> views(const std::vector<GivenArray>& payloads, const char* call) {
  if (payloads.empty())
    throw std::invalid_argument(std::string(call) + ": no payload given, expected one per rank");
  std::vector<Payload> out;
  for (const auto& payload : payloads) out.push_back(bytes_of(payload, call, "a payload"));
  return out;
}

std::span<std::byte> room(const std::unique_ptr<std::uint8_t[]>& bytes, std::size_t size) {
  return {reinterpret_cast<std::byte*>(bytes.get()), size};
}

std::span<const compress::UnitScale> scales_of(const std::optional<GivenArray>& scales,
                                               std::size_t elements) {
  static_assert(sizeof(compress::UnitScale) == 2 * sizeof(float));
  if (!scales) return {};
  const std::span<const float> floats = floats_of(*scales, "encode", "scales");
  if (floats.size() != 2 * compress::unit_count(elements)) {
    throw std::invalid_argument("encode: scales has " + std::to_string(floats.size()) +
                                " floats, expected (" + std::to_string(compress::unit_count(elements)) +
                                ", 2): threshold and level per unit");
  }
  return {reinterpret_cast<const compress::UnitScale*>(floats.data()), compress::unit_count(elements)};
}

std::span<float> residual_of(const std::optional<GivenRoom>& residual, std::size_t elements,
                             const char* verb) {
  if (!residual) return {};
  const std::span<float> floats = floats_of(*residual, verb, "residual");
  if (floats.size() != elements) {
    throw std::invalid_argument(std::string(verb) + ": residual has " + std::to_string(floats.size()) +
                                " elements, expected " + std::to_string(elements));
  }
  return floats;
}

/// With more, a size in bytes could wrap, and bytes of another size would pass for those of a payload.
constexpr std::size_t kMostElements = std::numeric_limits<std::size_t>::max() / 64;

void require_countable(const char* verb, std::size_t elements) {
  if (elements <= kMostElements) return;
  throw std::invalid_argument(std::string(verb) + ": elements=" + std::to_string(elements) +
                              " is more than any memory holds, expected at most " +
                              std::to_string(kMostElements));
}

void require_elements(const char* verb, std::size_t elements) {
  if (elements == 0)
    throw std::invalid_argument(std::string(verb) + ": no element given, expected at least 1");
  require_countable(verb, elements);
}

/// What is drawn by chance is drawn by codec unit.
void require_whole_units(std::uint64_t offset) {
  if (offset % compress::kUnitElements == 0) return;
  throw std::invalid_argument("encode: offset is " + std::to_string(offset) + ", expected a multiple of " +
                              std::to_string(compress::kUnitElements) + ", a codec unit");
}

compress::Encoded encode_into(const Codec& codec, std::span<const float> grad,
                              const std::optional<GivenRoom>& residual,
                              const std::optional<GivenArray>& scales, std::span<std::byte> out,
                              const Position& position) {
  require_elements("encode", grad.size());
  require_whole_units(position.offset);
  const auto kept = residual_of(residual, grad.size(), "encode");
  const auto agreed = scales_of(scales, grad.size());
  const std::size_t capacity = codec.max_encoded_size(grad.size());
  if (out.size() < capacity) {
    throw std::invalid_argument("encode: out has " + std::to_string(out.size()) +
                                " bytes, expected at least " + std::to_string(capacity));
  }
  const nb::gil_scoped_release release;
  return codec.encode(grad, kept, agreed, out, position);
}

/// A payload, and whether something was met that the codec cannot send as it is.
using FlaggedPayload = std::pair<NumpyBytes, bool>;

FlaggedPayload encode(const Codec& codec, const GivenArray& given, const std::optional<GivenRoom>& residual,
                      const std::optional<GivenArray>& scales, const Position& position) {
  const std::span<const float> grad = floats_of(given, "encode", "grad");
  require_elements("encode", grad.size());
  const std::size_t capacity = codec.max_encoded_size(grad.size());
  std::unique_ptr<std::uint8_t[]> out(new std::uint8_t[capacity]);
  const compress::Encoded encoded = encode_into(
      codec, grad, residual, scales, {reinterpret_cast<std::byte*>(out.get()), capacity}, position);
  return {numpy_bytes(std::move(out), encoded.bytes), encoded.nonfinite};
}

void decode_sum_into(const Codec& codec, const std::vector<GivenArray>& payloads, std::size_t elements,
                     std::span<float> out) {
  require_elements("decode_sum", elements);
  if (out.size() != elements) {
    throw std::invalid_argument("decode_sum: out has " + std::to_string(out.size()) + " elements, expected " +
                                std::to_string(elements));
  }
  const auto spans = views(payloads, "decode_sum");
  const nb::gil_scoped_release release;
  for (const Payload& payload : spans) codec.validate(payload, elements);
  codec.decode_sum(spans, out);
}

NumpyFloats decode_sum(const Codec& codec, const std::vector<GivenArray>& payloads, std::size_t elements) {
  require_elements("decode_sum", elements);
  std::unique_ptr<float[]> out(new float[elements]);
  decode_sum_into(codec, payloads, elements, {out.get(), elements});
  return numpy_floats(std::move(out), elements);
}

NumpyBytes encode_reply(const Codec& codec, const std::vector<GivenArray>& payloads, std::size_t elements,
                        const std::string& reply, const std::optional<GivenRoom>& residual) {
  require_elements("encode_reply", elements);
  const auto spans = views(payloads, "encode_reply");
  const auto kind = compress::reply_kind(codec, reply);
  const std::size_t capacity = codec.max_reply_size(elements, spans.size(), kind);
  std::unique_ptr<std::uint8_t[]> out(new std::uint8_t[capacity]);
  const auto kept = residual_of(residual, elements, "encode_reply");
  compress::Encoded encoded;
  {
    const nb::gil_scoped_release release;
    for (const Payload& payload : spans) codec.validate(payload, elements);
    encoded =
        codec.encode_reply(spans, elements, kind, kept, {reinterpret_cast<std::byte*>(out.get()), capacity});
  }
  return numpy_bytes(std::move(out), encoded.bytes);
}

nb::tuple decode_reply(const Codec& codec, const GivenArray& given, std::size_t ways, std::size_t elements,
                       const std::string& reply) {
  require_elements("decode_reply", elements);
  const Payload payload = bytes_of(given, "decode_reply", "the payload");
  const auto kind = compress::reply_kind(codec, reply);
  std::unique_ptr<float[]> out(new float[elements]);
  const std::size_t units = codec.agrees_scales() ? compress::unit_count(elements) : 0;
  std::unique_ptr<float[]> next(new float[2 * units]);
  {
    const nb::gil_scoped_release release;
    codec.decode_reply(payload, ways, kind, {out.get(), elements},
                       {reinterpret_cast<compress::UnitScale*>(next.get()), units});
  }
  nb::object scales = nb::none();
  if (units > 0) scales = nb::cast(numpy_floats(std::move(next), units, 2));
  return nb::make_tuple(numpy_floats(std::move(out), elements), scales);
}

nb::list list_codecs() {
  nb::list rows;
  for (const auto& entry : compress::codecs()) {
    nb::dict row;
    row["name"] = std::string(entry.name);
    row["summary"] = std::string(entry.summary);
    nb::list parameters;
    for (const auto& info : entry.parameters) {
      nb::dict parameter;
      parameter["name"] = std::string(info.name);
      parameter["default"] = std::string(info.default_value);
      parameter["help"] = std::string(info.help);
      parameters.append(parameter);
    }
    row["parameters"] = parameters;
    const auto codec = compress::make({std::string(entry.name), {}});
    row["lossy"] = codec->lossy();
    row["exact_reply"] = codec->has_exact_reply();
    rows.append(row);
  }
  return rows;
}

template <typename Feedback>  // ErrorFeedback or EF21
NumpyBytes feedback_encode(Feedback& feedback, const GivenArray& given,
                           const std::optional<GivenArray>& scales, std::uint32_t key, std::uint32_t rank,
                           std::uint64_t step, std::uint64_t offset) {
  const std::span<const float> grad = floats_of(given, "encode", "grad");
  require_elements("encode", grad.size());
  require_whole_units(offset);
  const auto agreed = scales_of(scales, grad.size());
  const std::size_t capacity = feedback.codec().max_encoded_size(feedback.elements());
  std::unique_ptr<std::uint8_t[]> out(new std::uint8_t[capacity]);
  compress::Encoded encoded;
  {
    const nb::gil_scoped_release release;
    encoded = feedback.encode(grad, agreed, room(out, capacity), {key, rank, step, offset});
  }
  return numpy_bytes(std::move(out), encoded.bytes);
}

template <typename Feedback>
NumpyBytes feedback_save(const Feedback& feedback) {
  const std::size_t size = feedback.saved_bytes();
  std::unique_ptr<std::uint8_t[]> out(new std::uint8_t[size]);
  feedback.save(room(out, size));
  return numpy_bytes(std::move(out), size);
}

NumpyFloats feedback_residual(const ErrorFeedback& feedback) {
  std::unique_ptr<float[]> out(new float[feedback.elements()]);
  feedback.copy_residual({out.get(), feedback.elements()});
  return numpy_floats(std::move(out), feedback.elements());
}

std::optional<NumpyFloats> feedback_velocity(const ErrorFeedback& feedback) {
  const auto velocity = feedback.velocity();
  if (velocity.empty()) return std::nullopt;
  return numpy_copy(velocity);
}

NumpyBytes lossless_encode(const GivenArray& given, std::size_t elements) {
  const Payload codes = bytes_of(given, "lossless_encode", "codes");
  require_elements("lossless_encode", elements);
  const std::size_t capacity = compress::lossless::max_coded_bytes(elements);
  std::unique_ptr<std::uint8_t[]> out(new std::uint8_t[capacity]);
  std::size_t bytes = 0;
  {
    const nb::gil_scoped_release release;
    bytes = compress::lossless::encode(codes, elements, room(out, capacity));
  }
  return numpy_bytes(std::move(out), bytes);
}

NumpyBytes lossless_decode(const GivenArray& given, std::size_t elements) {
  const Payload coded = bytes_of(given, "lossless_decode", "coded");
  require_elements("lossless_decode", elements);
  compress::lossless::require_room_for(coded, elements);
  const std::size_t size = compress::two_bit::packed_bytes(elements);
  std::unique_ptr<std::uint8_t[]> out(new std::uint8_t[size]);
  {
    const nb::gil_scoped_release release;
    compress::lossless::decode(coded, elements, room(out, size));
  }
  return numpy_bytes(std::move(out), size);
}

void bind_error_feedback(nb::module_& module) {
  using Metrics = compress::ErrorFeedbackMetrics;
  nb::class_<Metrics>(module, "ErrorFeedbackMetrics", "How one step of an ErrorFeedback went.")
      .def_ro("residual_norm", &Metrics::residual_norm, "L2 norm of what is kept.")
      .def_ro("given_norm", &Metrics::given_norm, "L2 norm of what was to be sent plus the residual before.")
      .def_ro("share_sent", &Metrics::share_sent,
              "1 - (residual_norm / given_norm)^2; 1 where nothing was given, below 0 where sending made it "
              "worse.")
      .def_ro("sent_elements", &Metrics::sent_elements, "Elements whose payload does not stand for 0.");
  nb::class_<ErrorFeedback>(
      module, "ErrorFeedback",
      "Keeps what a codec left unsent of one run of a tensor, and adds it to the next "
      "step's gradient.\n\n"
      "One object a tensor, or partition of it; one thread at a time.\n\n"
      "Source: Karimireddy et al. 2019, 'Error feedback fixes SignSGD', algorithm 2; Lin "
      "et al. 2018,\n'Deep gradient compression', sections 3.2 and 3.3. The learning rate "
      "is applied after the sum.")
      .def(
          "__init__",
          [](ErrorFeedback* self, const Codec& codec, std::size_t elements, const std::string& residual,
             float momentum, bool nesterov, bool factor_masking, bool can_roll_back) {
            require_countable("ErrorFeedback", elements);
            new (self) ErrorFeedback(
                codec, elements,
                {compress::residual_type(residual), momentum, nesterov, factor_masking, can_roll_back});
          },
          nb::keep_alive<1, 2>(), "codec"_a, "elements"_a, nb::kw_only(), "residual"_a = "fp32",
          "momentum"_a = 0.0F, "nesterov"_a = false, "factor_masking"_a = false, "can_roll_back"_a = false,
          "residual: 'fp32', or 'bf16' or 'int8' (blocks of 64), rounded every step: a half or a quarter of "
          "what is saved, and "
          "of the memory's traffic with 2bit and a fixed threshold in 'bf16'; others widen it into floats of "
          "their own.\n"
          "momentum, in [0, 1): sends u = momentum * u +\n"
          "gradient in place of the gradient; nesterov: gradient + momentum * u, as torch.optim.SGD; "
          "factor_masking: u\n"
          "becomes 0 where something was sent. can_roll_back keeps a copy of the state before the last step. "
          "Raises ValueError.")
      .def(
          "encode", &feedback_encode<ErrorFeedback>, "grad"_a.noconvert(), nb::kw_only(),
          "scales"_a.noconvert() = nb::none(), "key"_a = 0, "rank"_a = 0, "step"_a = 0, "offset"_a = 0,
          "Encodes one step's gradient (float32, shape (elements,)); the rest as Codec.encode(). Returns the "
          "payload (uint8).")
      .def(
          "measure",
          [](const ErrorFeedback& feedback, const GivenArray& given) {
            const Payload payload = bytes_of(given, "measure", "payload");
            const nb::gil_scoped_release release;
            feedback.codec().validate(payload, feedback.elements());
            return feedback.measure(payload);
          },
          "payload"_a.noconvert(), "Looks at the last step; payload is what it returned. Raises DecodeError.")
      .def("roll_back", &ErrorFeedback::roll_back,
           "Undoes the last encode(). Raises RuntimeError where there is nothing to undo.")
      .def("reset", &ErrorFeedback::reset, "Forgets residual and velocity.")
      .def("save", &feedback_save<ErrorFeedback>, "Returns the state as bytes (uint8), for load().")
      .def(
          "load",
          [](ErrorFeedback& feedback, const GivenArray& saved) {
            feedback.load(bytes_of(saved, "load", "saved"));
          },
          "saved"_a.noconvert(),
          "Takes over what save() returned. Raises DecodeError, and changes nothing, where it is of another "
          "kind, or holds what is not finite.")
      .def_prop_ro("residual", &feedback_residual, nb::rv_policy::automatic,
                   "A copy of what is kept (float32, shape (elements,)).")
      .def_prop_ro("velocity", &feedback_velocity, nb::rv_policy::automatic,
                   "A copy of the momentum's u (float32, shape (elements,)); None without momentum.")
      .def_prop_ro("elements", &ErrorFeedback::elements);
}

void bind_ef21(nb::module_& module) {
  nb::class_<EF21>(
      module, "EF21",
      "Compresses how one worker's gradient changes: sends codec(gradient - estimate), and adds what that\n"
      "stands for to the estimate. One object a tensor, or partition of it; one thread at a time.\n\n"
      "A round: encode(), the exchange of payloads, add() of their sum; then sum / workers is the mean.\n\n"
      "Source: Richtarik et al. 2021, 'EF21', algorithm 2; each worker keeps what the paper's master keeps.")
      .def(
          "__init__",
          [](EF21* self, const Codec& codec, std::size_t elements) {
            require_countable("EF21", elements);
            new (self) EF21(codec, elements);
          },
          nb::keep_alive<1, 2>(), "codec"_a, "elements"_a,
          "elements: of the tensor, or partition. Raises ValueError: none; a codec that loses nothing; a "
          "codec "
          "that does not send 0 for 0\n(1bit with a fixed threshold), with which no estimate settles.")
      .def(
          "encode", &feedback_encode<EF21>, "grad"_a.noconvert(), nb::kw_only(),
          "scales"_a.noconvert() = nb::none(), "key"_a = 0, "rank"_a = 0, "step"_a = 0, "offset"_a = 0,
          "Encodes one step's gradient (float32, shape (elements,)); the rest as Codec.encode(). Returns the "
          "payload (uint8).")
      .def(
          "add",
          [](EF21& feedback, const GivenArray& given) {
            const std::span<const float> answer = floats_of(given, "add", "answer");
            const nb::gil_scoped_release release;
            feedback.add(answer);
          },
          "answer"_a.noconvert(),
          "Takes in a round's answer: the sum of all workers' decoded payloads (float32, shape (elements,)).")
      .def("reset", &EF21::reset, "Forgets all, which every worker must do in the same round.")
      .def("save", &feedback_save<EF21>, "Returns the state as bytes (uint8), for load().")
      .def(
          "load",
          [](EF21& feedback, const GivenArray& saved) { feedback.load(bytes_of(saved, "load", "saved")); },
          "saved"_a.noconvert(),
          "Takes over what save() returned. Raises DecodeError, and changes nothing, where it is of another "
          "size, or holds what is not finite.")
      .def_prop_ro(
          "estimate", [](const EF21& feedback) { return numpy_copy(feedback.estimate()); },
          nb::rv_policy::automatic,
          "A copy of what all take this worker's gradient for (float32, (elements,)).")
      .def_prop_ro(
          "sum", [](const EF21& feedback) { return numpy_copy(feedback.sum()); }, nb::rv_policy::automatic,
          "A copy of the sum of all workers' estimates (float32, (elements,)).")
      .def_prop_ro("elements", &EF21::elements, "Of the tensor, or partition.");
}

}  // namespace

void bind_compress(nb::module_& module) {
  nb::class_<Codec>(
      module, "Codec",
      "Floats to payloads and payloads to sums. Immutable; any thread may use it.\n"
      "Arrays are NumPy's, PyTorch's or any with DLPack, on the CPU and contiguous; they are used "
      "where\nthey lie, without the GIL. Others are a ValueError.")
      .def_prop_ro("name", [](const Codec& c) { return std::string(c.name()); })
      .def_prop_ro("lossy", &Codec::lossy,
                   "True when encode() loses information, so that a residual is worth keeping.")
      .def_prop_ro("has_exact_reply", &Codec::has_exact_reply)
      .def(
          "require_reply",
          [](const Codec& c, const std::string& reply) { (void)compress::reply_kind(c, reply); }, "reply"_a,
          "Raises ValueError, naming the replies that there are, where servers cannot answer so.")
      .def_prop_ro("agrees_scales", &Codec::agrees_scales)
      .def(
          "max_encoded_size",
          [](const Codec& c, std::size_t elements) {
            require_countable("max_encoded_size", elements);
            return c.max_encoded_size(elements);
          },
          "elements"_a, "Largest payload of that many elements, in bytes.")
      .def(
          "encode",
          [](const Codec& c, const GivenArray& grad, const std::optional<GivenRoom>& residual,
             const std::optional<GivenArray>& scales, std::uint32_t key, std::uint32_t rank,
             std::uint64_t step, std::uint64_t offset) {
            return encode(c, grad, residual, scales, {key, rank, step, offset}).first;
          },
          "grad"_a.noconvert(), nb::kw_only(), "residual"_a.noconvert() = nb::none(),
          "scales"_a.noconvert() = nb::none(), "key"_a = 0, "rank"_a = 0, "step"_a = 0, "offset"_a = 0,
          "Encodes grad + residual (float32, shape (n,)), updates residual in place and returns the payload "
          "(uint8).\nscales, float32 (units, 2), is what decode_reply() brought in the round before. A "
          "codec that draws\nrandom numbers draws them by key (of the tensor), rank, step (the round) and "
          "offset (elements of the\ntensor before grad, whole codec units).")
      .def(
          "encode",
          [](const Codec& c, const GivenArray& grad, const std::optional<GivenRoom>& residual,
             const std::optional<GivenArray>& scales, std::uint32_t key, std::uint32_t rank,
             std::uint64_t step, std::uint64_t offset, const GivenRoom& out) {
            return encode_into(c, floats_of(grad, "encode", "grad"), residual, scales,
                               bytes_of(out, "encode", "out"), {key, rank, step, offset})
                .bytes;
          },
          "grad"_a.noconvert(), nb::kw_only(), "residual"_a.noconvert() = nb::none(),
          "scales"_a.noconvert() = nb::none(), "key"_a = 0, "rank"_a = 0, "step"_a = 0, "offset"_a = 0,
          "out"_a.noconvert(),
          "Writes the payload to out (at least max_encoded_size(n) bytes); returns its length.")
      .def(
          "encode_flagged",
          [](const Codec& c, const GivenArray& grad, const std::optional<GivenRoom>& residual,
             const std::optional<GivenArray>& scales, std::uint32_t key, std::uint32_t rank,
             std::uint64_t step, std::uint64_t offset) {
            return encode(c, grad, residual, scales, {key, rank, step, offset});
          },
          "grad"_a.noconvert(), nb::kw_only(), "residual"_a.noconvert() = nb::none(),
          "scales"_a.noconvert() = nb::none(), "key"_a = 0, "rank"_a = 0, "step"_a = 0, "offset"_a = 0,
          "As encode(); returns the payload and a bool: a NaN or an infinity was met, or a value beyond the "
          "format (fp16:\n65504), of which the largest was sent and the rest kept.")
      .def("decode_sum", &decode_sum, "payloads"_a.noconvert(), "elements"_a,
           "Sums the payloads in rank order; returns float32 (elements,). Raises DecodeError.")
      .def(
          "decode_sum",
          [](const Codec& c, const std::vector<GivenArray>& payloads, std::size_t n, const GivenRoom& out) {
            decode_sum_into(c, payloads, n, floats_of(out, "decode_sum", "out"));
          },
          "payloads"_a.noconvert(), "elements"_a, nb::kw_only(), "out"_a.noconvert(),
          "The same, written to out.")
      .def(
          "decode",
          [](const Codec& c, const GivenArray& payload, std::size_t n) {
            return decode_sum(c, {payload}, n);
          },
          "payload"_a.noconvert(), "elements"_a, "Returns float32 (elements,). Raises DecodeError.")
      .def(
          "decode",
          [](const Codec& c, const GivenArray& payload, std::size_t n, const GivenRoom& out) {
            decode_sum_into(c, {payload}, n, floats_of(out, "decode", "out"));
          },
          "payload"_a.noconvert(), "elements"_a, nb::kw_only(), "out"_a.noconvert(),
          "The same, written to out.")
      .def("encode_reply", &encode_reply, "payloads"_a.noconvert(), "elements"_a, nb::kw_only(), "reply"_a,
           "residual"_a.noconvert() = nb::none(),
           "What a server answers to these payloads, in rank order (uint8).")
      .def("decode_reply", &decode_reply, "payload"_a.noconvert(), "ways"_a, "elements"_a, nb::kw_only(),
           "reply"_a, "Returns (sum float32 (elements,), next scales float32 (units, 2) or None).");
  bind_error_feedback(module);
  bind_ef21(module);
  module.def("lossless_encode", &lossless_encode, "codes"_a.noconvert(), "elements"_a,
             "Codes of 2bit without most of their zeros (uint8). Raises ValueError.");
  module.def("lossless_decode", &lossless_decode, "coded"_a.noconvert(), "elements"_a,
             "What lossless_encode() was given (uint8). Raises DecodeError.");
  module.def(
      "make_codec", [](const std::string& spec) { return compress::make(compress::parse_spec(spec)); },
      "spec"_a, "Makes a codec from text such as '2bit:threshold=0.5,nonfinite=mxnet'. Raises ValueError.");
  module.def(
      "canonical_spec",
      [](const std::string& spec) { return compress::canonical_spec(compress::parse_spec(spec)); }, "spec"_a,
      "The same codec with every parameter written out.");
  module.def("codecs", &list_codecs, "One dict per codec: name, summary, parameters, lossy, exact_reply.");
  module.attr("UNIT_ELEMENTS") = compress::kUnitElements;
  module.def(
      "copy",
      [](const Floats& to, const ConstFloats& from) {
        if (to.size() != from.size()) throw std::invalid_argument("copy: sizes differ");
        const nb::gil_scoped_release release;
        std::memcpy(to.data(), from.data(), from.size() * sizeof(float));
      },
      "to"_a.noconvert(), "from_"_a.noconvert(), "memcpy, the yardstick of the codec benchmark.");
}

}  // namespace gradwire::python
