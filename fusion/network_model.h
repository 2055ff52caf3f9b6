// NetworkModel: hosts behind equal full-duplex links of a switch that is never the limit, and how flows
// share them.
//
// All workers do the same at the same time, so one stands for all: the flows of N workers to a server, or of
// a server to its N workers, are one number with weight N. Flows share links max-min fairly, as TCP flows of
// equal round trips do on average.
//
// Threading: values and pure functions.
#pragma once

#include <cstdint>

namespace gradwire::fusion {

/// Where a round is summed.
enum class Topology : std::uint8_t {
  kServersApart,   ///< on hosts of their own
  kServersBeside,  ///< on workers' hosts, server i on host i; with as many as workers: peers
  kRing,           ///< nowhere: a library's ring all-reduce, several under way
};

struct NetworkModel {
  Topology topology = Topology::kServersApart;
  std::uint32_t workers = 1;
  std::uint32_t servers = 1;    ///< of a ring: 1
  double bytes_per_second = 0;  ///< of every link in each direction, headers of its protocols taken off
  double latency_seconds = 0;   ///< from one host to another
  double message_seconds = 0;   ///< for which a thread is busy with sending or receiving one message
  double wakeup_seconds = 0;    ///< for which it is busy beside that if it slept when the message came
};

/// Bytes a second that each flow gets.
struct FlowRates {
  double push = 0;   ///< from a worker to a server
  double reply = 0;  ///< from a server to a worker
};

/// The rates while every worker pushes to `pushing` servers and `replying` servers answer all workers.
FlowRates flow_rates(const NetworkModel& network, std::uint32_t pushing, std::uint32_t replying);

/// Seconds for which the busiest link is busy with a gradient that is pushed as push_bytes and answered with
/// reply_bytes, were it spread over the servers evenly.
double least_wire_seconds(const NetworkModel& network, double push_bytes, double reply_bytes);

/// Throws std::invalid_argument naming what no network has.
void validate(const NetworkModel& network);

}  // namespace gradwire::fusion
