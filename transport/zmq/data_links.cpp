#include "transport/zmq/data_links.h"

#include <algorithm>
#include <random>
#include <utility>

#include "transport/address.h"
#include "transport/mirrors.h"

namespace gradwire::transport {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kHelloEvery{250};
constexpr milliseconds kConnectAgainEvery{2'000};
constexpr milliseconds kGoodbyeOverdue{
    5'000};  // after the scheduler's word, a stream's own goodbye is not awaited longer
constexpr std::size_t kMostEarly = 4096;  // messages kept for the roster to judge: hellos, so no long ones
constexpr std::uint64_t kLongestEarly = 4096;  // bytes
constexpr std::size_t kPartsOfEarly = 3;       // routing id, header and payload: of more, empty ones cost too
constexpr int kTwelveDays = 1 << 30;           // milliseconds; libzmq adds up to as much again, in an int
constexpr int kBatch = 256;                    // messages read before sends get their turn

std::uint64_t byte_count(const Frame& frame) { return kHeaderBytes + frame.payload.size_bytes(); }

std::uint64_t byte_count(const Packet& packet) {
  std::uint64_t bytes = 0;
  for (const ZmqMessage& part : packet) bytes += part.bytes().size();
  return bytes;
}

/// Makes the connection on which a stream's first message came ready for data. Returns whether it is local.
bool prepare_connection(const ZmqMessage& first) {
  first.bound_unsent();
  return first.came_locally();
}

}  // namespace

std::string random_routing_id() {
  std::random_device random;
  std::string id = "gw";
  for (int i = 0; i < 8; ++i) id += static_cast<char>(random() & 0xFF);
  return id;
}

void DataLinks::begin(const World& world, Node self, Time now) {
  world_ = world;
  self_ = self;
  on_begin();
  tick(now);
}

void DataLinks::send(Outgoing outgoing) {
  const auto found = peers_.find(outgoing.to);
  if (found == peers_.end() || found->second.gone) return;  // departed, or left
  const Peer& peer = found->second;
  const Stream& stream = peer.streams[outgoing.spread % peer.streams.size()];
  report_.traffic.sent(outgoing.to, outgoing.byte_count, outgoing.frame_count);
  write(stream, std::move(outgoing.packet));
}

void DataLinks::tick(Time now) {
  on_tick(now);
  for (auto& [node, peer] : peers_) {
    if (!peer.gone && peer.announced && now - *peer.announced >= kGoodbyeOverdue) {
      for (Stream& stream : peer.streams) stream.left = true;
      settle_goodbye(node, peer);
    }
  }
}

bool DataLinks::is_open() const { return awaited().empty(); }

std::vector<Node> DataLinks::awaited() const {
  std::vector<Node> nodes;
  for (const auto& [node, peer] : peers_) {
    const bool open = !peer.streams.empty() && std::ranges::all_of(peer.streams, &Stream::open);
    if (!open && !peer.gone) nodes.push_back(node);
  }
  return nodes;
}

void DataLinks::announce_goodbye(Node node, const std::string& error, Time now) {
  const auto found = peers_.find(node);
  if (found != peers_.end() && !error.empty()) found->second.error = error;
  if (found == peers_.end()) {
    report_.inbox.post_goodbye(node, error);
  } else if (!found->second.announced) {
    found->second.announced = now;
    settle_goodbye(node, found->second);
  }
}

void DataLinks::settle_goodbye(Node node, Peer& peer) {
  if (peer.gone || !std::ranges::all_of(peer.streams, &Stream::left)) return;
  peer.gone = true;
  report_.inbox.post_goodbye(node, peer.error);
}

void DataLinks::announce_departure(Node server, Node mirror) {
  if (const auto found = peers_.find(server); found != peers_.end()) {
    for (const Stream& stream : found->second.streams) drop(stream);
    peers_.erase(found);
  }
  report_.inbox.post_departure(server, mirror);
}

std::vector<Node> DataLinks::peers() const {
  std::vector<Node> nodes;
  for (const auto& [node, peer] : peers_) nodes.push_back(node);
  return nodes;
}

void DataLinks::say_goodbye(const std::string& error) {
  for (auto& [node, peer] : peers_) {
    if (peer.gone) continue;
    for (const Stream& stream : peer.streams) {
      if (stream.open && !stream.left)
        write_control(node, stream, header_of(Kind::kGoodbye), error_text(error));
    }
  }
}

bool DataLinks::is_goodbye_answered() const {
  return std::ranges::all_of(peers_, [](const auto& entry) {
    const Peer& peer = entry.second;
    return peer.gone || std::ranges::all_of(peer.streams, [](const Stream& stream) {
             return !stream.open || stream.left || stream.acknowledged;
           });
  });
}

bool DataLinks::is_local(Node peer) const {
  const auto found = peers_.find(peer);
  return found != peers_.end() && !found->second.streams.empty() &&
         std::ranges::all_of(found->second.streams,
                             [](const Stream& stream) { return stream.open && stream.local; });
}

FrameHeader DataLinks::header_of(Kind kind) const {
  FrameHeader header;
  header.kind = kind;
  header.sender = self_;
  header.epoch = world_.epoch;
  return header;
}

// A local socket's name is anybody's to take once its owner is dead, and local sockets are not encrypted. So
// libzmq does not connect to it again by itself, and nothing but hellos goes there until this user has
// answered.
void DataLinks::reach(Stream& stream, ZmqSocket& socket, const std::string& endpoint,
                      const std::optional<JobKey>& key) {
  socket.set(ZMQ_ROUTING_ID, random_routing_id());
  if (is_ipc(endpoint)) {
    socket.set(ZMQ_RECONNECT_IVL, kTwelveDays);
    stream.at = endpoint;
    stream.connected_at = std::chrono::steady_clock::now();
  } else if (key) {
    show_membership(socket, *key);
  }
  socket.connect(endpoint);
}

void DataLinks::note_answer(Stream& stream, const ZmqMessage& answer) {
  stream.local = prepare_connection(answer);
  if (!stream.at.empty() && !stream.local)
    throw FrameError("whoever listens on the local socket " + stream.at + " is not of this user");
}

void DataLinks::write_control(Node to, const Stream& stream, const FrameHeader& header,
                              const std::string& text) {
  report_.traffic.sent(to, kHeaderBytes + text.size(), 1);
  write(stream, pack(header, text));
}

void DataLinks::take_frames(Node from, std::uint32_t stream_number, std::vector<Frame> frames) {
  for (const Frame& frame : frames) {
    if (frame.header.sender == from && frame.header.epoch == world_.epoch) continue;
    throw FrameError("frame: sender is " + to_string(frame.header.sender) + " in epoch " +
                     std::to_string(frame.header.epoch) + ", expected " + to_string(from) + " in epoch " +
                     std::to_string(world_.epoch));
  }
  std::uint64_t bytes = 0;
  for (const Frame& frame : frames) bytes += byte_count(frame);
  report_.traffic.received(from, bytes, frames.size());

  std::vector<Frame> data;
  data.reserve(frames.size());
  const auto hand_over = [&] {
    if (!data.empty()) report_.inbox.post_frames(from, std::exchange(data, {}));
  };
  for (Frame& frame : frames) {
    if (frame.header.kind >= Kind::kInit) {
      data.push_back(std::move(frame));
    } else {
      hand_over();
      on_control(from, peers_.at(from).streams[stream_number], frame);
    }
  }
  hand_over();
}

void DataLinks::on_control(Node from, Stream& stream, const Frame& frame) {
  if (frame.header.kind == Kind::kHello) {
    stream.open = true;
  } else if (frame.header.kind == Kind::kReject) {
    report_.refusals.note(to_string(self_), to_string(from) + " refused it: " + payload_text(frame));
  } else if (frame.header.kind == Kind::kGoodbye) {
    if (frame.header.key == static_cast<std::uint64_t>(GoodbyeStage::kAcknowledged)) {
      stream.acknowledged = true;
      return;
    }
    FrameHeader answer = header_of(Kind::kGoodbye);
    answer.key = static_cast<std::uint64_t>(GoodbyeStage::kAcknowledged);
    write_control(from, stream, answer, "");
    stream.left = true;
    Peer& peer = peers_.at(from);
    if (std::string error = parse_error(payload_text(frame)); !error.empty()) peer.error = std::move(error);
    settle_goodbye(from, peer);
  } else if (frame.header.kind != Kind::kHeartbeat) {
    throw FrameError("frame: kind " + std::to_string(static_cast<int>(frame.header.kind)) +
                     " has no place on a data connection");
  }
}

WorkerLinks::WorkerLinks(Report report, const ZmqContext& context, const std::vector<std::string>& endpoints,
                         std::uint32_t streams_per_peer, std::uint64_t max_frame_bytes,
                         const std::optional<JobKey>& key, std::function<void(const std::string&)> refused)
    : DataLinks(report), refused_(std::move(refused)) {
  for (std::uint32_t rank = 0; rank < endpoints.size(); ++rank) {
    Peer& peer = peers_[{Role::kServer, rank}];
    for (std::uint32_t stream = 0; stream < streams_per_peer; ++stream) {
      ZmqSocket& socket = sockets_.emplace_back(context, ZMQ_DEALER, max_frame_bytes);
      Stream& reached = peer.streams.emplace_back();
      reached.socket = sockets_.size() - 1;
      reach(reached, socket, endpoints[rank], key);
    }
  }
  for (const ZmqSocket& socket : sockets_) handles_.push_back(socket.get());
}

void WorkerLinks::drop(const Stream& stream) {
  std::erase(handles_, sockets_[stream.socket].get());
  sockets_[stream.socket].close();
}

void WorkerLinks::on_tick(Time now) {
  if (now < next_hello_) return;
  next_hello_ = now + kHelloEvery;
  for (auto& [node, peer] : peers_) {
    const auto streams = static_cast<std::uint32_t>(peer.streams.size());
    for (std::uint32_t i = 0; i < streams; ++i) {
      Stream& stream = peer.streams[i];
      if (peer.gone || stream.open) continue;
      if (!stream.at.empty() && now - stream.connected_at >= kConnectAgainEvery) {
        stream.connected_at = now;
        sockets_[stream.socket].connect_again(stream.at);
      }
      write_control(node, stream, header_of(Kind::kHello), to_text(StreamHello{i, streams}));
    }
  }
}

bool WorkerLinks::take_messages() {
  Packet packet;
  bool more = false;
  for (const auto& [node, peer] : peers_) {
    for (std::uint32_t stream = 0; stream < peer.streams.size(); ++stream) {
      ZmqSocket& socket = sockets_[peer.streams[stream].socket];
      int i = 0;
      while (i < kBatch && socket.receive(packet)) {
        take(node, stream, std::move(packet));
        ++i;
      }
      more = more || i == kBatch;
    }
  }
  return more;
}

void WorkerLinks::take(Node from, std::uint32_t stream, Packet packet) {
  try {
    Stream& opening = peers_.at(from).streams[stream];
    if (!opening.open) note_answer(opening, packet.back());
    std::vector<Frame> frames = unpack(std::move(packet), 0);
    if (!opening.open && frames.front().header.kind == Kind::kReject) {
      return refused_(to_string(from) + " refused the connection: " + payload_text(frames.front()));
    }
    take_frames(from, stream, std::move(frames));
  } catch (const FrameError& error) {
    report_.refusals.note(to_string(from), error.what());
  }
}

ServerLinks::ServerLinks(Report report, const ZmqContext& context, const Listening& listening,
                         std::uint64_t max_frame_bytes, const std::optional<JobKey>& key)
    : DataLinks(report), router_(context, ZMQ_ROUTER, max_frame_bytes), watch_(context, router_) {
  router_.set(ZMQ_ROUTER_MANDATORY, 1);
  router_.set(ZMQ_ROUTER_HANDOVER, 1);  // a connection that comes back after a break takes its old place
  const bool over_tcp = !is_ipc(listening.endpoints.front());
  if (over_tcp) local_endpoint_ = router_.bind(transport::local_endpoint());  // first: it stays plain
  if (over_tcp && key) {
    authenticator_.emplace(context, *key);
    authenticator_->guard(router_);
    handles_.push_back(authenticator_->get());
  }
  endpoint_ = start_listening(router_, listening);
  handles_.push_back(router_.get());
  handles_.push_back(watch_.get());
}

void ServerLinks::on_begin() {
  for (std::uint32_t rank = 0; rank < world_.workers; ++rank) peers_[{Role::kWorker, rank}];
  if (world_.replicas > 0) peers_[{Role::kServer, mirrored_by(self_.rank, world_.servers)}];
  for (auto& [route, packet] : std::exchange(early_, {})) take(route, std::move(packet));
}

void ServerLinks::take_connection_events() {
  while (const auto event = watch_.next()) {
    if (const auto fault = fault_of(*event); !fault.empty())
      report_.refusals.note("a stranger", "handshake at " + endpoint_ + ": " + std::string(fault));
    if (event->kind == ConnectionEvent::Kind::kAccepted) strangers_.accepted(event->fd);
  }
}

bool ServerLinks::take_messages() {
  if (authenticator_) authenticator_->answer();
  take_connection_events();
  Packet packet;
  int i = 0;
  while (i < kBatch && router_.receive(packet)) {
    std::string route = packet.front().text();
    const bool may_be_hello = packet.size() == kPartsOfEarly && byte_count(packet) <= kLongestEarly;
    if (world_.epoch == 0 && early_.size() < kMostEarly && may_be_hello) {
      early_.emplace_back(std::move(route), std::move(packet));
    } else {
      take(route, std::move(packet));
    }
    ++i;
  }
  int from_mirror = 0;
  while (from_mirror < kBatch && to_mirror_ && to_mirror_->receive(packet)) {
    take_from_mirror(std::move(packet));
    ++from_mirror;
  }
  return i == kBatch || from_mirror == kBatch;
}

void ServerLinks::connect_mirror(const ZmqContext& context, Node self,
                                 const std::vector<std::string>& endpoints, std::uint64_t max_frame_bytes,
                                 const std::optional<JobKey>& key) {
  const auto servers = static_cast<std::uint32_t>(endpoints.size());
  mirror_ = {Role::kServer, mirror_of(self.rank, servers)};
  if (servers == 2 && self.rank > mirror_.rank) return;
  to_mirror_.emplace(context, ZMQ_DEALER, max_frame_bytes);
  reach(peers_[mirror_].streams.emplace_back(), *to_mirror_, endpoints[mirror_.rank], key);
  handles_.push_back(to_mirror_->get());
}

void ServerLinks::write(const Stream& stream, Packet packet) {
  const bool is_to_mirror = stream.route.empty();  // whoever came to us has one
  if (!is_to_mirror) {
    router_.send_to(stream.route, std::move(packet));
  } else if (to_mirror_) {
    to_mirror_->send(std::move(packet));
  }
}

void ServerLinks::drop(const Stream& stream) {
  if (!stream.route.empty()) {
    origins_.erase(stream.route);
  } else if (to_mirror_) {
    std::erase(handles_, to_mirror_->get());
    to_mirror_.reset();
  }
}

void ServerLinks::on_tick(Time now) {
  if (!to_mirror_ || now < next_hello_) return;
  next_hello_ = now + kHelloEvery;
  const auto found = peers_.find(mirror_);
  if (found == peers_.end() || found->second.gone || found->second.streams.front().open) return;
  write_control(mirror_, found->second.streams.front(), header_of(Kind::kHello), to_text(StreamHello{}));
}

void ServerLinks::take_from_mirror(Packet packet) {
  try {
    Stream& stream = peers_.at(mirror_).streams.front();
    if (!stream.open) note_answer(stream, packet.back());
    take_frames(mirror_, 0, unpack(std::move(packet), 0));
  } catch (const FrameError& error) {
    report_.refusals.note(to_string(mirror_), error.what());
  }
}

void ServerLinks::take(const std::string& route, Packet packet) {
  const auto origin = origins_.find(route);
  const bool is_known = origin != origins_.end();
  const std::string address = is_known ? to_string(origin->second.node) : packet.back().peer_address();
  const bool came_locally = !is_known && prepare_connection(packet.back());
  const int fd = packet.back().source_fd();
  try {
    std::vector<Frame> frames = unpack(std::move(packet), 1);
    if (frames.front().header.kind == Kind::kHello && frames.size() == 1) {
      Stream& opened = on_hello(route, frames.front());
      if (!is_known) opened.local = came_locally;
    } else if (!is_known) {
      throw FrameError("the first frame of a connection must be a hello with this job's epoch");
    } else {
      take_frames(origin->second.node, origin->second.stream, std::move(frames));
    }
  } catch (const FrameError& error) {
    report_.refusals.note(address, error.what());
    take_connection_events();  // it may be a new connection, with a descriptor that was another's
    if (is_known || strangers_.may_be_answered(fd))
      router_.send_to(route, pack(header_of(Kind::kReject), error.what()));
  }
}

ServerLinks::Stream& ServerLinks::on_hello(const std::string& route, const Frame& frame) {
  const Node node = frame.header.sender;
  const auto peer = peers_.find(node);
  if (peer == peers_.end() || frame.header.epoch != world_.epoch) {
    throw FrameError(
        "hello: from " + to_string(node) + " in epoch " + std::to_string(frame.header.epoch) +
        ", expected a worker of this job, or the server that this one mirrors, and its epoch, as the "
        "roster gives them");
  }
  const StreamHello hello = parse_stream_hello(payload_text(frame));
  std::vector<Stream>& streams = peer->second.streams;
  if (streams.empty()) streams.resize(hello.streams);
  if (streams.size() != hello.streams) {
    throw FrameError("hello: " + to_string(node) + " has " + std::to_string(streams.size()) +
                     " streams, not " + std::to_string(hello.streams));
  }
  Stream& stream = streams[hello.stream];
  const auto origin = origins_.find(route);
  const bool is_other =
      origin != origins_.end() && (origin->second.node != node || origin->second.stream != hello.stream);
  if ((stream.open && stream.route != route) || is_other) {
    throw FrameError("hello: stream " + std::to_string(hello.stream) + " of " + to_string(node) +
                     " or this connection is in use already");
  }
  stream.open = true;
  stream.route = route;
  origins_[route] = {node, hello.stream};
  report_.traffic.received(node, byte_count(frame), 1);
  write_control(node, stream, header_of(Kind::kHello), "");
  return stream;
}

}  // namespace gradwire::transport
