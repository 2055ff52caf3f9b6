// Simulation: steps of training in simulated time, with the store's own decisions. plan_step() cuts and
// places the layers. A SendQueue orders a worker's pushes, and another one each server's replies.
//
// One worker stands for all of them, which are alike and begin together (network_model.h says how their
// flows add up). Every server is simulated, because they own different parts. So the number of workers costs
// nothing with servers apart, and one server each with peers. Where a machine has fewer cores than threads,
// everything on it is slower (shared_cores.h). The simulation leaves out slow workers, unequal flows and
// lost packets.
//
// Threading: pure; no clock, no thread, no I/O. Equal setups give equal results.
#pragma once

#include <cstdint>
#include <vector>

#include "fusion/network_model.h"
#include "fusion/schedule_bound.h"
#include "fusion/shared_cores.h"
#include "fusion/step_plan.h"

namespace gradwire::fusion {

struct SimulatedLayer {
  std::uint64_t elements = 0;
  double forward_seconds = 0;
  double backward_seconds = 0;
};

/// What an element of a gradient costs, in bytes on the wire and seconds of one thread.
struct CodecCosts {
  double push_bytes = 4;
  double reply_bytes = 4;
  double encode_seconds = 0;  ///< in a worker
  double decode_seconds = 0;  ///< in a worker, of the reply
  /// In a server, from all workers' payloads to the reply; in a ring, in a worker, from the library's sum.
  double sum_seconds = 0;
};

/// In what order parts go.
enum class SendOrder : std::uint8_t {
  kPriority,  ///< front layers first
  kFifo,      ///< as backward produces them
};

struct SimulationSetup {
  std::vector<SimulatedLayer> layers;  ///< front layer first
  NetworkModel network;
  CodecCosts codec;
  PlanLimits limits;
  std::uint64_t message_bytes = 112;  ///< of a header
  /// What has left the send queue and is not yet on the wire, per server, in the engine, the socket and the
  /// link's queue: more urgent parts do not overtake it. In a ring, with the library and not yet summed.
  std::uint64_t credit_bytes = 256U << 10;
  SendOrder order = SendOrder::kPriority;  ///< of pushes, replies and codec jobs
  NextForward next_forward = NextForward::kPerLayer;
  unsigned codec_threads = 1;
  unsigned server_threads = 1;
  unsigned steps = 3;  ///< measured, after one to warm up
  CoreModel machine;   ///< by default every thread has a core
};

/// Seconds from the start of the step's backward.
struct LayerTimes {
  double ready_seconds = 0;    ///< its gradient
  double arrived_seconds = 0;  ///< its sum
  double forward_seconds = 0;  ///< the next forward of the layer begins
};

struct Simulated {
  double step_seconds = 0;     ///< mean of the measured steps
  double compute_seconds = 0;  ///< of a step: what it would take without communication
  /// What leaves a worker's host in a step, mean over these hosts: its pushes, and the replies of a server on
  /// it to other hosts. Without the headers of Ethernet, IP and TCP.
  double sent_bytes = 0;
  double received_bytes = 0;  ///< what arrives there: the replies to it, and pushes to a server on it
  double busiest_link = 0;  ///< share of the step for which the busiest link is busy, in its busier direction
  std::vector<LayerTimes> layers;  ///< of the last step
  std::uint64_t events = 0;
};

/// Throws std::invalid_argument naming what no job has.
Simulated simulate(const SimulationSetup& setup);

/// What no schedule of these layers on this network can beat (schedule_bound.h), codecs costing nothing.
double least_step_seconds(const SimulationSetup& setup);

}  // namespace gradwire::fusion
