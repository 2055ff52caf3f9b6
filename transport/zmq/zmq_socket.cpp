#include "transport/zmq/zmq_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <utility>

#include "transport/address.h"
#include "transport/zmq/descriptor_limit.h"

namespace gradwire::transport {
namespace {

constexpr std::size_t kCopyBelow = 512;  // bytes; below, a copy is cheaper than an owner that is counted
constexpr std::size_t kPayloadAlignment = 8;
constexpr int kBacklog = 1024;           // connections that the kernel keeps until libzmq takes them
constexpr int kUnsentBytes = 256 << 10;  // 2 ms of a 1 Gbit wire; a 10 Gbit one needs 0.2 ms to ask for more
constexpr int kHandshakeMilliseconds = 10'000;  // a connection that is not open by then is closed

// libzmq calls it EMFILE, too, when a context has as many sockets as it may.
constexpr int kMostSockets = 1 << 14;  // of a context: 64 streams to 250 servers
// Two threads of libzmq's with two each, the context's and a first socket's: 6 in libzmq 4.3. Without these
// it ends the process.
constexpr std::size_t kDescriptorsOfAContext = 16;

[[noreturn]] void throw_zmq(const std::string& what) {
  const int error = zmq_errno();
  const std::string shortage = error == EMFILE ? descriptor_shortage() : std::string();
  throw TransportError(what + ": " + zmq_strerror(error) + shortage);
}

/// Whether a socket of this network namespace takes whatever its buffer holds: Linux's default.
bool has_no_unsent_limit() {
  std::ifstream file("/proc/sys/net/ipv4/tcp_notsent_lowat");
  std::uint32_t limit = 0;
  // The largest number means "no limit" (tcp_notsent_lowat in Linux's ip-sysctl). No file: no such option.
  return file >> limit && limit == std::numeric_limits<std::uint32_t>::max();
}

void release_buffer(void*, void* hint) { delete static_cast<Buffer*>(hint); }

}  // namespace

ZmqContext::ZmqContext() {
  // libzmq asserts that its threads get their descriptors, and a failed assertion ends the process.
  require_descriptors(kDescriptorsOfAContext, "zmq: a node of the job");
  context_ = zmq_ctx_new();
  if (context_ == nullptr) throw_zmq("zmq: no context");
  zmq_ctx_set(context_, ZMQ_MAX_SOCKETS, kMostSockets);
  // The first socket starts the threads: now, while there are descriptors for them.
  void* first = zmq_socket(context_, ZMQ_PAIR);
  if (first == nullptr) {
    // zmq_ctx_term() sets errno anew, and the reason of the failure would be lost.
    const int error = zmq_errno();
    zmq_ctx_term(context_);
    errno = error;
    throw_zmq("zmq: no socket");
  }
  zmq_close(first);
}

ZmqContext::~ZmqContext() {
  // A signal ends the wait early (zmq_ctx_term(3)): without another call its threads and descriptors would
  // stay.
  while (zmq_ctx_term(context_) != 0 && zmq_errno() == EINTR) {
  }
}

ZmqMessage::ZmqMessage(Buffer payload) {
  const std::span<std::byte> bytes = payload.bytes();
  if (bytes.size() <= kCopyBelow) {
    zmq_msg_init_size(&message_, bytes.size());
    if (!bytes.empty()) std::memcpy(zmq_msg_data(&message_), bytes.data(), bytes.size());
    return;
  }
  auto owner = std::make_unique<Buffer>(std::move(payload));
  if (zmq_msg_init_data(&message_, bytes.data(), bytes.size(), release_buffer, owner.get()) != 0)
    throw std::bad_alloc();
  // From here on libzmq owns the Buffer, and one of its threads deletes it (release_buffer) once the bytes
  // are sent.
  owner.release();
}

ZmqMessage::ZmqMessage(std::span<const std::byte> bytes) {
  if (zmq_msg_init_size(&message_, bytes.size()) != 0) throw std::bad_alloc();
  if (!bytes.empty()) std::memcpy(zmq_msg_data(&message_), bytes.data(), bytes.size());
}

ZmqMessage::ZmqMessage(ZmqMessage&& other) noexcept : ZmqMessage() {
  zmq_msg_move(&message_, &other.message_);
}

ZmqMessage& ZmqMessage::operator=(ZmqMessage&& other) noexcept {
  zmq_msg_move(&message_, &other.message_);
  return *this;
}

std::span<std::byte> ZmqMessage::bytes() const noexcept {
  return {static_cast<std::byte*>(zmq_msg_data(&message_)), zmq_msg_size(&message_)};
}

std::string ZmqMessage::text() const {
  return {reinterpret_cast<const char*>(bytes().data()), bytes().size()};
}

bool ZmqMessage::came_locally() const noexcept {
  int domain = AF_UNSPEC;
  ucred peer{};
  const auto ask = [fd = source_fd()](int option, auto& answer) {
    socklen_t length = sizeof(answer);
    return getsockopt(fd, SOL_SOCKET, option, &answer, &length) == 0;
  };
  // A descriptor that is closed by now gives an error, and the message counts as one from the network.
  return ask(SO_DOMAIN, domain) && domain == AF_UNIX && ask(SO_PEERCRED, peer) && peer.uid == geteuid();
}

void ZmqMessage::bound_unsent() const noexcept {
  // A limit that the machine's owner has set is kept. It is read once, as it hardly changes during a job.
  static const bool is_ours_to_bound = has_no_unsent_limit();
  if (is_ours_to_bound)
    setsockopt(source_fd(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kUnsentBytes, sizeof(kUnsentBytes));
}

std::string ZmqMessage::peer_address() const {
  const char* address = zmq_msg_gets(&message_, "Peer-Address");
  return address == nullptr || *address == '\0' ? "an unknown address" : without_mapping(address);
}

Buffer ZmqMessage::into_buffer() && {
  if (bytes().empty()) return {};
  // libzmq hands out parts of its receive buffer, which begin anywhere. The Sink is promised multiples of 8.
  if (reinterpret_cast<std::uintptr_t>(bytes().data()) % kPayloadAlignment != 0) {
    Buffer copy = Buffer::allocate(bytes().size());
    std::memcpy(copy.bytes().data(), bytes().data(), bytes().size());
    return copy;
  }
  auto owner = std::make_shared<ZmqMessage>(std::move(*this));  // owners: the Buffer and its shares
  // Asked after the move: the bytes of a short message are inside zmq_msg_t, and have moved with it.
  const std::span<std::byte> kept = owner->bytes();
  return Buffer(std::move(owner), kept);
}

ZmqSocket::ZmqSocket(const ZmqContext& context, int type, std::uint64_t max_part_bytes)
    : socket_(zmq_socket(context.get(), type)) {
  if (socket_ == nullptr) throw_zmq("zmq: no socket");
  // Closing discards what is unsent. Nodes know by acknowledged goodbyes what has arrived, and a dead peer
  // must not hold the process.
  set(ZMQ_LINGER, 0);
  set(ZMQ_SNDHWM, 0);  // the credit of the send queue above bounds what is under way
  // With a limit libzmq would stop reading, and acknowledgements would wait behind pushes.
  set(ZMQ_RCVHWM, 0);
  // Off by default in libzmq. IPv4 keeps working, under mapped addresses (without_mapping).
  set(ZMQ_IPV6, 1);
  // Streams have no heartbeats, and a NAT or firewall on the way may forget a connection that is idle for
  // minutes.
  set(ZMQ_TCP_KEEPALIVE, 1);
  set(ZMQ_TCP_KEEPALIVE_IDLE, 30);  // seconds
  set(ZMQ_BACKLOG, kBacklog);
  set(ZMQ_HANDSHAKE_IVL, kHandshakeMilliseconds);
  const uid_t user = geteuid();  // local sockets: whom the kernel calls another user is not taken
  if (zmq_setsockopt(socket_, ZMQ_IPC_FILTER_UID, &user, sizeof(user)) != 0) throw_zmq("zmq: socket option");
  set_max_part_bytes(max_part_bytes);
}

std::optional<std::uint64_t> ZmqSocket::max_part_bytes() const {
  std::int64_t limit = -1;
  std::size_t length = sizeof(limit);
  if (zmq_getsockopt(socket_, ZMQ_MAXMSGSIZE, &limit, &length) != 0) throw_zmq("zmq: socket option");
  return limit < 0 ? std::nullopt : std::optional(static_cast<std::uint64_t>(limit));
}

void ZmqSocket::set_max_part_bytes(std::uint64_t bytes) {
  const auto limit = static_cast<std::int64_t>(bytes);  // kNoLimit is libzmq's -1
  if (zmq_setsockopt(socket_, ZMQ_MAXMSGSIZE, &limit, sizeof(limit)) != 0) throw_zmq("zmq: socket option");
}

ZmqSocket::~ZmqSocket() {
  // Null after a move, or after close().
  if (socket_ != nullptr) zmq_close(socket_);
  remove_files();
}

void ZmqSocket::close() noexcept {
  // A linger time that was set for last words does not hold here: what is unsent is for a peer that is dead.
  const int linger = 0;
  zmq_setsockopt(socket_, ZMQ_LINGER, &linger, sizeof(linger));
  zmq_close(std::exchange(socket_, nullptr));
  remove_files();
}

void ZmqSocket::remove_files() noexcept {
  // libzmq removes only the files whose names it has made itself.
  for (const std::string& file : files_) unlink(file.c_str());
  files_.clear();
}

ZmqSocket::ZmqSocket(ZmqSocket&& other) noexcept
    : socket_(std::exchange(other.socket_, nullptr)), files_(std::exchange(other.files_, {})) {}

void ZmqSocket::set(int option, int value) {
  if (zmq_setsockopt(socket_, option, &value, sizeof(value)) != 0) throw_zmq("zmq: socket option");
}

void ZmqSocket::set(int option, const std::string& value) {
  if (zmq_setsockopt(socket_, option, value.data(), value.size()) != 0) throw_zmq("zmq: socket option");
}

// libzmq 4.3.4 asserts that it can hand on what such a peer calls itself (zmtp_engine.cpp,
// process_routing_id_msg). It refuses these peers where a socket has a domain, of which it asks nobody where
// no handler is.
void ZmqSocket::refuse_old_protocols() { set(ZMQ_ZAP_DOMAIN, std::string("gradwire")); }

std::string ZmqSocket::bind(const std::string& endpoint) {
  if (zmq_bind(socket_, endpoint.c_str()) != 0) throw_zmq("zmq: cannot listen on " + endpoint);
  std::array<char, 256> last{};
  std::size_t length = last.size();
  // The endpoint as asked for may say port 0 or *; only libzmq knows which one the system gave.
  if (zmq_getsockopt(socket_, ZMQ_LAST_ENDPOINT, last.data(), &length) != 0)
    throw_zmq("zmq: endpoint in use");
  constexpr std::string_view kFile = "ipc://";  // ipc://@ has none
  if (endpoint.starts_with(kFile) && endpoint[kFile.size()] != '@')
    files_.push_back(endpoint.substr(kFile.size()));
  return without_mapping(last.data());
}

void ZmqSocket::connect(const std::string& endpoint) {
  if (zmq_connect(socket_, endpoint.c_str()) != 0) throw_zmq("zmq: cannot connect to " + endpoint);
}

void ZmqSocket::connect_again(const std::string& endpoint) {
  // Without this a DEALER would have two connections to the endpoint, and spread its messages over both.
  if (zmq_disconnect(socket_, endpoint.c_str()) != 0 && zmq_errno() != ENOENT)  // else it has ended by itself
    throw_zmq("zmq: cannot disconnect from " + endpoint);
  connect(endpoint);
}

bool ZmqSocket::send_part(ZmqMessage& part, int flags) {
  while (zmq_msg_send(part.raw(), socket_, ZMQ_DONTWAIT | flags) < 0) {
    // A signal to the process may be delivered to this thread (signal(7)). The part is still to be sent.
    if (zmq_errno() == EINTR) continue;
    // A ROUTER has no such peer any more, or a DEALER no connection: that is liveness's to judge.
    if (zmq_errno() == EHOSTUNREACH || zmq_errno() == EAGAIN) return false;
    throw_zmq("zmq: send");
  }
  return true;
}

void ZmqSocket::send(Packet packet) {
  // The results are not looked at: if the peer goes between two parts, libzmq drops the rest of the message.
  for (std::size_t i = 0; i < packet.size(); ++i)
    send_part(packet[i], i + 1 < packet.size() ? ZMQ_SNDMORE : 0);
}

bool ZmqSocket::send_to(const std::string& peer, Packet packet) {
  ZmqMessage route(peer);
  // ZMQ_ROUTER_MANDATORY reports a peer that has gone with the first part. The others must not follow then:
  // the next of them would be taken for the routing id of another message.
  if (!send_part(route, ZMQ_SNDMORE)) return false;
  send(std::move(packet));
  return true;
}

bool ZmqSocket::receive(Packet& packet) {
  packet.clear();
  do {
    ZmqMessage part;
    while (zmq_msg_recv(part.raw(), socket_, ZMQ_DONTWAIT) < 0) {
      if (zmq_errno() == EINTR) continue;
      if (zmq_errno() == EAGAIN) return false;  // a message arrives whole: never between two parts
      throw_zmq("zmq: receive");
    }
    packet.push_back(std::move(part));
  } while (packet.back().has_more());
  return true;
}

std::string_view fault_of(const ConnectionEvent& event) {
  switch (event.kind) {
    case ConnectionEvent::Kind::kOtherSecurity:
      return "one side encrypts and the other does not";
    case ConnectionEvent::Kind::kNotAMember:
      return "it has not this job's key";
    case ConnectionEvent::Kind::kBadHandshake:
      return "it does not speak ZMTP";
    // A peer that closes early may be a port scanner, or a node that was stopped: nothing for a person to
    // mend.
    default:
      return "";
  }
}

ConnectionWatch::ConnectionWatch(const ZmqContext& context, const ZmqSocket& watched)
    : watched_(watched), socket_(context, ZMQ_PAIR, kNoLimit) {
  constexpr int kEvents = ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED |
                          ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                          ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
  static std::atomic<std::uint64_t> count{
      0};  // inproc names are per context; this one is free in all of them
  const std::string endpoint = "inproc://connections-" + std::to_string(count++);
  if (zmq_socket_monitor(watched.get(), endpoint.c_str(), kEvents) != 0) throw_zmq("zmq: monitor");
  socket_.connect(endpoint);
}

// libzmq would go on sending events, and frees none that it cannot send.
ConnectionWatch::~ConnectionWatch() { zmq_socket_monitor(watched_.get(), nullptr, 0); }

std::optional<ConnectionEvent> ConnectionWatch::next() {
  using Kind = ConnectionEvent::Kind;
  Packet packet;
  if (!socket_.receive(packet)) return std::nullopt;
  std::uint16_t event = 0;  // the first part: u16 event, u32 value; the second: the endpoint
  std::int32_t value = -1;
  const std::span<const std::byte> bytes = packet[0].bytes();
  // Another layout than that of zmq_socket_monitor(3) is not guessed at.
  if (bytes.size() != sizeof(event) + sizeof(value)) return std::nullopt;
  std::memcpy(&event, bytes.data(), sizeof(event));
  std::memcpy(&value, bytes.data() + sizeof(event), sizeof(value));
  switch (event) {
    case ZMQ_EVENT_ACCEPTED:
      return ConnectionEvent{Kind::kAccepted, value};
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
      return ConnectionEvent{Kind::kOpened};
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
      return ConnectionEvent{Kind::kNotAMember};
    case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
      return ConnectionEvent{Kind::kClosedEarly};
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
      if (value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH) return ConnectionEvent{Kind::kOtherSecurity};
      return ConnectionEvent{value == ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC ? Kind::kNotAMember
                                                                            : Kind::kBadHandshake};
    default:
      return ConnectionEvent{Kind::kDisconnected, value};
  }
}

Wakeup::Wakeup() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (fd_ < 0) throw TransportError(std::string("eventfd: ") + std::strerror(errno) + descriptor_shortage());
}

Wakeup::~Wakeup() { close(fd_); }

void Wakeup::ring() noexcept { eventfd_write(fd_, 1); }

void Wakeup::clear() noexcept {
  eventfd_t rings = 0;
  // Non-blocking: without a ring it fails, and there is nothing to forget. One read takes all rings.
  eventfd_read(fd_, &rings);
}

void poll(std::span<void* const> sockets, const Wakeup& wakeup, std::chrono::milliseconds timeout) {
  std::vector<zmq_pollitem_t> items;
  items.reserve(sockets.size() + 1);
  items.push_back({nullptr, wakeup.fd(), ZMQ_POLLIN, 0});
  for (void* socket : sockets) items.push_back({socket, 0, ZMQ_POLLIN, 0});
  // A beat that is overdue gives a negative time, and -1 would wait for ever. A signal ends the wait early,
  // which only costs a turn of the loop.
  zmq_poll(items.data(), static_cast<int>(items.size()), std::max<long>(0, timeout.count()));
}

Packet pack(std::vector<Frame> frames) {
  Packet packet;
  packet.reserve(frames.size() * 2);
  for (Frame& frame : frames) {
    // Control frames are checked on arrival by the I/O thread, whatever `checksum=` says of payloads.
    if (is_control(frame.header.kind)) frame.payload.seal();
    // The header first: it has the payload's size and checksum, and the next line moves the payload away.
    packet.emplace_back(std::span<const std::byte>(encode_header(frame)));
    packet.emplace_back(std::move(frame.payload));
  }
  return packet;
}

Packet pack(const FrameHeader& header, const std::string& payload) {
  Packet packet;
  packet.emplace_back(std::span<const std::byte>(encode_header(header, std::as_bytes(std::span(payload)))));
  packet.emplace_back(payload);
  return packet;
}

std::vector<Frame> unpack(Packet packet, std::size_t first) {
  const std::size_t parts = packet.size() - first;
  // No parts are refused, too: callers take front() of what is returned.
  if (parts == 0 || parts % 2 != 0) {
    throw FrameError("message: it has " + std::to_string(parts) +
                     " parts, expected header and payload alternately");
  }
  std::vector<Frame> frames;
  frames.reserve(parts / 2);
  for (std::size_t i = first; i < packet.size(); i += 2) {
    const OpenedHeader opened = open_header(packet[i].bytes(), packet[i + 1].bytes().size());
    Frame& frame = frames.emplace_back(Frame{opened.header, std::move(packet[i + 1]).into_buffer()});
    // The sender's seal is kept and not compared: the thread that reads the payload does that (README).
    if (opened.checksum) frame.payload.seal(*opened.checksum);
    if (is_control(opened.header.kind)) require_intact(frame.payload);
  }
  return frames;
}

}  // namespace gradwire::transport
