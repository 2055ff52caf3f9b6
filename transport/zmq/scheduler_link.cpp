#include "transport/zmq/scheduler_link.h"

#include <utility>

#include "transport/address.h"
#include "transport/membership/wait_graph.h"
#include "transport/nodes.h"
#include "transport/zmq/curve.h"
#include "transport/zmq/data_links.h"
#include "transport/zmq/descriptor_limit.h"

namespace gradwire::transport {
namespace {

using std::chrono::milliseconds;

const std::string kScheduler = "scheduler";
constexpr milliseconds kHelloToSchedulerEvery{500};
constexpr milliseconds kVerdictGrace{
    2'000};                              // the scheduler's own deadline comes first: it knows who is missing
constexpr milliseconds kShutOut{5'000};  // for so long, handshakes that the other side ends may be chance
constexpr Node kSchedulerNode{Role::kScheduler, 0};

}  // namespace

SchedulerLink::SchedulerLink(const ZmqContext& context, const ZmqOptions& options, Hello hello,
                             Traffic& traffic, RejectionLog& refusals, Events& events)
    : options_(options),
      hello_(std::move(hello)),
      traffic_(traffic),
      refusals_(refusals),
      events_(events),
      socket_(context, ZMQ_DEALER, options.max_frame_bytes),
      watch_(context, socket_),
      liveness_(options.liveness_timeout),
      next_beat_(std::chrono::steady_clock::now()),
      next_hello_(next_beat_),
      deadline_(next_beat_ + options.rendezvous_timeout),
      self_{hello_.role, hello_.rank.value_or(kNoRank)} {
  socket_.set(ZMQ_ROUTING_ID, random_routing_id());
  if (options.key && !is_ipc(options.scheduler)) show_membership(socket_, *options.key);
  const std::string endpoint = resolve_endpoint(options.scheduler);
  if (!is_ipc(endpoint)) address_ = parse_tcp(endpoint).host;
  socket_.connect(endpoint);
}

void SchedulerLink::take_messages() {
  Packet packet;
  while (socket_.receive(packet)) {
    liveness_.heard(kScheduler, std::chrono::steady_clock::now());
    lost_ = false;
    try {
      for (const Frame& frame : unpack(std::move(packet), 0)) {
        traffic_.received(kSchedulerNode, kHeaderBytes + frame.payload.size_bytes(), 1);
        handle(frame);
      }
    } catch (const FrameError& error) {
      refusals_.note(kScheduler, error.what());
    }
  }
  while (const auto event = watch_.next()) on_connection(*event, std::chrono::steady_clock::now());
}

void SchedulerLink::on_connection(const ConnectionEvent& event, Time now) {
  if (event.kind == ConnectionEvent::Kind::kDisconnected) {
    liveness_.disconnected(kScheduler, now);
    lost_ = heard_;
  } else if (event.kind == ConnectionEvent::Kind::kOpened) {
    shut_out_since_.reset();
  } else if (!heard_) {  // later ones are liveness's to judge
    const std::string why = shut_out(event, now);
    if (!why.empty())
      events_.on_failure("rendezvous: " + options_.scheduler_name + " at " + options_.scheduler + " " + why,
                         FailureCause::kFault);
  }
}

std::string SchedulerLink::shut_out(const ConnectionEvent& event, Time now) {
  const std::string advice =
      options_.key ? "; this node has a job key: give the same one to every node of the job, or to none"
                   : "; this node has no job key: give every node of the job the same one, or none";
  switch (event.kind) {
    case ConnectionEvent::Kind::kOtherSecurity:
      return (options_.key ? "does not encrypt" : "encrypts") + advice;
    case ConnectionEvent::Kind::kNotAMember:
      return "has another job key" + advice;
    case ConnectionEvent::Kind::kBadHandshake:
      return "does not speak ZMTP: something else listens there";
    default:
      break;
  }
  if (!shut_out_since_) shut_out_since_ = now;
  if (now - *shut_out_since_ < kShutOut) return {};
  return "has ended every handshake for " + in_seconds(kShutOut) + advice;
}

void SchedulerLink::handle(const Frame& frame) {
  if (!heard_) {  // from here on the scheduler's own deadline counts, which began before or after ours
    heard_ = true;
    deadline_ = std::chrono::steady_clock::now() + options_.rendezvous_timeout + kVerdictGrace;
  }
  switch (frame.header.kind) {
    case Kind::kHeartbeat:
      if (frame.header.step != 0 && !std::exchange(held_, true) && options_.log)
        options_.log("the job runs; it takes this worker in when its members meet again");
      return events_.on_newcomers(static_cast<std::uint32_t>(frame.header.key));
    case Kind::kRoster: {
      if (epoch_ != 0) return;
      const Roster roster = parse_roster(payload_text(frame));
      self_.rank = roster.rank;
      epoch_ = roster.epoch;
      return events_.on_roster(roster);
    }
    case Kind::kExchangeResult:
      return events_.on_exchange_result(frame);
    case Kind::kGoodbye:
      if (frame.header.key == static_cast<std::uint64_t>(GoodbyeStage::kAcknowledged)) {
        acknowledged_ = true;
        return;
      }
      if (is_news(frame))
        events_.on_goodbye(parse_goodbye(payload_text(frame)), parse_error(payload_text(frame)));
      return;
    case Kind::kDeparture: {
      if (!is_news(frame)) return;
      const Departure departure = parse_departure(payload_text(frame));
      return events_.on_departure({Role::kServer, departure.server}, {Role::kServer, departure.mirror});
    }
    case Kind::kWait:
      return events_.on_question(parse_wait_question(payload_text(frame)));
    case Kind::kFailure:
      return events_.on_failure(payload_text(frame), static_cast<FailureCause>(frame.header.key));
    case Kind::kReject:
      if (epoch_ == 0) return events_.on_failure(payload_text(frame), FailureCause::kFault);
      return refusals_.note(to_string(self_), "the scheduler refused it: " + payload_text(frame));
    default:
      throw FrameError("frame: kind " + std::to_string(static_cast<int>(frame.header.kind)) +
                       " does not come from a scheduler");
  }
}

// The scheduler repeats news, in their order, until a heartbeat says that they were heard.
bool SchedulerLink::is_news(const Frame& frame) {
  if (frame.header.step != news_heard_ + 1) return false;
  ++news_heard_;
  return true;
}

void SchedulerLink::tick(Time now) {
  if (now < next_beat_) return;
  next_beat_ = now + liveness_.beat();
  if (epoch_ == 0) check_rendezvous(now);
  if (heard_) send(Kind::kHeartbeat, news_heard_, 0, "");
  if (released_) return;
  if (const auto lost = liveness_.check(now)) {
    events_.on_failure(options_.scheduler_name + " at " + options_.scheduler + " " + lost->why,
                       FailureCause::kFault);
  }
}

void SchedulerLink::check_rendezvous(Time now) {
  if (now >= next_hello_) {
    next_hello_ = now + kHelloToSchedulerEvery;
    send(Kind::kHello, 0, 0, to_text(hello_));
  }
  // Who is to be waited for, and how long, is the scheduler's to say where jobs go on.
  if (now < deadline_ || (heard_ && options_.on_failure == OnFailure::kContinue)) return;
  const std::string time = in_seconds(options_.rendezvous_timeout);
  events_.on_failure(heard_ ? "rendezvous: " + options_.scheduler_name + " at " + options_.scheduler +
                                  " is still waiting for other nodes after " + time
                            : "rendezvous: no answer from " + options_.scheduler_name + " at " +
                                  options_.scheduler + as_resolved() + " within " + time +
                                  "; check that it was started and can be reached from here" +
                                  descriptor_shortage(),
                     FailureCause::kDeadline);
}

/// What a name stands for on this host: it may be wrong here alone.
std::string SchedulerLink::as_resolved() const {
  if (is_ipc(options_.scheduler) || parse_tcp(options_.scheduler).host == address_) return {};
  return " (" + address_ + " here)";
}

FrameHeader SchedulerLink::header_of(Kind kind) const {
  FrameHeader header;
  header.kind = kind;
  header.sender = epoch_ == 0 ? Node{self_.role, kNoRank} : self_;
  header.epoch = epoch_;
  return header;
}

void SchedulerLink::send(Kind kind, std::uint64_t key, std::uint64_t step, const std::string& payload) {
  // Who fails as soon as it is made is heard, too: the first frame must be a hello.
  if (!std::exchange(has_said_hello_, true) && kind != Kind::kHello)
    send(Kind::kHello, 0, 0, to_text(hello_));
  FrameHeader header = header_of(kind);
  header.key = key;
  header.step = step;
  traffic_.sent(kSchedulerNode, kHeaderBytes + payload.size(), 1);
  socket_.send(pack(header, payload));
}

void SchedulerLink::say_goodbye(const std::string& error) {
  send(Kind::kGoodbye, static_cast<std::uint64_t>(GoodbyeStage::kLeaving), 0, error_text(error));
}

}  // namespace gradwire::transport
