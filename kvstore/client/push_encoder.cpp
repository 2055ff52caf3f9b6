#include "kvstore/client/push_encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

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

}  // namespace

// So the bits do not depend on threads, or on how a tensor is cut.
compress::Position PushEncoder::position_of(const Tensor& tensor) const {
  return {static_cast<std::uint32_t>(tensor.id), messenger_.self().rank, tensor.step - 1, 0};
}

PushPayload PushEncoder::encode(Tensor& tensor, std::size_t index) {
  const Part& part = tensor.parts[index].part;
  const auto& codec = tensor.codec();
  compress::Position position = position_of(tensor);
  position.offset = part.offset;
  const auto residual = tensor.residual_of(part);
  // Each part copies its own slice before it changes it, so the loop never copies a whole tensor.
  if (!residual.empty() && tensor.has_before)
    std::ranges::copy(residual, tensor.residual_before.begin() + static_cast<std::ptrdiff_t>(part.offset));
  PushPayload payload{buffers_.take(codec.max_encoded_size(part.count)), tensor.push_flags()};
  if (copy_float64(tensor, part, payload.bytes.bytes())) {
    payload.bytes.truncate(part.count * sizeof(double));
    finish(tensor, index, payload);
    return payload;
  }
  const ConstArrayView given = tensor.current->in_of(part);
  transport::Buffer converted;  // codecs work in float32
  std::span<const float> grad;
  if (given.is_float32()) {
    grad = given.floats();
  } else {
    converted = buffers_.take(part.count * sizeof(float));
    const auto floats = ArrayView(ElementType::kFloat32, converted.bytes()).floats();
    copy_as_floats(given, floats);
    if (given.is_float64() && has_overflowed(given.doubles(), floats)) note_overflow(tensor);
    grad = floats;
  }
  const auto scales = tensor.scales_known ? tensor.scales_of(part) : std::span<const compress::UnitScale>();
  const bool is_measured = codec.lossy() && compress::measures_share(position.step);
  // Before encode(), which changes the residual.
  compress::ShareSent share{is_measured ? compress::squares_of(grad, residual) : 0, 0, is_measured};
  // What a lossy codec has left goes out with the first round of one that keeps nothing back.
  const auto encoded =
      codec.lossy() || residual.empty()
          ? codec.encode(grad, residual, scales, payload.bytes.bytes(), position)
          : codec.encode(with_leftover(grad, residual), {}, scales, payload.bytes.bytes(), position);
  if (is_measured) {
    share.kept_squares = compress::squares_of({}, residual);
    tensor.parts[index].share = share;
  }
  payload.bytes.truncate(encoded.bytes);
  if (encoded.nonfinite) payload.flags |= transport::kFlagNonfinite;
  finish(tensor, index, payload);
  return payload;
}

/// Float64 that its codec sends as it is. False where that is not what a push is of.
bool PushEncoder::copy_float64(Tensor& tensor, const Part& part, std::span<std::byte> bytes) const {
  if (tensor.codec().as_float64() == nullptr || !tensor.current->in.is_float64()) return false;
  const auto values = tensor.current->in_of(part).doubles();
  const auto residual = tensor.residual_of(part);
  if (residual.empty()) {
    std::memcpy(bytes.data(), values.data(), values.size_bytes());
  } else {
    std::memcpy(bytes.data(), with_leftover(values, residual).data(), values.size_bytes());
  }
  return true;
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
