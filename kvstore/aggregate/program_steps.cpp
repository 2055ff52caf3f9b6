#include "kvstore/aggregate/program_steps.h"

#include <fmt/format.h>

#include <stdexcept>

namespace gradwire::kvstore {

void ProgramSteps::add(std::uint32_t worker, std::uint32_t step) {
  if (step == 0) return;
  if (!first_) {
    first_ = {worker, step};
    // Two are enough for the error, which names the first that differs.
  } else if (!other_ && step != first_->step) {
    other_ = {worker, step};
  }
}

void ProgramSteps::require_alike() const {
  if (!other_) return;
  throw std::runtime_error(fmt::format(
      "worker {} is at step {} of its program and worker {} at step {}; every worker must take the "
      "same steps, and exchange its gradients as often in each",
      first_->worker, first_->step, other_->worker, other_->step));
}

}  // namespace gradwire::kvstore
