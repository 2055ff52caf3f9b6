// EngineThread: how ranks that have taken different numbers of rounds go on together.
#include "kvstore/client/engine_tensor.h"

namespace gradwire::kvstore {

Ticket EngineThread::read_steps(std::vector<std::uint64_t>& steps) {
  return between_rounds({}, [this, &steps] {
    for (const auto& tensor : tensors_) steps.push_back(tensor->step);
  });
}

Ticket EngineThread::catch_up(std::vector<StepSpread> spreads) {
  return between_rounds({}, [this, spreads = std::move(spreads)] {
    for (std::size_t i = 0; i < spreads.size(); ++i) {
      Tensor& tensor = *tensors_[i];
      const auto [least, most] = spreads[i];
      if (least == most) continue;
      tensor.scales_known = tensor.scales_known_before = false;
      tensor.has_before = false;
      if (tensor.step < most) {
        tensor.value_current = tensor.is_shown = false;
        tensor.forget_weight();
      }
      tensor.step = most;
    }
  });
}

}  // namespace gradwire::kvstore
