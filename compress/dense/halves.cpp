#include "compress/dense/halves.h"

#include <algorithm>

#include "compress/dense/dense_kernels.h"

namespace gradwire::compress::dense {

namespace {

constexpr std::size_t kWidth = sizeof(std::uint16_t);
constexpr std::size_t kRun = 8192;  // fits the cache, and decode() writes longer runs around it

/// by_one: how a value is rounded that is not finite, or beyond the format.
template <typename ByOne>
void round(Format format, std::span<const float> values, std::span<std::byte> out, ByOne by_one) {
  for (std::size_t at = 0; at < values.size(); at += kRun) {
    const auto run = values.subspan(at, std::min(kRun, values.size() - at));
    std::byte* const to = out.data() + at * kWidth;
    // The codec's kernel writes the same bits of all other values.
    if (!encode(format, run.data(), nullptr, run.size(), to)) continue;
    for (std::size_t i = 0; i < run.size(); ++i) store(by_one(run[i]), to + i * kWidth);
  }
}

}  // namespace

void floats_from_halves(Format format, std::span<const std::byte> halves, std::span<float> out) noexcept {
  for (std::size_t at = 0; at < out.size(); at += kRun) {
    const std::size_t count = std::min(kRun, out.size() - at);
    decode(format, halves.data() + at * kWidth, count, 1, out.data() + at);
  }
}

void halves_from_floats(Format format, std::span<const float> values, std::span<std::byte> out) noexcept {
  round(format, values, out, [format](float value) {
    return format == Format::kF16 ? ieee_f16_from_float(value) : ieee_bf16_from_float(value);
  });
}

void bf16_from_residuals(std::span<const float> values, std::span<std::byte> out) noexcept {
  round(Format::kBf16, values, out, bf16_from_residual);
}

}  // namespace gradwire::compress::dense
