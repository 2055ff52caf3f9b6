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
  // Here, because libzmq gives a connection's descriptor only with a message that came on it.
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
    // The stream's own goodbye was lost with its connection. The scheduler's word has to do: nothing more
    // will come.
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
    // A server knows how many streams a worker has by the first hello only: no stream means that none has
    // come.
    const bool open = !peer.streams.empty() && std::ranges::all_of(peer.streams, &Stream::open);
    if (!open && !peer.gone) nodes.push_back(node);
  }
  return nodes;
}

void DataLinks::announce_goodbye(Node node, const std::string& error, Time now) {
  const auto found = peers_.find(node);
  if (found != peers_.end() && !error.empty()) found->second.error = error;
  if (found == peers_.end()) {
    // Such as another worker: no frames come from it here, so there is nothing to wait for.
    report_.inbox.post_goodbye(node, error);
  } else if (!found->second.announced) {
    // Not reported yet: frames that the peer sent before it left may still be under way on its streams.
    found->second.announced = now;
    settle_goodbye(node, found->second);
  }
}

void DataLinks::settle_goodbye(Node node, Peer& peer) {
  // On each stream the goodbye comes behind the frames, so after the last one the Sink has all of them.
  if (peer.gone || !std::ranges::all_of(peer.streams, &Stream::left)) return;
  peer.gone = true;
  report_.inbox.post_goodbye(node, peer.error);
}

void DataLinks::announce_departure(Node server, Node mirror) {
  if (const auto found = peers_.find(server); found != peers_.end()) {
    // Closed before the departure is posted: after that event the Sink must get nothing from the dead server.
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
      // A stream that never opened has nobody to answer. On one that the peer has left, nothing is read any
      // more.
      if (stream.open && !stream.left)
        write_control(node, stream, header_of(Kind::kGoodbye), error_text(error));
    }
  }
}

bool DataLinks::is_goodbye_answered() const {
  return std::ranges::all_of(peers_, [](const auto& entry) {
    const Peer& peer = entry.second;
    return peer.gone || std::ranges::all_of(peer.streams, [](const Stream& stream) {
             // A peer that left first has answered for itself: it waits for no more frames of this node.
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
  // Only where this node has connected to a local socket. The stream stays shut until it is connected anew.
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
    // All are checked before any has an effect, so a message is refused as a whole.
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
    // Frames of one message reach the Sink in one call, unless a control frame stands between them.
    if (!data.empty()) report_.inbox.post_frames(from, std::exchange(data, {}));
  };
  for (Frame& frame : frames) {
    if (frame.header.kind >= Kind::kInit) {
      data.push_back(std::move(frame));
    } else {
      // Before the control frame, which may be the goodbye behind those frames.
      hand_over();
      on_control(from, peers_.at(from).streams[stream_number], frame);
    }
  }
  hand_over();
}

void DataLinks::on_control(Node from, Stream& stream, const Frame& frame) {
  if (frame.header.kind == Kind::kHello) {
    // The answer to this node's hello, or to a repeated one.
    stream.open = true;
  } else if (frame.header.kind == Kind::kReject) {
    // One frame was refused, and the stream goes on: only a reject of the hello is final (WorkerLinks::take).
    report_.refusals.note(to_string(self_), to_string(from) + " refused it: " + payload_text(frame));
  } else if (frame.header.kind == Kind::kGoodbye) {
    if (frame.header.key == static_cast<std::uint64_t>(GoodbyeStage::kAcknowledged)) {
      stream.acknowledged = true;
      return;
    }
    // The answer is the peer's proof that everything before its goodbye has arrived.
    FrameHeader answer = header_of(Kind::kGoodbye);
    answer.key = static_cast<std::uint64_t>(GoodbyeStage::kAcknowledged);
    write_control(from, stream, answer, "");
    stream.left = true;
    Peer& peer = peers_.at(from);
    // Streams and the scheduler both give the error. Whichever comes first must not be overwritten by an
    // empty one.
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
  // The socket's place stays, because streams of other servers know theirs by number.
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
      // Repeated until it is open: a hello or its answer may be lost with a connection.
      if (peer.gone || stream.open) continue;
      if (!stream.at.empty() && now - stream.connected_at >= kConnectAgainEvery) {
        stream.connected_at = now;
        // libzmq does not do it by itself here (reach), and the server may have come after the first attempt.
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
      // Each socket gets its batch in turn, so that one fast server does not keep the others waiting.
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
    // Before the payload is looked at: another user's process must not open the stream, nor refuse it for the
    // server.
    if (!opening.open) note_answer(opening, packet.back());
    std::vector<Frame> frames = unpack(std::move(packet), 0);
    if (!opening.open && frames.front().header.kind == Kind::kReject) {
      // The server does not know this node, or another has its stream. Repeating the hello would not change
      // that.
      return refused_(to_string(from) + " refused the connection: " + payload_text(frames.front()));
    }
    take_frames(from, stream, std::move(frames));
  } catch (const FrameError& error) {
    // Dropped alone: the store asks again for what is missing.
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
  if (!key) router_.refuse_old_protocols();
  endpoint_ = start_listening(router_, listening);
  handles_.push_back(router_.get());
  handles_.push_back(watch_.get());
}

void ServerLinks::on_begin() {
  // Without streams, so that awaited() names workers that never come. Nobody else's hello is taken from now
  // on.
  for (std::uint32_t rank = 0; rank < world_.workers; ++rank) peers_[{Role::kWorker, rank}];
  if (world_.replicas > 0) peers_[{Role::kServer, mirrored_by(self_.rank, world_.servers)}];
  // Workers may have their roster before this server has: their hellos waited for the epoch to compare with.
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
  // Before messages: handshakes of libzmq's thread stand still until they are answered here.
  if (authenticator_) authenticator_->answer();
  take_connection_events();
  Packet packet;
  int i = 0;
  while (i < kBatch && router_.receive(packet)) {
    std::string route = packet.front().text();
    // Before the roster nobody is known. Anything that is no hello gets a reject from take().
    const bool may_be_hello = packet.size() == kPartsOfEarly && byte_count(packet) <= kLongestEarly;
    if (world_.epoch != 0 || !may_be_hello) {
      take(route, std::move(packet));
    } else if (early_.size() < kMostEarly) {
      early_.emplace_back(std::move(route), std::move(packet));
    }
    // Else dropped: what is kept is bounded. A worker repeats its hello, but a reject would be final for it.
    ++i;
  }
  // A batch of its own: replies to workers wait for the mirror's acknowledgements.
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
  // The other one connects to us, and the same connection serves both directions.
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
    // Without it the mirror has departed, and what is sent to a departed peer is dropped.
    to_mirror_->send(std::move(packet));
  }
}

void ServerLinks::drop(const Stream& stream) {
  if (!stream.route.empty()) {
    // A ROUTER cannot close one connection. Without an origin, frames that still come on it are a stranger's.
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
    // As for a worker: the mirror may be reached over a local socket, which another user's process could
    // hold.
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
  // At the first message only: the kernel is asked about a descriptor, and that costs system calls.
  const bool came_locally = !is_known && prepare_connection(packet.back());
  // Read now, since unpacking gives the parts away, and a refusal needs it.
  const int fd = packet.back().source_fd();
  try {
    std::vector<Frame> frames = unpack(std::move(packet), 1);
    // Also on a known route: the worker says hello again when the answer was lost.
    if (frames.front().header.kind == Kind::kHello && frames.size() == 1) {
      Stream& opened = on_hello(route, frames.front());
      if (!is_known) opened.local = came_locally;
    } else if (!is_known) {
      throw FrameError("the first frame of a connection must be a hello with this job's epoch");
    } else {
      take_frames(origin->second.node, origin->second.stream, std::move(frames));
    }
  } catch (const FrameError& error) {
    // Refused alone. What a stranger sends, or a member's damaged frame, must not harm the job.
    report_.refusals.note(address, error.what());
    take_connection_events();  // it may be a new connection, with a descriptor that was another's
    if (is_known || strangers_.may_be_answered(fd))
      router_.send_to(route, pack(header_of(Kind::kReject), error.what()));
  }
}

ServerLinks::Stream& ServerLinks::on_hello(const std::string& route, const Frame& frame) {
  const Node node = frame.header.sender;
  const auto peer = peers_.find(node);
  // The epoch is random and comes with the roster, so a node that has it was let in by the scheduler.
  if (peer == peers_.end() || frame.header.epoch != world_.epoch) {
    throw FrameError(
        "hello: from " + to_string(node) + " in epoch " + std::to_string(frame.header.epoch) +
        ", expected a worker of this job, or the server that this one mirrors, and its epoch, as the "
        "roster gives them");
  }
  const StreamHello hello = parse_stream_hello(payload_text(frame));
  std::vector<Stream>& streams = peer->second.streams;
  // The first hello settles the number, and parse_stream_hello() bounds it.
  if (streams.empty()) streams.resize(hello.streams);
  if (streams.size() != hello.streams) {
    throw FrameError("hello: " + to_string(node) + " has " + std::to_string(streams.size()) +
                     " streams, not " + std::to_string(hello.streams));
  }
  Stream& stream = streams[hello.stream];
  const auto origin = origins_.find(route);
  // A connection that comes back after a break has its old route. Another route for an open stream, or
  // another stream on a known route, would cut off the one that uses it.
  const bool is_other =
      origin != origins_.end() && (origin->second.node != node || origin->second.stream != hello.stream);
  if ((stream.open && stream.route != route) || is_other) {
    throw FrameError("hello: stream " + std::to_string(hello.stream) + " of " + to_string(node) +
                     " or this connection is in use already");
  }
  stream.open = true;
  stream.route = route;
  // From here on frames on this connection are this node's, whatever their headers say (take_frames
  // compares).
  origins_[route] = {node, hello.stream};
  report_.traffic.received(node, byte_count(frame), 1);
  write_control(node, stream, header_of(Kind::kHello), "");
  return stream;
}

}  // namespace gradwire::transport
