// The twin of TopK on any Thrust backend.
//
// Threading and lifetime: as DeviceCodec.
#pragma once

#include <memory>
#include <utility>

#include "compress/device/float_sum_thrust.h"
#include "compress/device/top_k_selection_thrust.h"
#include "compress/sparse/sparse_scalar.h"
#include "compress/sparse/top_k.h"

namespace gradwire::compress {

/// Writes x of an item, as sparse::accumulate_scalar() does.
template <typename Source>
struct Accumulate {
  Source source;
  Residual residual;
  std::size_t elements;
  float* x;
  DeviceReport* report;
  bool whole = moves_whole(x);

  GRADWIRE_HOST_DEVICE void operator()(std::size_t item) const {
    const std::size_t first = item * kItemElements;
    const std::size_t count = item_elements(elements, first);
    Four values = source.four(first, count);
    Four kept = residual.load(first, count);
    bool nonfinite = false;
    for (std::size_t j = 0; j < kItemElements; ++j) {
      const float sum = residual.add(kept.x[j], values.x[j]);
      const bool finite = is_finite(sum);
      values.x[j] = finite ? sum : 0;
      if (finite) kept.x[j] = sum;
      nonfinite |= !finite && j < count;
    }
    store_four(values, count, whole, x + first);
    residual.store(kept, first, count);
    if (nonfinite) report_value(report->nonfinite, 1);
  }
};

/// Writes what chunk `item` sends and takes it from the residual.
struct SendChunk {
  TopKLayout layout;
  TopKScratch scratch;
  float* residual;  // or null
  std::byte* out;
  DeviceReport* report;

  GRADWIRE_HOST_DEVICE void operator()(std::size_t item) const {
    const std::size_t begin = item * kTopKChunkElements;
    const std::size_t unit = item / kTopKChunks;
    const auto [bound, ties] = scratch.units[unit];
    auto [above, equal] = scratch.chunks[item];
    for (std::size_t i = begin; i < begin + kTopKChunkElements && i < layout.elements; ++i) {
      const std::uint32_t bits = sparse::magnitude_bits(scratch.x[i]);
      // Of equal ones the first are sent, as on a CPU: `equal` counts those before this one in the whole
      // unit.
      if (bits < bound || (bits == bound && equal >= ties)) continue;
      // Elements above the bound and ties that are sent, before this one: its place in ascending order of
      // indices.
      send(unit, above + (equal < ties ? equal : ties), i);
      (bits == bound ? equal : above) += 1;
    }
  }

  GRADWIRE_HOST_DEVICE void send(std::size_t unit, std::size_t position, std::size_t i) const {
    store(static_cast<std::uint16_t>(i % kUnitElements), out + layout.index_offset(unit, position));
    const dense::Element element = dense::encode_element(layout.values, scratch.x[i], 0);
    std::byte* const value = out + layout.value_offset(unit, position);
    if (dense::bytes_per_element(layout.values) == 2) {
      store(static_cast<std::uint16_t>(element.bits), value);
    } else {
      store(element.bits, value);
    }
    // The residual holds x since Accumulate, so what stays is x - sent.
    if (residual != nullptr) residual[i] -= dense::float_from_bits(layout.values, element.bits);
    if (element.beyond) report_value(report->nonfinite, 1);
  }
};

/// Adds sent element `item` of a payload to its place.
struct AddSent {
  TopKLayout layout;
  const std::byte* payload;
  float* out;

  GRADWIRE_HOST_DEVICE void operator()(std::size_t item) const {
    const std::size_t last = unit_count(layout.elements) - 1;
    const std::size_t whole = item / layout.whole_sent;
    const std::size_t unit = whole < last ? whole : last;
    const std::size_t position = item - unit * layout.whole_sent;
    const std::size_t index = load<std::uint16_t>(payload + layout.index_offset(unit, position));
    const std::byte* const value = payload + layout.value_offset(unit, position);
    const std::uint32_t bits = dense::bytes_per_element(layout.values) == 2 ? load<std::uint16_t>(value)
                                                                            : load<std::uint32_t>(value);
    // Indices ascend within a unit (checked on the host), so no two items of a run add to one element.
    out[unit * kUnitElements + index] += dense::float_from_bits(layout.values, bits);
  }
};

/// Clears an item.
struct StoreZeros {
  std::size_t elements;
  float* out;
  bool whole = moves_whole(out);

  GRADWIRE_HOST_DEVICE void operator()(std::size_t item) const {
    const std::size_t first = item * kItemElements;
    store_four(Four{}, item_elements(elements, first), whole, out + first);
  }
};

struct TopKTwinForm {
  float ratio;
  dense::Format values;

  static constexpr std::size_t scratch_bytes(std::size_t elements) { return TopKScratch::bytes(elements); }

  template <typename Backend, typename Source>
  void encode(Backend& backend, const Source& source, std::span<float> residual, std::size_t elements,
              const Position*, std::byte* out, const DeviceWork& work) const {
    const TopKLayout layout(ratio, values, elements);
    const TopKScratch scratch(work.scratch, elements);
    const std::size_t units = unit_count(elements);
    backend.each(item_count(elements),
                 Accumulate<Source>{source, Residual(residual), elements, scratch.x, work.report});
    backend.each(units * kTopKBins, BeginTopK{layout, scratch});
    // From the upper digit down: each pass counts only what has the digits that were found before.
    for (unsigned shift = 32; shift > 0;) {
      shift -= kTopKDigitBits;
      backend.each(elements, CountDigit{scratch, shift});
      backend.each(units, ChooseDigit{scratch, shift});
    }
    backend.each(units * kTopKChunks, CountChunk{layout, scratch});
    backend.each(units, ScanChunks{scratch});
    float* const kept = residual.empty() ? nullptr : residual.data();
    backend.each(units * kTopKChunks, SendChunk{layout, scratch, kept, out, work.report});
  }

  /// In the scratch, where encode() may take them from: it reads each before it writes there.
  template <typename Backend>
  FloatSource sum(Backend& backend, const PayloadBlock& payloads, std::size_t elements,
                  const DeviceWork& work) const {
    const TopKScratch scratch(work.scratch, elements);
    add_payloads(backend, payloads, {scratch.x, elements});
    return FloatSource(scratch.x);
  }

  template <typename Backend>
  void decode(Backend& backend, const PayloadBlock& payloads, float factor, std::span<float> out) const {
    add_payloads(backend, payloads, out);
    if (factor != 1) decode_items(backend, FloatSource(out.data()), factor, out);
  }

 private:
  /// Payload by payload, so that every element is added to in rank order.
  template <typename Backend>
  void add_payloads(Backend& backend, const PayloadBlock& payloads, std::span<float> out) const {
    const TopKLayout layout(ratio, values, out.size());
    backend.each(item_count(out.size()), StoreZeros{out.size(), out.data()});
    for (std::size_t way = 0; way < payloads.ways; ++way)
      backend.each(layout.sent_of_all(), AddSent{layout, payloads.at(way), out.data()});
  }
};

/// Makes the twin of topk.
template <typename Backend>
std::unique_ptr<DeviceCodec> make_top_k_twin(std::unique_ptr<Codec> codec) {
  std::unique_ptr<TopK> sparse(static_cast<TopK*>(codec.release()));
  const TopKTwinForm form{sparse->ratio(), sparse->values()};
  return std::make_unique<FloatSumDeviceCodec<Backend, TopKTwinForm>>(std::move(sparse), form);
}

}  // namespace gradwire::compress
