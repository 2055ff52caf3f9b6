// EngineThread between rounds: what codecs have not sent yet is read, replaced and put back.
#include <fmt/format.h>

#include <cstring>
#include <stdexcept>
#include <utility>

#include "kvstore/engine_tensor.h"

namespace gradwire::kvstore {

/// Runs task on the thread, unless a round is in progress.
Ticket EngineThread::between_rounds(std::function<void()> task) {
  Ticket ticket;
  loop_->post([this, ticket, task = std::move(task)] {
    if (!active_.empty()) {
      return ticket.fail(std::make_exception_ptr(
          std::logic_error(fmt::format("residuals: a round of key '{}' is in progress; wait for it first",
                                       (*active_.begin())->spec.name))));
    }
    task();
    ticket.succeed();
  });
  return ticket;
}

Ticket EngineThread::read_residual(KeyId key, std::uint64_t offset, std::span<float> out, bool& found) {
  return between_rounds([this, key, offset, out, &found] {
    const Tensor& tensor = *tensors_[key];
    const std::vector<float> there =
        tensor.on_device ? tensor.on_device->fetch_residual() : std::vector<float>();
    const std::vector<float>& residual = tensor.on_device ? there : tensor.residual;
    found = !residual.empty();
    if (found) std::memcpy(out.data(), residual.data() + offset, out.size_bytes());
  });
}

Ticket EngineThread::write_residual(KeyId key, std::uint64_t offset, std::span<const float> values) {
  return between_rounds([this, key, offset, values] {
    Tensor& tensor = *tensors_[key];
    settle_on_host(tensor);
    if (tensor.residual.empty()) tensor.residual.assign(tensor.spec.elements(), 0.0F);
    std::memcpy(tensor.residual.data() + offset, values.data(), values.size_bytes());
    tensor.has_before = false;
  });
}

void EngineThread::keep_rollback(bool keep) {
  loop_->post([this, keep] {
    keeps_rollback_ = keep;
    for (auto& tensor : tensors_) tensor->has_before = false;
  });
}

Ticket EngineThread::roll_back(std::vector<KeyId> keys) {
  return between_rounds([this, keys = std::move(keys)] {
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
