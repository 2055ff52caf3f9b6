// One rank of a job over MPI, for tests of what happens to processes: mpi_rank LIBRARY SCENARIO. It writes
// what it is told to stderr, and ends with 3 after an error.
#include <mpi.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "tests/transport/ear.h"
#include "tests/transport/frames.h"
#include "transport/mpi/mpi.h"
#include "transport/mpi/mpi_library.h"

namespace gradwire::transport {
namespace {

using namespace std::chrono_literals;

MpiOptions options_for(const std::string& library) {
  MpiOptions options;
  options.library = library;
  options.liveness_timeout = 2s;
  options.rendezvous_timeout = 20s;
  return options;
}

void meet(Messenger& worker) { worker.exchange("meet", "", 20s); }

void clean(const MpiOptions& options) {
  const NodePair pair = connect_mpi(options);
  meet(*pair.worker);
  // Ranks end at different times; the last object of each waits for the others.
  std::this_thread::sleep_for(100ms * pair.worker->self().rank);
}

void clean_native(const MpiOptions& options) {
  const MpiNative native = connect_mpi_native(options);
  meet(*native.messenger);
}

void one_after_another(const MpiOptions& options) {
  clean(options);
  clean(options);
}

void two_at_once(const MpiOptions& options) {
  const NodePair first = connect_mpi(options);
  const MpiNative second = connect_mpi_native(options);
  meet(*first.worker);
  meet(*second.messenger);
}

/// Sends without end until the job fails, and throws why. Rank 1 does something else after a moment.
void in_the_middle(const MpiOptions& options, const std::function<void(NodePair&)>& of_rank_1) {
  const std::vector<std::byte> bytes(std::size_t{64} << 20);
  NodePair pair = connect_mpi(options);
  Ear worker_ear, server_ear;
  pair.worker->attach(worker_ear);
  pair.server->attach(server_ear);
  meet(*pair.worker);
  const std::uint32_t rank = pair.worker->self().rank, size = pair.worker->world().workers;
  const Node next{Role::kServer, (rank + 1) % size};
  const auto send_one = [&] {
    Frame frame = make_frame(Kind::kPush, 1);
    frame.payload = Buffer::borrow(bytes);
    pair.worker->send(next, one(std::move(frame)));
  };
  for (int i = 0; i < 4; ++i) send_one();
  if (rank == 1) of_rank_1(pair);
  const auto failures = worker_ear.failures(1);
  pair.worker->detach();
  pair.server->detach();
  throw TransportError(failures.empty() ? "nothing was heard" : failures.front());
}

void killed(const MpiOptions& options) {
  in_the_middle(options, [](NodePair&) { raise(SIGKILL); });
}
void stopped(const MpiOptions& options) {
  in_the_middle(options, [](NodePair&) { raise(SIGSTOP); });
}
void failed(const MpiOptions& options) {
  in_the_middle(options, [](NodePair& pair) { pair.worker->fail("worker 1: the disk is full"); });
}

std::uint32_t rank_by_mpirun() {
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  return rank == nullptr ? 0 : static_cast<std::uint32_t>(std::atoi(rank));
}

void never_initialised(MpiOptions options) {
  options.rendezvous_timeout = 1s;
  if (rank_by_mpirun() == 1) {
    std::this_thread::sleep_for(4s);
  } else {
    connect_mpi(options);
  }
}

void never_connected(MpiOptions options) {
  options.rendezvous_timeout = 1s;
  if (rank_by_mpirun() == 1) {
    load_mpi(options.library)->initialise();
    std::this_thread::sleep_for(4s);
  } else {
    connect_mpi(options);
  }
}

void beside_a_serialized_mpi(const MpiOptions& options) {
  int level = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
  const std::string error = error_of([&] { connect_mpi(options); });
  MPI_Finalize();
  throw TransportError(error);
}

void beside_a_user_of_mpi(const MpiOptions& options) {
  int level = 0, sum = 0;
  const int one = 1;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
  {
    const NodePair pair = connect_mpi(options);
    for (int i = 0; i < 1000; ++i) MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    meet(*pair.worker);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Finalize();
}

void described(const MpiOptions& options) {
  const MpiDescription description = describe_mpi(options.library);
  std::fprintf(stderr, "%s gives %s\n", description.version.c_str(), description.thread_level.c_str());
}

const std::map<std::string, void (*)(const MpiOptions&)> kScenarios = {
    {"clean", clean},
    {"clean_native", clean_native},
    {"one_after_another", one_after_another},
    {"two_at_once", two_at_once},
    {"killed", killed},
    {"stopped", stopped},
    {"failed", failed},
    {"never_initialised", [](const MpiOptions& options) { never_initialised(options); }},
    {"never_connected", [](const MpiOptions& options) { never_connected(options); }},
    {"beside_a_serialized_mpi", beside_a_serialized_mpi},
    {"beside_a_user_of_mpi", beside_a_user_of_mpi},
    {"described", described},
};

int run(const std::string& library, const std::string& scenario) {
  try {
    kScenarios.at(scenario)(options_for(library));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %u: %s\n", rank_by_mpirun(), error.what());
    return 3;
  }
  return 0;
}

}  // namespace
}  // namespace gradwire::transport

int main(int argc, char** argv) { return argc == 3 ? gradwire::transport::run(argv[1], argv[2]) : 2; }
