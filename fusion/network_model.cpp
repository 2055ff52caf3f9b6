#include "fusion/network_model.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace gradwire::fusion {
namespace {

FlowRates apart(const NetworkModel& network, double pushing, double replying) {
  const double workers = network.workers;
  return {network.bytes_per_second / std::max(pushing, workers),
          network.bytes_per_second / std::max(replying, workers)};
}

// A host's uplink carries its worker's pushes and its server's replies, the downlink the reverse; what goes
// to a server on the own host, one of `servers`, takes no link.
FlowRates beside(const NetworkModel& network, double pushing, double replying) {
  const double others = network.workers - 1.0;
  const double remote = std::max(pushing, replying) * (1.0 - 1.0 / network.servers);
  const double of_a_server = pushing > 0 && replying > 0 ? others + remote : std::max(others, remote);
  const double of_a_host_without = network.servers < network.workers ? std::max(pushing, replying) : 0;
  const double each = network.bytes_per_second / std::max({1.0, of_a_server, of_a_host_without});
  return {each, each};
}

}  // namespace

FlowRates flow_rates(const NetworkModel& network, std::uint32_t pushing, std::uint32_t replying) {
  switch (network.topology) {
    case Topology::kServersApart:
      return apart(network, pushing, replying);
    case Topology::kServersBeside:
      return beside(network, pushing, replying);
    case Topology::kRing:
      break;
  }
  return {network.bytes_per_second, network.bytes_per_second};
}

double least_wire_seconds(const NetworkModel& network, double push_bytes, double reply_bytes) {
  const double workers = network.workers;
  const double servers = network.servers;
  switch (network.topology) {
    case Topology::kServersApart:
      return std::max(push_bytes, reply_bytes) * std::max(1.0, workers / servers) / network.bytes_per_second;
    case Topology::kServersBeside: {
      // Of the host of a server: what the other workers push to it, and what its worker gets from the others.
      const double in = (workers - 1) / servers * push_bytes + (servers - 1) / servers * reply_bytes;
      const double out = (servers - 1) / servers * push_bytes + (workers - 1) / servers * reply_bytes;
      const double of_a_host_without = servers < workers ? std::max(push_bytes, reply_bytes) : 0;
      return std::max({in, out, of_a_host_without}) / network.bytes_per_second;
    }
    case Topology::kRing:
      break;
  }
  return 2 * (workers - 1) / workers * push_bytes / network.bytes_per_second;
}

void validate(const NetworkModel& network) {
  const auto refuse = [](const std::string& text) { throw std::invalid_argument("network: " + text); };
  if (network.workers == 0 || network.servers == 0) {
    refuse("workers=" + std::to_string(network.workers) + ", servers=" + std::to_string(network.servers) +
           "; expected both to be at least 1");
  }
  if (network.topology == Topology::kServersBeside && network.servers > network.workers) {
    refuse(std::to_string(network.servers) + " servers beside " + std::to_string(network.workers) +
           " workers; expected at most one on each host: place them apart");
  }
  if (network.topology == Topology::kRing && network.servers != 1) {
    refuse(std::to_string(network.servers) + " servers in a ring, which has none; expected 1");
  }
  const auto is_seconds = [](double value) { return std::isfinite(value) && value >= 0; };
  if (!std::isfinite(network.bytes_per_second) || network.bytes_per_second < 1 ||
      !is_seconds(network.latency_seconds) || !is_seconds(network.message_seconds) ||
      !is_seconds(network.wakeup_seconds)) {
    refuse("bytes_per_second=" + std::to_string(network.bytes_per_second) +
           ", latency_seconds=" + std::to_string(network.latency_seconds) +
           ", message_seconds=" + std::to_string(network.message_seconds) +
           ", wakeup_seconds=" + std::to_string(network.wakeup_seconds) +
           "; expected a rate of at least 1 and seconds of at least 0");
  }
}

}  // namespace gradwire::fusion
