#include "kvstore/client/tensor_table.h"

#include <algorithm>
#include <utility>

#include "compress/codecs.h"
#include "compress/float64_codec.h"
#include "fusion/partition.h"

namespace gradwire::kvstore {

TensorTable::TensorTable(std::uint32_t rank, std::optional<ElementType> residual_type)
    : rank_(rank),
      residual_type_(residual_type),
      compression_(
          std::make_shared<Compression>(Compression{compress::make({}), compress::ReplyKind::kSame})),
      none_of_float64_(std::make_shared<Compression>(
          Compression{std::make_unique<compress::Float64Codec>(), compress::ReplyKind::kSame})) {}

Tensor& TensorTable::add(KeySpec spec, std::span<const Part> parts, std::vector<std::uint32_t> segments) {
  Tensor& tensor = *tensors_.emplace_back(std::make_unique<Tensor>());
  tensor.id = tensors_.size() - 1;
  tensor.origin = {tensor.id, 0};
  tensor.spec = std::move(spec);
  tensor.segments = std::move(segments);
  if (residual_type_) tensor.residual = tensor.residual_before = Residual(*residual_type_);
  tensor.parts.resize(parts.size());
  for (std::size_t p = 0; p < parts.size(); ++p) tensor.parts[p].part = parts[p];
  // Placement lists parts in the order of servers. Codecs and residuals want them by offset.
  std::ranges::sort(tensor.parts, {}, [](const TensorPart& state) { return state.part.offset; });
  std::vector<std::uint32_t> owners;
  for (const TensorPart& state : tensor.parts) owners.push_back(state.part.server);
  // In the order of offsets, all ranks would encode for the first server first, and the other links would be
  // idle.
  tensor.turns = fusion::in_turns(owners, rank_ + 1);
  return tensor;
}

void TensorTable::set_compression(std::shared_ptr<const Compression> compression) {
  const auto before = std::exchange(compression_, std::move(compression));
  for (const auto& tensor : tensors_) {
    if (!tensor->own_compression) renew_scales(*tensor, *before);
  }
}

void TensorTable::set_compression_of(std::span<const KeyId> keys,
                                     const std::shared_ptr<const Compression>& compression) {
  for (const KeyId key : keys) {
    const auto before = std::exchange(tensors_[key]->own_compression, compression);
    renew_scales(*tensors_[key], before ? *before : *compression_);
  }
}

std::shared_ptr<const Compression> TensorTable::compression_in_round(const Tensor& tensor) const {
  const auto& chosen = compression_of(tensor);
  const bool is_none = chosen->codec->wire_id() == compress::WireId::kNone;
  return is_none && tensor.spec.is_float64() ? none_of_float64_ : chosen;
}

/// By name: it may be the same.
bool TensorTable::is_in_force(const Tensor& tensor) const {
  const auto& now = compression_of(tensor);
  return tensor.compression == now || name_of(*tensor.compression) == name_of(*now);
}

void TensorTable::forget_sums_of_float64() {
  for (const auto& tensor : tensors_)
    tensor->value_current = tensor->value_current && tensor->value64.empty();
}

/// Scales are of the codec that agreed them. The same codec again goes on with them.
void TensorTable::renew_scales(Tensor& tensor, const Compression& before) {
  if (name_of(before) == name_of(*compression_of(tensor))) return;
  // Also for a rollback: it would bring back scales that another codec agreed.
  tensor.scales_known = tensor.scales_known_before = false;
  if (!tensor.restored_scales_of.empty()) take_restored_scales(tensor);
}

/// A checkpoint's wait for the codec that agreed them, which may be set after it was loaded, until a push.
void TensorTable::take_restored_scales(Tensor& tensor) {
  const auto& in_force = compression_of(tensor);
  // unit_count() depends on the codec where several tensors travel as one.
  tensor.use(in_force);
  tensor.scales_known = !tensor.scales.empty() && tensor.scales.size() == tensor.unit_count() &&
                        tensor.restored_scales_of == name_of(*in_force);
}

TensorState TensorTable::read(KeyId key) const {
  const Tensor& tensor = *tensors_[key];
  TensorState state;
  state.step = tensor.step;
  state.residual = tensor.on_device ? tensor.on_device->fetch_residual() : tensor.residual.floats();
  // Scales that are not known are left out, so that a loaded checkpoint does not take them for agreed ones.
  if (!tensor.scales_known) return state;
  state.scales = tensor.on_device ? tensor.on_device->fetch_scales() : tensor.scales;
  state.compression = name_of(*tensor.compression);
  return state;
}

void TensorTable::write(KeyId key, const TensorState& state) {
  Tensor& tensor = *tensors_[key];
  // What was kept for a rollback is of the state that is replaced here.
  tensor.has_before = false;
  // A checkpoint is restored on the host. The next round on a device takes it there.
  tensor.settle_on_host();
  tensor.step = state.step;
  // A pull asks the servers, which have been restored too.
  tensor.value_current = tensor.is_shown = false;
  tensor.forget_weight();
  if (keeps_residuals()) tensor.residual.assign(state.residual);
  tensor.scales = state.scales;
  tensor.restored_scales_of = state.compression;
  take_restored_scales(tensor);
}

std::vector<std::uint64_t> TensorTable::steps() const {
  std::vector<std::uint64_t> steps;
  for (const auto& tensor : tensors_) steps.push_back(tensor->step);
  return steps;
}

void TensorTable::catch_up(std::span<const StepSpread> spreads) {
  for (std::size_t i = 0; i < spreads.size(); ++i) {
    Tensor& tensor = *tensors_[i];
    const auto [least, most] = spreads[i];
    if (least == most) continue;
    tensor.scales_known = tensor.scales_known_before = false;
    tensor.has_before = false;
    // This rank had joined, and others went on: the value and the weight that it holds are older than the
    // servers'.
    if (tensor.step < most) {
      tensor.value_current = tensor.is_shown = false;
      tensor.forget_weight();
    }
    tensor.step = most;
  }
}

}  // namespace gradwire::kvstore
