#include "kvstore/client/residuals.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "compress/codecs.h"

namespace gradwire::kvstore {

bool Residuals::read(KeyId key, std::uint64_t offset, std::span<float> out) const {
  const Tensor& tensor = tensors_[key];
  std::vector<float> there;
  if (tensor.on_device) there = tensor.on_device->fetch_residual();
  const ConstArrayView residual = tensor.on_device ? ConstArrayView(there) : tensor.residual.view();
  if (!residual.empty()) copy_as_floats(residual.subspan(offset, out.size()), out);
  return !residual.empty();
}

void Residuals::write(KeyId key, std::uint64_t offset, std::span<const float> values) {
  if (!tensors_.keeps_residuals()) return;
  Tensor& tensor = tensors_[key];
  tensor.has_before = false;
  // There, and not by way of the host: a tensor that moves agrees its scales anew, and the other ranks would
  // not.
  if (tensor.on_device) return tensor.on_device->store_residual(offset, values);
  if (tensor.residual.empty()) tensor.residual.assign_zeros(tensor.spec.elements());
  round_residual(values, tensor.residual.view().subspan(offset, values.size()));
}

void Residuals::add(KeyId key, std::uint64_t offset, std::span<const float> values, float scale) {
  std::vector<float> sums(values.size());
  // Where there is no residual yet, sums stay zero.
  read(key, offset, sums);
  std::ranges::transform(sums, values, sums.begin(),
                         [scale](float sum, float value) { return sum + scale * value; });
  write(key, offset, sums);
}

bool Residuals::keeps_nonfinite(KeyId key) const {
  return compress::keeps_nonfinite(*tensors_.compression_of(tensors_[key])->codec);
}

double Residuals::squares() const {
  double squares = 0;
  const auto add = [&squares](std::span<const float> values) {
    for (const float value : values) squares += static_cast<double>(value) * static_cast<double>(value);
  };
  for (const auto& tensor : tensors_.all()) {
    if (tensor->on_device) {
      add(tensor->on_device->fetch_residual());
    } else {
      tensor->residual.visit(add);
    }
  }
  return squares;
}

compress::ShareSent Residuals::share() const {
  compress::ShareSent share;
  for (const auto& tensor : tensors_.all()) {
    if (!tensors_.compression_of(*tensor)->codec->lossy()) continue;  // no longer compressed
    for (const TensorPart& part : tensor->parts) share += part.share;
  }
  return share;
}

void Residuals::keep_rollback(bool keep) {
  keeps_rollback_ = keep;
  for (const auto& tensor : tensors_.all()) {
    if (!tensor->current) tensor->has_before = false;  // else jobs in the pool read it
  }
}

/// On the host a part's residual is copied where the part is encoded.
void Residuals::keep_what_was(Tensor& tensor) const {
  // A round that keeps nothing must not be rolled back into the one before it.
  tensor.has_before = false;
  // Nothing else changes a residual in a round.
  if (!keeps_rollback_ || !(tensor.codec().lossy() || tensor.has_leftover())) return;
  tensor.has_before = true;
  // Scales go back with the residual: the round that is rolled back has agreed the next ones.
  tensor.scales_known_before = tensor.scales_known;
  if (tensor.current->works_on_device()) return tensor.on_device->keep_what_was();
  if (!tensor.residual.empty() && tensor.residual_before.empty())
    tensor.residual_before.assign_zeros(tensor.spec.elements());
  tensor.scales_before = tensor.scales;
}

void Residuals::roll_back(std::span<const KeyId> keys) {
  for (const KeyId key : keys) {
    Tensor& tensor = tensors_[key];
    if (!std::exchange(tensor.has_before, false)) continue;
    tensor.scales_known = tensor.scales_known_before;
    if (tensor.on_device) {
      tensor.on_device->roll_back();
      continue;
    }
    // What the round made of it is of no use any more, so nothing is copied.
    std::swap(tensor.residual, tensor.residual_before);
    tensor.scales.swap(tensor.scales_before);
  }
}

void Residuals::discard(std::span<const KeyId> keys) {
  for (const KeyId key : keys) {
    Tensor& tensor = tensors_[key];
    if (tensor.current) continue;
    tensor.has_before = tensor.scales_known = tensor.scales_known_before = false;
    tensor.residual.clear();
    tensor.residual_before.clear();
    tensor.on_device.reset();
    // A pull of a sum that lay there asks the servers again.
    if (std::exchange(tensor.value_on_device, false)) tensor.value_current = false;
  }
}

}  // namespace gradwire::kvstore
