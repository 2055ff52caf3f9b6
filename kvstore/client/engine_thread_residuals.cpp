// EngineThread between rounds: what codecs have not sent yet is read, replaced and put back.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "compress/codecs.h"
#include "kvstore/client/engine_tensor.h"

namespace gradwire::kvstore {

/// Runs task on the thread, unless a round of one of the keys is in progress.
Ticket EngineThread::between_rounds(std::vector<KeyId> keys, std::function<void()> task) {
  Ticket ticket;
  loop_->post([this, ticket, keys = std::move(keys), task = std::move(task)] {
    try {
      for (const KeyId key : keys) {
        if (tensors_[key]->current) {
          throw std::logic_error(fmt::format(
              "residuals: a round of key '{}' is in progress; wait for it first", tensors_[key]->spec.name));
        }
      }
      task();
      ticket.succeed();
    } catch (...) {
      ticket.fail(std::current_exception());
    }
  });
  return ticket;
}

Ticket EngineThread::read_residual(KeyId key, std::uint64_t offset, std::span<float> out, bool& found) {
  return between_rounds({key}, [this, key, offset, out, &found] {
    const Tensor& tensor = *tensors_[key];
    const std::vector<float> there =
        tensor.on_device ? tensor.on_device->fetch_residual() : std::vector<float>();
    const std::vector<float>& residual = tensor.on_device ? there : tensor.residual;
    found = !residual.empty();
    if (found) std::memcpy(out.data(), residual.data() + offset, out.size_bytes());
  });
}

Ticket EngineThread::measure_residuals(double& squares, bool& known) {
  return between_rounds({}, [this, &squares, &known] {
    known = active_.empty();
    for (std::size_t i = 0; known && i < tensors_.size(); ++i) {
      const Tensor& tensor = *tensors_[i];
      const std::vector<float> there =
          tensor.on_device ? tensor.on_device->fetch_residual() : std::vector<float>();
      for (const float value : tensor.on_device ? there : tensor.residual)
        squares += static_cast<double>(value) * static_cast<double>(value);
    }
  });
}

Ticket EngineThread::measure_share(compress::ShareSent& share, bool& known) {
  return between_rounds({}, [this, &share, &known] {
    share = {};
    known = active_.empty();
    if (!known) return;
    for (const auto& tensor : tensors_) {
      if (!compression_of(*tensor)->codec->lossy()) continue;  // no longer compressed
      for (const PartState& state : tensor->parts) share += state.share;
    }
  });
}

Ticket EngineThread::keeps_nonfinite(KeyId key, bool& keeps) {
  return between_rounds({key}, [this, key, &keeps] {
    const auto& own = tensors_[key]->own_compression;
    keeps = compress::keeps_nonfinite(*(own ? own : compression_)->codec);
  });
}

Ticket EngineThread::write_residual(KeyId key, std::uint64_t offset, std::span<const float> values) {
  return between_rounds({key}, [this, key, offset, values] {
    Tensor& tensor = *tensors_[key];
    tensor.has_before = false;
    if (tensor.on_device) return tensor.on_device->store_residual(offset, values);
    if (tensor.residual.empty()) tensor.residual.assign(tensor.spec.elements(), 0.0F);
    std::memcpy(tensor.residual.data() + offset, values.data(), values.size_bytes());
  });
}

Ticket EngineThread::add_to_residual(KeyId key, std::uint64_t offset, std::span<const float> values,
                                     float scale) {
  return between_rounds({key}, [this, key, offset, values, scale] {
    Tensor& tensor = *tensors_[key];
    tensor.has_before = false;
    std::vector<float> there;
    if (tensor.on_device) there = tensor.on_device->fetch_residual();
    std::vector<float>& residual = tensor.on_device ? there : tensor.residual;
    if (residual.empty()) residual.assign(tensor.spec.elements(), 0.0F);
    const auto sums = std::span(residual).subspan(offset, values.size());
    std::ranges::transform(sums, values, sums.begin(),
                           [scale](float sum, float value) { return sum + scale * value; });
    if (tensor.on_device) tensor.on_device->store_residual(offset, sums);
  });
}

void EngineThread::keep_rollback(bool keep) {
  loop_->post([this, keep] {
    keeps_rollback_ = keep;
    for (auto& tensor : tensors_) {
      if (!tensor->current) tensor->has_before = false;  // else jobs in the pool read it
    }
  });
}

Ticket EngineThread::roll_back(const std::vector<KeyId>& keys) {
  return between_rounds(keys, [this, keys] {
    for (const KeyId key : keys) {
      Tensor& tensor = *tensors_[key];
      if (!std::exchange(tensor.has_before, false)) continue;
      tensor.scales_known = tensor.scales_known_before;
      if (tensor.on_device) {
        tensor.on_device->roll_back();
        continue;
      }
      tensor.residual.swap(tensor.residual_before);
      tensor.scales.swap(tensor.scales_before);
    }
  });
}

/// Keeps what roll_back() puts back. On the host a part's residual is copied where the part is encoded.
void EngineThread::keep_what_was(Tensor& tensor) {
  tensor.has_before = true;
  tensor.scales_known_before = tensor.scales_known;
  if (tensor.current->works_on_device()) return tensor.on_device->keep_what_was();
  tensor.residual_before.resize(tensor.spec.elements());
  tensor.scales_before = tensor.scales;
}

}  // namespace gradwire::kvstore
