#include "transport/mpi/mpi_rendezvous.h"

#include <memory>
#include <string_view>
#include <thread>

#include "transport/membership/rendezvous.h"
#include "transport/mpi/mpi_backoff.h"
#include "transport/nodes.h"

namespace gradwire::transport {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kProgressEvery{2'000};

std::string call_of(MpiJob job) {
  switch (job) {
    case MpiJob::kPairs:
      return "connect_mpi";
    case MpiJob::kNative:
      return "connect_mpi_native";
  }
  return "call " + std::to_string(static_cast<std::uint32_t>(job));
}

/// What MPI reads and writes. The operation keeps it: after a timeout MPI may still go on with it, where
/// somebody else in this process calls MPI.
struct Gathering {
  MpiEntry mine;
  std::vector<MpiEntry> all;
  bool is_complete = false;
};

}  // namespace

void check_agreement(std::span<const MpiEntry> entries) {
  const MpiEntry& first = entries.front();
  for (std::uint32_t rank = 1; rank < entries.size(); ++rank) {
    const MpiEntry& entry = entries[rank];
    const auto differ = [&](const std::string& one, const std::string& other) {
      throw TransportError("mpi: " + describe_rank(entries, 0) + " " + one + " and " +
                           describe_rank(entries, rank) + " " + other +
                           "; every rank must run the same version and make the same calls");
    };
    // First of all: in another version the fields below may mean something else. The layout of an entry
    // stays.
    if (entry.version != first.version) {
      differ("speaks version " + std::to_string(first.version), std::to_string(entry.version));
    }
    if (entry.job != first.job) differ("called " + call_of(first.job), call_of(entry.job));
    // Receivers await as many pieces as they would send themselves.
    if (entry.largest_message_bytes != first.largest_message_bytes) {
      differ("has largest_message_bytes=" + std::to_string(first.largest_message_bytes),
             std::to_string(entry.largest_message_bytes));
    }
  }
}

std::vector<MpiEntry> mpi_rendezvous(MpiApi& port, const MpiEntry& mine, std::chrono::milliseconds timeout,
                                     const std::function<void(const std::string&)>& log) {
  const auto gathering = std::make_shared<Gathering>(Gathering{mine, std::vector<MpiEntry>(port.size())});
  // One gather serves as the barrier of the start, too: it ends when every rank has come.
  port.join([&port, gathering] {
    port.all_gather(std::as_bytes(std::span(&gathering->mine, 1)),
                    reinterpret_cast<std::byte*>(gathering->all.data()), sizeof(MpiEntry),
                    [gathering] { gathering->is_complete = true; });
  });
  const auto began = Clock::now();
  auto next_progress = began + kProgressEvery;
  const MpiBackoff pace(began);
  while (!gathering->is_complete) {
    // MPI has no blocking wait with a deadline.
    port.poll();
    const auto now = Clock::now();
    if (now - began >= timeout) {
      throw TimeoutError("mpi: not all of the " + std::to_string(port.size()) +
                         " ranks of MPI_COMM_WORLD came within " + in_seconds(timeout) +
                         "; every process that mpirun starts must create the store");
    }
    if (now >= next_progress) {
      next_progress += kProgressEvery;
      if (log) log("waiting for the other ranks of MPI_COMM_WORLD");
    }
    std::this_thread::sleep_for(pace.pause(now, false));
  }
  check_agreement(gathering->all);
  return std::move(gathering->all);
}

std::string describe_rank(std::span<const MpiEntry> entries, std::uint32_t rank) {
  Hello hello;
  hello.host = std::string_view(entries[rank].host.data());
  hello.pid = entries[rank].pid;
  return describe({Role::kWorker, rank}, hello);
}

}  // namespace gradwire::transport
