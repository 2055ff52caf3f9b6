#include "compress/dense/halves.h"

#include <algorithm>

#include "compress/dense/dense_kernels.h"

namespace gradwire::compress::dense {

namespace {

constexpr std::size_t kWidth = sizeof(std::uint16_t);
constexpr std::size_t kRun = 8192;  // fits the cache, and decode() writes longer runs around it

}  // namespace

void floats_from_halves(Format format, std::span<const std::byte> halves, std::span<float> out) noexcept {
  for (std::size_t at = 0; at < out.size(); at += kRun) {
    const std::size_t count = std::min(kRun, out.size() - at);
    decode(format, halves.data() + at * kWidth, count, 1, out.data() + at);
  }
}

void halves_from_floats(Format format, std::span<const float> values, std::span<std::byte> out) noexcept {
  for (std::size_t at = 0; at < values.size(); at += kRun) {
    const auto run = values.subspan(at, std::min(kRun, values.size() - at));
    std::byte* const to = out.data() + at * kWidth;
    // The codec's kernel writes the same bits unless a value is not finite, or beyond the format.
    if (!encode(format, run.data(), nullptr, run.size(), to)) continue;
    for (std::size_t i = 0; i < run.size(); ++i) {
      const bool is_f16 = format == Format::kF16;
      store(is_f16 ? ieee_f16_from_float(run[i]) : ieee_bf16_from_float(run[i]), to + i * kWidth);
    }
  }
}

}  // namespace gradwire::compress::dense
