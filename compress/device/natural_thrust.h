// The twin of Natural on any Thrust backend.
//
// Threading and lifetime: as DeviceCodec.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "compress/device/float_sum_thrust.h"
#include "compress/stochastic/natural.h"
#include "compress/stochastic/natural_scalar.h"

namespace gradwire::compress {

/// What the elements of an item round by: random words, or half of a power's way.
struct NaturalWords {
  bool is_drawn;
  Dither dither;

  NaturalWords(std::uint32_t seed, const Position* position)
      : is_drawn(position != nullptr), dither{seed, position == nullptr ? Position{} : *position} {}

  GRADWIRE_HOST_DEVICE std::uint32_t word(std::size_t i) const noexcept {
    return is_drawn ? dither.word(i) : std::uint32_t{natural::kToNearest};
  }
};

/// Encodes eight elements, whose signs are one byte, as natural::encode_scalar() does.
template <typename Source>
struct EncodeNatural {
  static constexpr std::size_t kElements = 2 * kItemElements;

  Source source;
  Residual residual;
  NaturalWords words;
  std::size_t elements;
  std::byte* out;
  DeviceReport* report;

  GRADWIRE_HOST_DEVICE void operator()(std::size_t item) const {
    unsigned signs = 0;
    bool nonfinite = false;
    for (std::size_t half = 0; half < 2; ++half) {
      const std::size_t first = item * kElements + half * kItemElements;
      ItemInput input = read_item(source, residual, first, elements);
      std::uint32_t exponents = 0;
      for (std::size_t j = 0; j < kItemElements; ++j) {
        if (j >= input.count) continue;
        const float x = residual.add(input.kept.x[j], input.values.x[j]);
        nonfinite |= !is_finite(x);
        if (!is_finite(x)) continue;
        const std::uint32_t exponent = natural::exponent_of(x, words.word(first + j));
        const bool negative = (std::bit_cast<std::uint32_t>(x) & kSignBit) != 0;
        exponents |= exponent << (8 * j);
        signs |= (negative ? 1u : 0u) << (half * kItemElements + j);
        input.kept.x[j] = x - natural::value_of(exponent, negative);
      }
      store_exponents(exponents, input.count, out + first);
      if (input.count > 0) residual.store(input.kept, first, input.count);
    }
    out[elements + item] = static_cast<std::byte>(signs);
    if (nonfinite) report_value(report->nonfinite, 1);
  }

 private:
  GRADWIRE_HOST_DEVICE static void store_exponents(std::uint32_t word, std::size_t count, std::byte* to) {
    if (count == kItemElements) return store_aligned(word, to);
    for (std::size_t j = 0; j < count; ++j) to[j] = static_cast<std::byte>(word >> (8 * j));
  }
};

/// What each payload's elements stand for, added in rank order.
struct NaturalSumSource {
  PayloadBlock payloads;
  std::size_t elements;

  GRADWIRE_HOST_DEVICE Four payload_four(std::size_t way, std::size_t first,
                                         std::size_t count) const noexcept {
    const std::byte* const payload = payloads.at(way);
    Four values{};
    for (std::size_t j = 0; j < kItemElements; ++j) {
      if (j >= count) continue;
      values.x[j] = natural::value_of(std::to_integer<std::uint32_t>(payload[first + j]),
                                      natural::sign_at(payload + elements, first + j));
    }
    return values;
  }
  GRADWIRE_HOST_DEVICE Four four(std::size_t first, std::size_t count) const noexcept {
    return sum_of_payloads(*this, first, count);
  }
};

struct NaturalTwinForm {
  std::uint32_t seed;

  static constexpr std::size_t scratch_bytes(std::size_t) { return 0; }

  template <typename Backend, typename Source>
  void encode(Backend& backend, const Source& source, std::span<float> residual, std::size_t elements,
              const Position* position, std::byte* out, const DeviceWork& work) const {
    backend.each(natural::sign_bytes(elements),
                 EncodeNatural<Source>{source, Residual(residual), NaturalWords(seed, position), elements,
                                       out, work.report});
  }

  template <typename Backend>
  NaturalSumSource sum(Backend&, const PayloadBlock& payloads, std::size_t elements,
                       const DeviceWork&) const {
    return {payloads, elements};
  }

  template <typename Backend>
  void decode(Backend& backend, const PayloadBlock& payloads, float factor, std::span<float> out) const {
    decode_items(backend, NaturalSumSource{payloads, out.size()}, factor, out);
  }
};

/// Makes the twin of natural.
template <typename Backend>
std::unique_ptr<DeviceCodec> make_natural_twin(std::unique_ptr<Codec> codec) {
  const NaturalTwinForm form{codec->wire_parameters()[0]};
  std::unique_ptr<FloatSumCodec> natural(static_cast<Natural*>(codec.release()));
  return std::make_unique<FloatSumDeviceCodec<Backend, NaturalTwinForm>>(std::move(natural), form);
}

}  // namespace gradwire::compress
