#include "compress/block/block_codec.h"

#include "compress/block/block_kernels.h"
#include "compress/payload/payloads.h"
#include "compress/payload/scales.h"

namespace gradwire::compress {

std::size_t BlockCodec::max_encoded_size(std::size_t elements) const noexcept {
  return code_offset(0, elements) + block::code_bytes(form_.code, elements);
}

std::size_t BlockCodec::code_offset(std::size_t i, std::size_t elements) const noexcept {
  return block::scale_count(elements, form_.block) * block::scale_bytes(form_.code) +
         block::code_bytes(form_.code, i);
}

/// Server rounds to nearest in any form: it keeps what is left, and every rank that answers itself must
/// answer alike.
std::optional<Dither> BlockCodec::dither_at(const Position* position) const {
  if (!form_.seed || position == nullptr) return std::nullopt;
  return Dither{*form_.seed, *position};
}

bool BlockCodec::encode_run(const float* grad, float* residual, const Run& run, const Position* position,
                            std::byte* out) const {
  const auto dither = dither_at(position);
  return block::encode(form_.code, form_.block, grad, residual, run.length, out + scale_offset(run.first),
                       out + code_offset(run.first, run.elements), dither ? &*dither : nullptr);
}

Encoded BlockCodec::encode_bf16(std::span<const float> grad, std::span<std::byte> residual,
                                std::span<std::byte> out, const Position& position) const {
  const std::size_t bytes = max_encoded_size(grad.size());
  expect_bf16_spans(name(), grad.size(), residual.size(), out.size(), bytes);
  const auto dither = dither_at(&position);
  return {bytes,
          block::encode_bf16(form_.code, form_.block, grad.data(), residual.data(), grad.size(), out.data(),
                             out.data() + code_offset(0, grad.size()), dither ? &*dither : nullptr)};
}

void BlockCodec::decode_run(Payload payload, const Run& run, bool add, float* out) const {
  block::decode(form_.code, form_.block, payload.data() + scale_offset(run.first),
                payload.data() + code_offset(run.first, run.elements), run.length, add, out);
}

std::string BlockCodec::fault(Payload payload, std::size_t elements) const {
  const std::size_t scales = block::scale_count(elements, form_.block);
  return wrong_scale(payload.first(scales * block::scale_bytes(form_.code)), scales, "block");
}

}  // namespace gradwire::compress
