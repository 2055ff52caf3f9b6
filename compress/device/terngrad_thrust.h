// The twin of TernGrad on any Thrust backend. A unit's scale is made by a group of items, one for each lane
// of its sum of squares, whose order is written (terngrad_scalar.h).
//
// Threading and lifetime: as DeviceCodec.
#pragma once

#include <bit>
#include <memory>
#include <utility>

#include "compress/device/float_sum_thrust.h"
#include "compress/stochastic/terngrad.h"
#include "compress/stochastic/terngrad_scalar.h"

namespace gradwire::compress {

/// One lane of a unit's moments: what terngrad::Moments adds up there.
struct MomentsLane {
  float most = 0;
  std::uint32_t squares[2] = {};  ///< the two halves of a double

  GRADWIRE_HOST_DEVICE double sum() const noexcept {
    return std::bit_cast<double>(std::uint64_t{squares[1]} << 32 | squares[0]);
  }
  GRADWIRE_HOST_DEVICE void set(double sum) noexcept {
    const auto bits = std::bit_cast<std::uint64_t>(sum);
    squares[0] = static_cast<std::uint32_t>(bits);
    squares[1] = static_cast<std::uint32_t>(bits >> 32);
  }
  GRADWIRE_HOST_DEVICE void add(const MomentsLane& other) noexcept {
    most = other.most > most ? other.most : most;
    set(sum() + other.sum());
  }
};

/// Writes the scale of unit `group`.
template <typename Source>
struct ScaleTernUnit {
  using Part = MomentsLane;
  using Held = Nothing;
  static_assert(kGroupItems == terngrad::Moments::kLanes);

  Source source;
  Residual residual;
  float clip;
  std::size_t elements;
  std::byte* out;

  GRADWIRE_HOST_DEVICE MomentsLane begin(std::size_t unit, std::size_t lane, Nothing&) const {
    MomentsLane part;
    double sum = 0;
    const std::size_t end = end_of(unit);
    for (std::size_t i = unit * kUnitElements + lane; i < end; i += kGroupItems) {
      // An item's four elements are of four lanes.
      const std::size_t first = i / kItemElements * kItemElements;
      const ItemInput input = read_item(source, residual, first, end);
      const std::size_t j = i % kItemElements;
      const float x = residual.add(input.kept.x[j], input.values.x[j]);
      if (!is_finite(x)) continue;
      part.most = magnitude(x) > part.most ? magnitude(x) : part.most;
      sum += static_cast<double>(x) * static_cast<double>(x);
    }
    part.set(sum);
    return part;
  }
  GRADWIRE_HOST_DEVICE void end(std::size_t unit, std::size_t lane, const Nothing&,
                                const MomentsLane& sum) const {
    if (lane != 0) return;
    const std::size_t length = end_of(unit) - unit * kUnitElements;
    store_aligned(terngrad::scale_of(sum.most, sum.sum(), length, clip), out + unit * sizeof(float));
  }

 private:
  GRADWIRE_HOST_DEVICE std::size_t end_of(std::size_t unit) const {
    const std::size_t end = (unit + 1) * kUnitElements;
    return end < elements ? end : elements;
  }
};

/// Encodes an item whose unit has its scale, as terngrad::encode_scalar() does.
template <typename Source>
struct EncodeTern {
  Source source;
  Residual residual;
  bool is_drawn;
  Dither dither;
  std::size_t elements;
  std::size_t codes_begin;
  std::byte* out;
  DeviceReport* report;

  GRADWIRE_HOST_DEVICE void operator()(std::size_t item) const {
    const std::size_t first = item * kItemElements;
    const float scale = load_aligned<float>(out + first / kUnitElements * sizeof(float));
    const float inverse = terngrad::inverse_of(scale);
    ItemInput input = read_item(source, residual, first, elements);
    unsigned codes = 0;
    bool nonfinite = false;
    for (std::size_t j = 0; j < kItemElements; ++j) {
      if (j >= input.count) continue;
      const float x = residual.add(input.kept.x[j], input.values.x[j]);
      nonfinite |= !is_finite(x);
      if (!is_finite(x)) continue;
      const float uniform = is_drawn ? dither.uniform(first + j) : float{terngrad::kToNearest};
      const unsigned code = uniform < magnitude(x) * inverse ? (x < 0 ? 2 : 3) : 0;
      codes |= code << two_bit::code_shift(j);
      input.kept.x[j] = two_bit::rest_of(x, code, scale);
    }
    out[codes_begin + item] = static_cast<std::byte>(codes);
    if (input.count > 0) residual.store(input.kept, first, input.count);
    if (nonfinite) report_value(report->nonfinite, 1);
  }
};

/// code * scale of each payload, added in rank order.
struct TernSumSource {
  PayloadBlock payloads;
  std::size_t codes_begin;

  GRADWIRE_HOST_DEVICE Four payload_four(std::size_t way, std::size_t first, std::size_t) const noexcept {
    const std::byte* const payload = payloads.at(way);
    const float scale = load_aligned<float>(payload + first / kUnitElements * sizeof(float));
    Four values;
    for (std::size_t j = 0; j < kItemElements; ++j)
      values.x[j] =
          static_cast<float>(two_bit::code_in(payload[codes_begin + first / kItemElements], j)) * scale;
    return values;
  }
  GRADWIRE_HOST_DEVICE Four four(std::size_t first, std::size_t count) const noexcept {
    return sum_of_payloads(*this, first, count);
  }
};

struct TernGradTwinForm {
  float clip;
  std::uint32_t seed;

  static constexpr std::size_t scratch_bytes(std::size_t) { return 0; }
  static constexpr std::size_t codes_begin(std::size_t elements) {
    return unit_count(elements) * sizeof(float);
  }

  template <typename Backend, typename Source>
  void encode(Backend& backend, const Source& source, std::span<float> residual, std::size_t elements,
              const Position* position, std::byte* out, const DeviceWork& work) const {
    const Residual kept(residual);
    backend.fold(unit_count(elements), ScaleTernUnit<Source>{source, kept, clip, elements, out});
    // An item a byte: the last bytes of a payload are of elements that are absent.
    backend.each(two_bit::packed_bytes(elements),
                 EncodeTern<Source>{source, kept, position != nullptr,
                                    Dither{seed, position == nullptr ? Position{} : *position}, elements,
                                    codes_begin(elements), out, work.report});
  }

  template <typename Backend>
  TernSumSource sum(Backend&, const PayloadBlock& payloads, std::size_t elements, const DeviceWork&) const {
    return {payloads, codes_begin(elements)};
  }

  template <typename Backend>
  void decode(Backend& backend, const PayloadBlock& payloads, float factor, std::span<float> out) const {
    decode_items(backend, TernSumSource{payloads, codes_begin(out.size())}, factor, out);
  }
};

/// Makes the twin of terngrad.
template <typename Backend>
std::unique_ptr<DeviceCodec> make_terngrad_twin(std::unique_ptr<Codec> codec) {
  const WireParameters wire = codec->wire_parameters();
  const TernGradTwinForm form{std::bit_cast<float>(wire[0]), wire[1]};
  std::unique_ptr<FloatSumCodec> terngrad(static_cast<TernGrad*>(codec.release()));
  return std::make_unique<FloatSumDeviceCodec<Backend, TernGradTwinForm>>(std::move(terngrad), form);
}

}  // namespace gradwire::compress
