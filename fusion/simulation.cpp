#include "fusion/simulation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <limits>
#include <queue>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "fusion/fluid_lanes.h"
#include "fusion/send_queue.h"
#include "fusion/station.h"

namespace gradwire::fusion {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

enum class Work : std::uint8_t { kForward, kBackward, kCodecJob, kSum };
enum class Place : std::uint8_t { kAtServer, kAtWorker };

/// What a thread does. index: of a layer, a codec job or a part.
struct Task {
  Work work = Work::kForward;
  std::uint64_t index = 0;
};

/// A part that reaches a place at a known time.
struct Event {
  double time = 0;
  std::uint64_t sequence = 0;  ///< breaks ties by age
  Place place = Place::kAtServer;
  std::uint64_t part = 0;
  bool operator>(const Event& other) const {
    return std::tie(time, sequence) > std::tie(other.time, other.sequence);
  }
};

/// Which of running_ counts it.
std::size_t group_of(Work work) {
  if (work == Work::kCodecJob) return 1;
  return work == Work::kSum ? 2 : 0;
}

class Job {
 public:
  explicit Job(const SimulationSetup& setup);
  Simulated run();

 private:
  struct KeyState {
    std::size_t layers_left = 0;  ///< without a gradient in this step
    std::size_t parts_left = 0;   ///< without a sum
  };
  struct ServerState {
    Station threads;
    SendQueue replies;  ///< to one worker, which stands for all: all get the same in the same order
    double received_bytes = 0;
    double sent_bytes = 0;
  };

  // compute
  void try_forward();
  void end_forward();
  void end_backward(std::uint32_t layer);
  void begin_backward(std::uint32_t layer);
  bool has_sums(std::uint32_t layer) const;
  // a part's way
  void seal(std::uint32_t key);
  void end_codec_job(std::uint64_t job);
  void push(std::size_t part);
  void end_push(const FluidLanes::Ended& ended);
  void reach_server(std::size_t part);
  void end_sum(std::size_t part);
  void end_reply(const FluidLanes::Ended& ended);
  void reach_worker(std::size_t part);
  void end_part(std::size_t part);

  void begin_codec_jobs();
  void begin_sums(std::uint32_t server);
  void send_pushes();
  void send_replies(std::uint32_t server);
  void share();
  void handle(const Task& task);
  void handle(const Event& event);
  void run(double seconds, Work work, std::uint64_t index);
  void at(double time, Place place, std::uint64_t part);
  std::int32_t priority_of(std::size_t part) const;
  std::uint64_t message_bytes(std::size_t part, double bytes_per_element) const;
  double wire_bytes(std::uint64_t bytes) const;
  bool is_ring() const { return network_.topology == Topology::kRing; }
  double ring_rounds() const { return 2.0 * (network_.workers - 1); }
  bool done() const { return began_.size() == setup_.steps + 2U; }
  Simulated result() const;

  const SimulationSetup& setup_;
  const NetworkModel& network_;
  StepPlan plan_;
  std::vector<std::uint32_t> key_of_layer_;
  std::vector<std::size_t> parts_of_key_;
  std::vector<KeyState> keys_;
  std::size_t parts_left_ = 0;  // of all keys
  std::uint32_t forward_ = 0;   // next layer to go forward, or going
  bool forward_waits_ = false;  // for sums, with that layer

  Station codec_;
  SendQueue pushes_;
  FluidLanes up_;    // by server
  FluidLanes down_;  // by server
  std::vector<ServerState> servers_;

  double now_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t sequence_ = 0;
  SharedWork<Task> threads_;
  std::array<std::uint32_t, 3> running_{};  // layers, codec jobs and sums
  std::array<std::uint32_t, 5> sharing_{};  // busy lanes up and down, and running_, when last shared out
  std::vector<double> began_;               // start of each step's backward
  std::vector<LayerTimes> times_;
  double sent_bytes_ = 0;
  double received_bytes_ = 0;
};

Job::Job(const SimulationSetup& setup)
    : setup_(setup),
      network_(setup.network),
      codec_(setup.codec_threads, network_.wakeup_seconds),
      pushes_(network_.servers, setup.credit_bytes),
      up_(network_.servers),
      down_(network_.servers),
      times_(setup.layers.size()) {
  std::vector<std::uint64_t> elements;
  for (const SimulatedLayer& layer : setup.layers) elements.push_back(layer.elements);
  plan_ = plan_step(elements, network_.servers, 0, setup.limits);
  key_of_layer_.resize(setup.layers.size());
  for (std::size_t k = 0; k < plan_.keys.size(); ++k) {
    for (const std::uint32_t layer : plan_.keys[k].layers)
      key_of_layer_[layer] = static_cast<std::uint32_t>(k);
    keys_.push_back({plan_.keys[k].layers.size(), 0});
    parts_of_key_.push_back(plan_.keys[k].turns.size());
  }
  for (std::uint32_t s = 0; s < network_.servers; ++s) {
    // Pushes of workers, and messages of a ring's rounds, come one by one.
    const double wakeups = is_ring() ? ring_rounds() : network_.workers;
    servers_.push_back({Station(setup.server_threads, wakeups * network_.wakeup_seconds),
                        SendQueue(1, setup.credit_bytes), 0, 0});
  }
}

Simulated Job::run() {
  try_forward();
  while (!done()) {
    const double event = events_.empty() ? kNever : events_.top().time;
    const double work = threads_.next_end().value_or(kNever);
    const double up = up_.next_end().value_or(kNever);
    const double down = down_.next_end().value_or(kNever);
    // Where times are equal the order below decides, so that equal setups give equal results.
    now_ = std::min({event, work, up, down});
    if (now_ == kNever) throw std::invalid_argument("simulation: these times and rates add up to infinity");
    if (now_ == event) {
      const Event next = events_.top();
      events_.pop();
      handle(next);
    } else if (now_ == work) {
      handle(threads_.end(now_));
    } else if (now_ == up) {
      end_push(up_.end(now_));
    } else {
      end_reply(down_.end(now_));
    }
    // After every event: each one may have begun or ended a flow or a task, on which all rates depend.
    share();
  }
  return result();
}

void Job::handle(const Task& task) {
  --running_[group_of(task.work)];
  const auto index = static_cast<std::uint32_t>(task.index);
  switch (task.work) {
    case Work::kForward:
      return end_forward();
    case Work::kBackward:
      return end_backward(index);
    case Work::kCodecJob:
      return end_codec_job(task.index);
    case Work::kSum:
      return end_sum(task.index);
  }
}

void Job::handle(const Event& event) {
  return event.place == Place::kAtServer ? reach_server(event.part) : reach_worker(event.part);
}

void Job::run(double seconds, Work work, std::uint64_t index) {
  ++running_[group_of(work)];
  threads_.add(now_, seconds, {work, index});
}

void Job::at(double time, Place place, std::uint64_t part) { events_.push({time, sequence_++, place, part}); }

// ------------------------------------------------------------------------------------------------ compute

bool Job::has_sums(std::uint32_t layer) const {
  if (setup_.next_forward == NextForward::kDrained) return parts_left_ == 0;
  return keys_[key_of_layer_[layer]].parts_left == 0;
}

void Job::try_forward() {
  // end_part() calls again when a key's sums are there.
  forward_waits_ = !has_sums(forward_);
  if (forward_waits_) return;
  times_[forward_].forward_seconds = now_;
  run(setup_.layers[forward_].forward_seconds, Work::kForward, forward_);
}

void Job::end_forward() {
  if (++forward_ < setup_.layers.size()) return try_forward();
  began_.push_back(now_);
  // The last start of a backward ends the simulation: steps are measured from one such start to the next.
  if (!done()) begin_backward(forward_ - 1);
}

void Job::begin_backward(std::uint32_t layer) {
  run(setup_.layers[layer].backward_seconds, Work::kBackward, layer);
}

void Job::end_backward(std::uint32_t layer) {
  times_[layer].ready_seconds = now_;
  const std::uint32_t key = key_of_layer_[layer];
  // A bucket's layers are one key, which goes when the last of them has its gradient.
  if (--keys_[key].layers_left == 0) seal(key);
  if (layer > 0) return begin_backward(layer - 1);
  forward_ = 0;
  try_forward();
}

// ------------------------------------------------------------------------------------------- a part's way

// Jobs of the codec pool: 2 part to encode it, 2 part + 1 to decode its sum.
void Job::seal(std::uint32_t key) {
  // Counted anew for this step. The parts of the last one are all here, or its layers could not have gone
  // forward.
  keys_[key] = {plan_.keys[key].layers.size(), parts_of_key_[key]};
  parts_left_ += parts_of_key_[key];
  for (const std::size_t part : plan_.keys[key].turns) {
    const double elements = static_cast<double>(plan_.parts[part].elements);
    codec_.submit(
        {2 * part, priority_of(part), elements * setup_.codec.encode_seconds + network_.message_seconds});
  }
  begin_codec_jobs();
}

void Job::begin_codec_jobs() {
  while (const auto job = codec_.begin()) run(job->seconds, Work::kCodecJob, job->id);
}

void Job::end_codec_job(std::uint64_t job) {
  codec_.end();
  if (job % 2 == 0) {
    push(job / 2);
  } else {
    end_part(job / 2);
  }
  begin_codec_jobs();
}

void Job::push(std::size_t part) {
  const std::uint64_t bytes = message_bytes(part, setup_.codec.push_bytes);
  pushes_.push({part, priority_of(part), plan_.parts[part].server, bytes, part});
  send_pushes();
}

void Job::send_pushes() {
  while (const auto item = pushes_.pop()) {
    up_.add(now_, item->destination, {item->id, wire_bytes(item->bytes)});
  }
}

void Job::end_push(const FluidLanes::Ended& ended) {
  const std::size_t part = ended.transfer.id;
  sent_bytes_ += ended.transfer.bytes;
  if (is_ring()) {
    received_bytes_ += ended.transfer.bytes;
    // A ring passes each share on in 2 (N - 1) rounds, and each of them waits for the one before.
    return at(now_ + ring_rounds() * network_.latency_seconds, Place::kAtServer, part);
  }
  servers_[ended.lane].received_bytes += ended.transfer.bytes;
  // Credit comes back when the bytes have left the link, as a socket takes more then. An answer is not
  // awaited.
  pushes_.release(ended.lane, message_bytes(part, setup_.codec.push_bytes));
  send_pushes();
  at(now_ + network_.latency_seconds, Place::kAtServer, part);
}

void Job::reach_server(std::size_t part) {
  const double elements = static_cast<double>(plan_.parts[part].elements);
  // Every worker's push and its reply; of a ring, what the worker's own library sends round by round.
  const double messages = is_ring() ? ring_rounds() : 2.0 * network_.workers;
  const std::uint32_t server = plan_.parts[part].server;
  servers_[server].threads.submit(
      {part, 0, elements * setup_.codec.sum_seconds + messages * network_.message_seconds});
  begin_sums(server);
}

void Job::begin_sums(std::uint32_t server) {
  while (const auto job = servers_[server].threads.begin()) run(job->seconds, Work::kSum, job->id);
}

void Job::end_sum(std::size_t part) {
  const std::uint32_t server = plan_.parts[part].server;
  servers_[server].threads.end();
  begin_sums(server);
  // A ring has no servers: the sum is in the worker's own library, and is not sent again.
  if (is_ring()) return reach_worker(part);
  const std::uint64_t bytes = message_bytes(part, setup_.codec.reply_bytes);
  servers_[server].replies.push({part, priority_of(part), 0, bytes, part});
  send_replies(server);
}

void Job::send_replies(std::uint32_t server) {
  while (const auto item = servers_[server].replies.pop()) {
    down_.add(now_, server, {item->id, wire_bytes(item->bytes)});
  }
}

void Job::end_reply(const FluidLanes::Ended& ended) {
  received_bytes_ += ended.transfer.bytes;
  servers_[ended.lane].sent_bytes += ended.transfer.bytes;
  servers_[ended.lane].replies.release(0, message_bytes(ended.transfer.id, setup_.codec.reply_bytes));
  send_replies(ended.lane);
  at(now_ + network_.latency_seconds, Place::kAtWorker, ended.transfer.id);
}

void Job::reach_worker(std::size_t part) {
  if (is_ring()) {  // whose library counts a sum until its end
    pushes_.release(0, message_bytes(part, setup_.codec.push_bytes));
    send_pushes();
  }
  const double elements = static_cast<double>(plan_.parts[part].elements);
  codec_.submit(
      {2 * part + 1, priority_of(part), elements * setup_.codec.decode_seconds + network_.message_seconds});
  begin_codec_jobs();
}

void Job::end_part(std::size_t part) {
  const std::uint32_t key = plan_.parts[part].key;
  --parts_left_;
  // Forward needs whole tensors, so the layers of a key wait for its last part.
  if (--keys_[key].parts_left > 0) return;
  for (const std::uint32_t layer : plan_.keys[key].layers) times_[layer].arrived_seconds = now_;
  if (forward_waits_) try_forward();
}

// ------------------------------------------------------------------------------------------ links and cores

void Job::share() {
  const auto [layers, codec_jobs, sums] = running_;
  const std::array<std::uint32_t, 5> sharing{up_.busy(), down_.busy(), layers, codec_jobs, sums};
  // Rates are of counts alone. Without a change there is nothing to compute, which is the case after most
  // events.
  if (sharing == sharing_) return;
  sharing_ = sharing;
  const FlowRates rates = flow_rates(network_, up_.busy(), down_.busy());
  // A server beside a worker takes that worker's share through memory.
  const double remote = network_.topology == Topology::kServersBeside ? 1.0 - 1.0 / network_.servers : 1.0;
  const double bytes = remote * (up_.busy() * rates.push + down_.busy() * rates.reply);
  const double speed =
      core_speed(setup_.machine, {layers * setup_.machine.compute_threads + codec_jobs, 1.0 * sums, bytes},
                 network_.workers);
  up_.set_rate(now_, speed * rates.push);
  down_.set_rate(now_, speed * rates.reply);
  threads_.set_speed(now_, speed);
}

std::int32_t Job::priority_of(std::size_t part) const {
  return setup_.order == SendOrder::kPriority ? plan_.keys[plan_.parts[part].key].priority : 0;
}

std::uint64_t Job::message_bytes(std::size_t part, double bytes_per_element) const {
  const double payload = static_cast<double>(plan_.parts[part].elements) * bytes_per_element;
  return setup_.message_bytes + static_cast<std::uint64_t>(std::ceil(payload));
}

/// What a message occupies of a worker's link. In a ring, a worker sends 2 (N-1) shares of 1/N.
double Job::wire_bytes(std::uint64_t bytes) const {
  const double workers = network_.workers;
  const double all = static_cast<double>(bytes);
  if (is_ring()) return ring_rounds() / workers * all;
  return network_.topology == Topology::kServersBeside && network_.workers == 1 ? 0 : all;
}

Simulated Job::result() const {
  Simulated result;
  // From the second start on: the first step has no sums of another behind it.
  result.step_seconds = (began_.back() - began_[1]) / setup_.steps;
  for (const SimulatedLayer& layer : setup_.layers) {
    result.compute_seconds += layer.forward_seconds + layer.backward_seconds;
  }
  const double steps = setup_.steps + 1.0;
  const bool is_beside = network_.topology == Topology::kServersBeside;
  const double remote = is_beside ? 1.0 - 1.0 / network_.servers : 0.0;
  result.sent_bytes = sent_bytes_ / steps;
  result.received_bytes = received_bytes_ / steps;
  // A host without a server carries its worker's alone; with peers there is none.
  const bool some_are_apart = !is_beside || network_.servers < network_.workers;
  double busiest = some_are_apart ? std::max(result.sent_bytes, result.received_bytes) : 0.0;
  if (is_beside) {
    // Each push and each reply leaves one host for another, but for those of a server to the worker beside
    // it: whatever the number of servers, that is one worker's part of all N workers' bytes.
    const double leaves = 1.0 - 1.0 / network_.workers;
    result.sent_bytes = result.received_bytes = leaves * (sent_bytes_ + received_bytes_) / steps;
  }
  const double peers = network_.workers - (is_beside ? 1.0 : 0.0);
  for (const ServerState& server : servers_) {
    const double in = (peers * server.received_bytes + remote * received_bytes_) / steps;
    const double out = (peers * server.sent_bytes + remote * sent_bytes_) / steps;
    busiest = std::max({busiest, in, out});
  }
  const double could_carry = network_.bytes_per_second * result.step_seconds;
  result.busiest_link = could_carry > 0 ? busiest / could_carry : 0;
  const double began = began_[began_.size() - 2];
  for (const LayerTimes& layer : times_) {
    result.layers.push_back(
        {layer.ready_seconds - began, layer.arrived_seconds - began, layer.forward_seconds - began});
  }
  result.events = sequence_ + threads_.begun();
  return result;
}

void require(bool holds, const std::string& given, const std::string& expected) {
  if (!holds) throw std::invalid_argument("simulation: " + given + "; expected " + expected);
}

bool are_costs(std::initializer_list<double> values) {
  return std::ranges::all_of(values, [](double value) { return std::isfinite(value) && value >= 0; });
}

constexpr unsigned kMostSteps = 1'000'000;
constexpr std::uint64_t kMostElements = std::uint64_t{1} << 40;

void validate(const SimulationSetup& setup) {
  validate(setup.network);
  validate(setup.machine);
  require(!setup.layers.empty(), "no layers", "at least one");
  for (std::size_t i = 0; i < setup.layers.size(); ++i) {
    const SimulatedLayer& layer = setup.layers[i];
    require(layer.elements > 0 && layer.elements <= kMostElements &&
                are_costs({layer.forward_seconds, layer.backward_seconds}),
            "layer " + std::to_string(i) + " has elements=" + std::to_string(layer.elements) +
                ", forward_seconds=" + std::to_string(layer.forward_seconds) +
                ", backward_seconds=" + std::to_string(layer.backward_seconds),
            "1 to " + std::to_string(kMostElements) + " elements and seconds of at least 0");
  }
  const CodecCosts& codec = setup.codec;
  require(are_costs({codec.push_bytes, codec.reply_bytes, codec.encode_seconds, codec.decode_seconds,
                     codec.sum_seconds}),
          "a negative or infinite cost of the codec", "bytes and seconds of at least 0 an element");
  require(setup.limits.least_pieces > 0 && setup.codec_threads > 0 && setup.server_threads > 0 &&
              setup.steps > 0 && setup.steps <= kMostSteps,
          "least_pieces=" + std::to_string(setup.limits.least_pieces) +
              ", codec_threads=" + std::to_string(setup.codec_threads) + ", server_threads=" +
              std::to_string(setup.server_threads) + ", steps=" + std::to_string(setup.steps),
          "all to be at least 1, and at most " + std::to_string(kMostSteps) + " steps");
}

}  // namespace

Simulated simulate(const SimulationSetup& setup) {
  validate(setup);
  return Job(setup).run();
}

double least_step_seconds(const SimulationSetup& setup) {
  validate(setup);
  std::vector<LayerLoad> loads;
  for (const SimulatedLayer& layer : setup.layers) {
    const double elements = static_cast<double>(layer.elements);
    loads.push_back({layer.forward_seconds, layer.backward_seconds,
                     least_wire_seconds(setup.network, elements * setup.codec.push_bytes,
                                        elements * setup.codec.reply_bytes)});
  }
  return least_step_seconds(loads, setup.next_forward);
}

}  // namespace gradwire::fusion
