#include "fusion/shared_cores.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace gradwire::fusion {

// A byte is sent by a core at one end and received by one at the other: both count where both ends are here.
double core_speed(const CoreModel& model, const CoreLoad& load, double all_workers) {
  const double of_links = model.byte_seconds * load.bytes_per_second;
  const double busy = model.workers * (load.worker_threads + of_links) +
                      model.servers_share * (load.server_threads + all_workers * of_links);
  return busy > model.cores ? model.cores / busy : 1.0;
}

void validate(const CoreModel& model) {
  const auto is_count = [](double value) { return std::isfinite(value) && value >= 0; };
  if (!(model.cores > 0) || !(model.workers > 0) || !std::isfinite(model.workers) ||
      !is_count(model.compute_threads) || !is_count(model.servers_share) || !is_count(model.byte_seconds)) {
    throw std::invalid_argument(
        "machine: cores=" + std::to_string(model.cores) + ", compute_threads=" +
        std::to_string(model.compute_threads) + ", workers=" + std::to_string(model.workers) +
        ", servers_share=" + std::to_string(model.servers_share) +
        ", byte_seconds=" + std::to_string(model.byte_seconds) +
        "; expected cores and workers above 0, and the others to be at least 0 and finite");
  }
}

}  // namespace gradwire::fusion
