#include "fusion/placement.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

namespace gradwire::fusion {
namespace {

// Returns the servers that take the runs of a cut tensor, in the order of the runs: first those that get one
// unit less, then the `extra` least loaded ones, the most loaded of them last because the tensor's last unit
// may be short.
std::vector<std::uint32_t> run_order(const std::vector<std::uint64_t>& load, std::uint64_t extra) {
  std::vector<std::uint32_t> order(load.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::stable_sort(order, {}, [&](std::uint32_t server) { return load[server]; });
  std::ranges::rotate(order, order.begin() + static_cast<std::ptrdiff_t>(extra));
  return order;
}

std::vector<Shard> shard(const TensorSize& tensor, std::uint64_t unit_elements,
                         std::vector<std::uint64_t>& load) {
  const std::uint64_t units = (tensor.elements + unit_elements - 1) / unit_elements;
  const std::uint64_t each = units / load.size();
  const std::uint64_t extra = units % load.size();
  std::vector<Shard> shards;
  std::uint64_t begin = 0;
  std::uint64_t without_extra = load.size() - extra;
  for (const std::uint32_t server : run_order(load, extra)) {
    const std::uint64_t run_units = without_extra > 0 ? each : each + 1;
    without_extra -= without_extra > 0 ? 1 : 0;
    // Fewer units than servers: those that get none are not named.
    if (run_units == 0) continue;
    const std::uint64_t end = std::min(tensor.elements, begin + run_units * unit_elements);
    shards.push_back({begin, server});
    load[server] += (end - begin) * tensor.element_bytes;
    begin = end;
  }
  return shards;
}

}  // namespace

std::vector<std::vector<Shard>> place(std::span<const TensorSize> tensors, std::uint32_t servers,
                                      std::uint64_t unit_elements, std::uint64_t shard_bound,
                                      std::vector<std::uint64_t>& load) {
  if (servers == 0 || unit_elements == 0 || load.size() != servers) {
    throw std::invalid_argument("placement: servers=" + std::to_string(servers) + ", unit_elements=" +
                                std::to_string(unit_elements) + ", loads of " + std::to_string(load.size()) +
                                " servers; expected at least 1 server, units of at least 1 element and one "
                                "load per server");
  }
  std::vector<std::vector<Shard>> placed;
  placed.reserve(tensors.size());
  for (const TensorSize& tensor : tensors) {
    // In the order of the tensors, and with ties to the lower server: every rank comes to the same placement
    // without asking another.
    if (tensor.elements >= shard_bound && tensor.elements > 0) {
      placed.push_back(shard(tensor, unit_elements, load));
    } else {
      const auto lightest = std::ranges::min_element(load);
      *lightest += tensor.elements * tensor.element_bytes;
      placed.push_back({{0, static_cast<std::uint32_t>(lightest - load.begin())}});
    }
  }
  return placed;
}

}  // namespace gradwire::fusion
