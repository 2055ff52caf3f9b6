// What the tests of a job over MPI share. Every rank runs every test, and each test is a job of its own.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "tests/test_options.h"
#include "tests/transport/ear.h"
#include "transport/mpi/mpi.h"

namespace gradwire::transport {

inline MpiOptions mpi_options() {
  MpiOptions options;
  options.library = test_options().mpi_library;
  options.rendezvous_timeout = kPatience;
  return options;
}

/// The pair of this rank, and what it hears.
class Rank {
 public:
  explicit Rank(const MpiOptions& options = mpi_options()) : pair_(connect_mpi(options)) {}
  ~Rank() {
    for (auto* messenger : {pair_.worker.get(), pair_.server.get()}) {
      if (messenger != nullptr) messenger->detach();
    }
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  Messenger& worker() { return *pair_.worker; }
  Messenger& server() { return *pair_.server; }
  NodePair& pair() { return pair_; }
  std::uint32_t rank() { return worker().self().rank; }
  std::uint32_t size() { return worker().world().workers; }
  std::uint32_t next() { return (rank() + 1) % size(); }
  std::uint32_t previous() { return (rank() + size() - 1) % size(); }
  bool is_last() { return rank() + 1 == size(); }

  /// Attaches both ears; comes before anything is sent.
  void listen() {
    worker().attach(worker_ear);
    server().attach(server_ear);
  }
  /// Returns when every rank is here.
  void meet() { worker().exchange("meet", "", kPatience); }

  /// As meet(), where another rank may already go on to fail the job.
  void meet_unless_failed() {
    try {
      meet();
    } catch (const TransportError&) {  // the test that comes says what it should have heard
    }
  }

  Ear worker_ear, server_ear;

 private:
  NodePair pair_;
};

}  // namespace gradwire::transport
