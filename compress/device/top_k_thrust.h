// The twin of TopK on any Thrust backend. The bound that the sent elements of a unit reach is found digit by
// digit, in histograms, so nothing is sorted and no element moves.
//
// Source of the selection: Alabi et al. 2012, "Fast k-selection algorithms for graphics processing units"
// (radix select). Ours: exact in each codec unit, ties to the lower index, as sparse_scalar.h has it.
//
// Threading and lifetime: as DeviceCodec.
#pragma once

#include <cuda/atomic>
#include <memory>
#include <utility>

#include "compress/device/float_sum_thrust.h"
#include "compress/sparse/sparse_scalar.h"
#include "compress/sparse/top_k.h"

namespace gradwire::compress {

/// Where the elements that are sent lie in a payload: unit by unit, indices, then values.
struct TopKLayout {
  dense::Format values;
  std::size_t elements;
  std::size_t whole_sent;  ///< of a whole unit
  std::size_t last_sent;   ///< of the last, which may be shorter

  TopKLayout(float ratio, dense::Format format, std::size_t count) noexcept
      : values(format),
        elements(count),
        whole_sent(sparse::sent_count(ratio, kUnitElements)),
        last_sent(sparse::sent_count(ratio, length(unit_count(count) - 1))) {}

  GRADWIRE_HOST_DEVICE std::size_t length(std::size_t unit) const noexcept {
    return two_bit::unit_elements(elements, unit);
  }
  GRADWIRE_HOST_DEVICE std::size_t sent(std::size_t unit) const noexcept {
    return unit + 1 == unit_count(elements) ? last_sent : whole_sent;
  }
  GRADWIRE_HOST_DEVICE std::size_t index_offset(std::size_t unit, std::size_t position) const noexcept {
    return unit * whole_sent * (kIndexBytes + dense::bytes_per_element(values)) + position * kIndexBytes;
  }
  GRADWIRE_HOST_DEVICE std::size_t value_offset(std::size_t unit, std::size_t position) const noexcept {
    return index_offset(unit, sent(unit)) + position * dense::bytes_per_element(values);
  }
  /// Elements that are sent of all units.
  std::size_t sent_of_all() const noexcept { return (unit_count(elements) - 1) * whole_sent + last_sent; }

  static constexpr std::size_t kIndexBytes = sizeof(std::uint16_t);
};

/// What is known of a unit's bound while it is looked for.
struct TopKUnit {
  std::uint32_t prefix;  ///< the digits found, in their places
  std::uint32_t left;    ///< elements to send among those that have the prefix
};

/// A run of a unit's elements, and how many of them, and of those before them in the unit, are sent for sure
/// or tie.
struct TopKChunk {
  std::uint32_t above;
  std::uint32_t equal;
};

inline constexpr std::size_t kTopKDigitBits = 8;
inline constexpr std::size_t kTopKBins = std::size_t{1} << kTopKDigitBits;
inline constexpr std::size_t kTopKChunkElements = 256;
inline constexpr std::size_t kTopKChunks = kUnitElements / kTopKChunkElements;

struct TopKScratch {
  float* x;
  TopKUnit* units;
  TopKChunk* chunks;    ///< kTopKChunks a unit
  std::uint32_t* bins;  ///< kTopKBins a unit

  static constexpr std::size_t x_bytes(std::size_t elements) {
    return (elements + 1) / 2 * 2 * sizeof(float);
  }
  static constexpr std::size_t bytes(std::size_t elements) {
    return x_bytes(elements) + unit_count(elements) * (sizeof(TopKUnit) + kTopKChunks * sizeof(TopKChunk) +
                                                       kTopKBins * sizeof(std::uint32_t));
  }
  TopKScratch(std::span<std::byte> scratch, std::size_t elements)
      : x(reinterpret_cast<float*>(scratch.data())),
        units(reinterpret_cast<TopKUnit*>(scratch.data() + x_bytes(elements))),
        chunks(reinterpret_cast<TopKChunk*>(units + unit_count(elements))),
        bins(reinterpret_cast<std::uint32_t*>(chunks + unit_count(elements) * kTopKChunks)) {}
};

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

/// Begins the search in unit `item / kTopKBins`.
struct BeginTopK {
  TopKLayout layout;
  TopKScratch scratch;

  GRADWIRE_HOST_DEVICE void operator()(std::size_t item) const {
    scratch.bins[item] = 0;
    const std::size_t unit = item / kTopKBins;
    if (item % kTopKBins == 0) scratch.units[unit] = {0, static_cast<std::uint32_t>(layout.sent(unit))};
  }
};

/// Counts the digit of element `item` at `shift`, if the digits above are the unit's.
struct CountDigit {
  TopKScratch scratch;
  unsigned shift;

  GRADWIRE_HOST_DEVICE void operator()(std::size_t item) const {
    const std::uint32_t bits = sparse::magnitude_bits(scratch.x[item]);
    const std::size_t unit = item / kUnitElements;
    // 64 bits: at the first digit the shift is by 32, which 32 bits do not allow.
    const std::uint64_t above = ~std::uint64_t{0} << (shift + kTopKDigitBits);
    if ((bits & above) != (scratch.units[unit].prefix & above)) return;
    std::uint32_t& bin = scratch.bins[unit * kTopKBins + (bits >> shift) % kTopKBins];
    // Integers: their sum does not depend on the order of the items.
    cuda::atomic_ref<std::uint32_t, cuda::thread_scope_device>(bin).fetch_add(1, cuda::memory_order_relaxed);
  }
};

/// Takes the digit of unit `item` from its counts, which are cleared.
struct ChooseDigit {
  TopKScratch scratch;
  unsigned shift;

  GRADWIRE_HOST_DEVICE void operator()(std::size_t item) const {
    std::uint32_t* const bins = scratch.bins + item * kTopKBins;
    TopKUnit& unit = scratch.units[item];
    bool is_found = false;
    for (std::uint32_t digit = kTopKBins; digit-- > 0;) {
      const std::uint32_t count = bins[digit];
      // For the next digit, also after this one is found: a pass of its own is spared.
      bins[digit] = 0;
      if (is_found) continue;
      // From the largest digit down: these elements are all sent, and the bound lies below them.
      if (count < unit.left) {
        unit.left -= count;
      } else {
        unit.prefix |= digit << shift;
        is_found = true;
      }
    }
  }
};

/// Counts what chunk `item` has above the bound and at it.
struct CountChunk {
  TopKLayout layout;
  TopKScratch scratch;

  GRADWIRE_HOST_DEVICE void operator()(std::size_t item) const {
    const std::size_t begin = item * kTopKChunkElements;
    const std::uint32_t bound = scratch.units[item / kTopKChunks].prefix;
    TopKChunk found{0, 0};
    for (std::size_t i = begin; i < begin + kTopKChunkElements && i < layout.elements; ++i) {
      const std::uint32_t bits = sparse::magnitude_bits(scratch.x[i]);
      found.above += bits > bound ? 1 : 0;
      found.equal += bits == bound ? 1 : 0;
    }
    scratch.chunks[item] = found;
  }
};

/// Turns the counts of unit `item` into those of the chunks before.
struct ScanChunks {
  TopKScratch scratch;

  GRADWIRE_HOST_DEVICE void operator()(std::size_t item) const {
    TopKChunk before{0, 0};
    for (std::size_t c = item * kTopKChunks; c < (item + 1) * kTopKChunks; ++c) {
      const TopKChunk here = scratch.chunks[c];
      scratch.chunks[c] = before;
      before.above += here.above;
      before.equal += here.equal;
    }
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
              std::byte* out, const DeviceWork& work) const {
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
