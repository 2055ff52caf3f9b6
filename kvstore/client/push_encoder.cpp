#include "kvstore/client/push_encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "compress/payload/bf16_residuals.h"
#include "kvstore/leftover.h"
#include "kvstore/wire/lossless_frames.h"

namespace gradwire::kvstore {

namespace {

/// Whether rounding has made an infinity of a number.
bool has_overflowed(std::span<const double> values, std::span<const float> rounded) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isinf(rounded[i]) && std::isfinite(values[i])) return true;
  }
  return false;
}

/// The residual of a part in float32: where it is kept, or a copy that keep() rounds to there.
class WidenedResidual {
 public:
  WidenedResidual(ArrayView kept, transport::BufferPool& buffers) : kept_(kept) {
    if (kept.empty()) return;
    if (kept.is_float32()) {
      floats_ = kept.floats();
      return;
    }
    copy_ = buffers.take(kept.size() * sizeof(float));
    floats_ = ArrayView(ElementType::kFloat32, copy_.bytes()).floats();
    copy_as_floats(kept, floats_);
  }

  std::span<float> floats() const { return floats_; }
  void keep() const {
    if (!kept_.is_float32()) round_residual(floats_, kept_);
  }

 private:
  const ArrayView kept_;
  transport::Buffer copy_;
  std::span<float> floats_;
};

}  // namespace

// So the bits do not depend on threads, or on how a tensor is cut.
compress::Position PushEncoder::position_of(const Tensor& tensor) const {
  return {static_cast<std::uint32_t>(tensor.origin.key), messenger_.self().rank, tensor.step - 1,
          tensor.origin.offset};
}

PushPayload PushEncoder::encode(Tensor& tensor, std::size_t index) {
  const Part& part = tensor.parts[index].part;
  // Each part copies its own slice before it changes it, so the loop never copies a whole tensor.
  const ArrayView residual = tensor.residual_of(part);
  if (!residual.empty() && tensor.has_before) {
    const ArrayView before = tensor.residual_before.view().subspan(part.offset, part.count);
    std::ranges::copy(residual.bytes(), before.bytes().begin());
  }
  PushPayload payload{buffers_.take(tensor.codec().max_encoded_size(part.count)), tensor.push_flags()};
  if (copy_float64(tensor, part, payload.bytes.bytes())) {
    payload.bytes.truncate(part.count * sizeof(double));
  } else {
    const auto encoded = encode_floats(tensor, index, payload.bytes.bytes());
    payload.bytes.truncate(encoded.bytes);
    if (encoded.nonfinite) payload.flags |= transport::kFlagNonfinite;
  }
  finish(tensor, index, payload);
  return payload;
}

/// Float64 that its codec sends as it is. False where that is not what a push is of.
bool PushEncoder::copy_float64(Tensor& tensor, const Part& part, std::span<std::byte> bytes) {
  if (tensor.codec().as_float64() == nullptr || !tensor.current->in.is_float64()) return false;
  const auto values = tensor.current->in_of(part).doubles();
  WidenedResidual residual(tensor.residual_of(part), buffers_);
  if (residual.floats().empty()) {
    std::memcpy(bytes.data(), values.data(), values.size_bytes());
  } else {
    std::memcpy(bytes.data(), with_leftover(values, residual.floats()).data(), values.size_bytes());
    residual.keep();
  }
  return true;
}

compress::Encoded PushEncoder::encode_floats(Tensor& tensor, std::size_t index, std::span<std::byte> out) {
  const Part& part = tensor.parts[index].part;
  const ConstArrayView given = tensor.current->in_of(part);
  if (given.is_float32()) return encode_widened(tensor, index, given.floats(), out);
  transport::Buffer converted = buffers_.take(part.count * sizeof(float));  // codecs work in float32
  const auto grad = ArrayView(ElementType::kFloat32, converted.bytes()).floats();
  copy_as_floats(given, grad);
  if (given.is_float64() && has_overflowed(given.doubles(), grad)) note_overflow(tensor);
  return encode_widened(tensor, index, grad, out);
}

compress::Encoded PushEncoder::encode_widened(Tensor& tensor, std::size_t index, std::span<const float> grad,
                                              std::span<std::byte> out) {
  const Part& part = tensor.parts[index].part;
  const auto& codec = tensor.codec();
  compress::Position position = position_of(tensor);
  position.offset += part.offset;
  const ArrayView kept = tensor.residual_of(part);
  const bool is_measured = codec.lossy() && !kept.empty() && compress::measures_share(position.step);
  // The codec's own pass over bfloat16, which has the bits of the passes below.
  if (const auto* fused = codec.bf16_residuals();
      fused != nullptr && !is_measured && !kept.empty() && !kept.is_float32())
    return fused->encode_bf16(grad, kept.bytes(), out, position);
  WidenedResidual residual(kept, buffers_);
  const auto floats = residual.floats();
  const auto scales = tensor.scales_known ? tensor.scales_of(part) : std::span<const compress::UnitScale>();
  // Before encode(), which changes the residual.
  compress::ShareSent share{is_measured ? compress::squares_of(grad, floats) : 0, 0, is_measured};
  // What a lossy codec has left goes out with the first round of one that keeps nothing back.
  const auto encoded = codec.lossy() || floats.empty()
                           ? codec.encode(grad, floats, scales, out, position)
                           : codec.encode(with_leftover(grad, floats), {}, scales, out, position);
  residual.keep();
  if (is_measured) {
    share.kept_squares = compress::squares_of({}, floats);
    tensor.parts[index].share = share;
  }
  return encoded;
}

void PushEncoder::finish(const Tensor& tensor, std::size_t part, PushPayload& payload) {
  const auto& codec = tensor.codec();
  // Behind the codec and before the seal, which is of the bytes that travel.
  if (codec.wants_lossless_stage() && shortens_)
    shorten(codec, tensor.parts[part].part.count, payload.bytes, payload.flags, buffers_);
  if (codec.lossy() || messenger_.seals_payloads()) payload.bytes.seal();
}

/// Once for each key.
void PushEncoder::note_overflow(const Tensor& tensor) {
  {
    const std::lock_guard lock(mutex_);
    if (!overflowed_.insert(tensor.id).second) return;
  }
  notices_.add(
      fmt::format("key '{}': float64 values are beyond the largest float32, 3.4e38, in which codec {} works, "
                  "and count as not finite; use codec none for this key, or smaller values",
                  tensor.spec.name, tensor.codec().name()));
}

}  // namespace gradwire::kvstore
