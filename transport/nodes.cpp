#include "transport/nodes.h"

#include <array>
#include <cstdio>

#include "transport/mirrors.h"

namespace gradwire::transport {

std::string list_nodes(const std::vector<Node>& nodes) {
  std::string text;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (i > 0) text += i + 1 == nodes.size() ? " and " : ", ";
    text += to_string(nodes[i]);
  }
  return text;
}

std::string list_workers(const std::vector<std::uint32_t>& ranks) {
  std::vector<Node> nodes;
  for (const auto rank : ranks) nodes.push_back({Role::kWorker, rank});
  return list_nodes(nodes);
}

std::string in_seconds(std::chrono::milliseconds time) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.4g s", std::chrono::duration<double>(time).count());
  return text.data();
}

void check_route(Node self, const World& world, Node to, std::span<const Frame> frames) {
  const bool from_worker = self.role == Role::kWorker && to.role == Role::kServer;
  const bool from_server = self.role == Role::kServer && to.role == Role::kWorker;
  // Both directions of either neighbour: with two servers they are the same node.
  const bool between_mirrors =
      self.role == Role::kServer && to.role == Role::kServer && world.replicas > 0 &&
      (to.rank == mirror_of(self.rank, world.servers) || self.rank == mirror_of(to.rank, world.servers));
  if (!from_worker && !from_server && !between_mirrors) {
    throw std::invalid_argument("send: " + to_string(self) + " cannot send to " + to_string(to) +
                                "; workers send to servers and servers to workers, and with replicas to "
                                "their mirrors");
  }
  // from_server is the one case in which the receiver is a worker.
  const std::uint32_t known = from_server ? world.workers : world.servers;
  if (to.rank >= known) {
    throw std::invalid_argument("send: there is no " + to_string(to) + " in this job of " +
                                std::to_string(world.workers) + " workers and " +
                                std::to_string(world.servers) + " servers");
  }
  for (const Frame& frame : frames) {
    if (frame.header.kind < Kind::kInit) {
      throw std::invalid_argument("send: kind " + std::to_string(static_cast<int>(frame.header.kind)) +
                                  " is the transport's own; data-plane kinds start at 32");
    }
  }
}

void check_exchange(Node self, std::string_view name) {
  if (self.role != Role::kWorker) {
    throw std::invalid_argument("exchange: " + to_string(self) + " called it; only workers take part");
  }
  // On the wire a NUL separates the name from the blob.
  if (name.find('\0') != std::string_view::npos) {
    throw std::invalid_argument("exchange: the name has a NUL character; use printable text");
  }
}

std::string exchange_wait_text(std::uint64_t sequence, std::string_view name,
                               const std::vector<std::uint32_t>& missing, std::chrono::milliseconds waited) {
  // Rounded: nobody needs the milliseconds of a wait that is long enough to be reported.
  return "exchange " + std::to_string(sequence) + " ('" + std::string(name) + "') has waited " +
         in_seconds(std::chrono::round<std::chrono::seconds>(waited)) + " for " + list_workers(missing);
}

std::string exchange_timeout_text(std::uint64_t sequence, std::string_view name, const std::string& who,
                                  std::chrono::milliseconds timeout) {
  return "exchange " + std::to_string(sequence) + " ('" + std::string(name) + "'): " + who +
         " did not come within " + std::to_string(timeout.count()) + " ms";
}

}  // namespace gradwire::transport
