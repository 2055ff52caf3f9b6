// RAII owners for what libzmq and the kernel hand out: context, socket, message, eventfd; and messages as
// frames.
//
// Threading: a ZmqSocket belongs to one thread at a time; ZmqMessages move freely; Wakeup::ring() from any
// thread.
#pragma once

#include <zmq.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/messenger.h"

namespace gradwire::transport {

class ZmqContext {
 public:
  /// Starts libzmq's threads. Throws TransportError, also where the process has too few file descriptors
  /// left.
  ZmqContext();
  /// Blocks until every socket is closed and has flushed, or its linger time has passed.
  ~ZmqContext();
  ZmqContext(const ZmqContext&) = delete;
  ZmqContext& operator=(const ZmqContext&) = delete;
  void* get() const noexcept { return context_; }

 private:
  void* context_ = nullptr;
};

class ZmqMessage {
 public:
  ZmqMessage() noexcept { zmq_msg_init(&message_); }
  /// Sends payload without copying it (small ones are copied); its owner is released once libzmq is done with
  /// it.
  explicit ZmqMessage(Buffer payload);
  explicit ZmqMessage(std::span<const std::byte> bytes);
  explicit ZmqMessage(const std::string& text) : ZmqMessage(std::as_bytes(std::span(text))) {}
  ZmqMessage(ZmqMessage&& other) noexcept;
  ZmqMessage& operator=(ZmqMessage&& other) noexcept;
  ~ZmqMessage() { zmq_msg_close(&message_); }

  std::span<std::byte> bytes() const noexcept;
  std::string text() const;
  bool has_more() const noexcept { return zmq_msg_more(&message_) != 0; }
  /// The file descriptor of the connection on which the message came; -1 where that is not known.
  int source_fd() const noexcept { return zmq_msg_get(&message_, ZMQ_SRCFD); }
  /// Keeps the kernel from taking more of what is sent on that connection than it can soon put on the wire:
  /// what it has taken, nothing urgent overtakes. Where the system has a limit, or the connection is local,
  /// it changes nothing.
  void bound_unsent() const noexcept;
  /// Whether it came over a local socket from a process of this user: the kernel vouches for bytes and
  /// sender.
  bool came_locally() const noexcept;
  /// The peer's network address, for people.
  std::string peer_address() const;
  /// Keeps the received bytes where they are, or copies them where they do not begin at a multiple of 8.
  Buffer into_buffer() &&;

  zmq_msg_t* raw() noexcept { return &message_; }

 private:
  mutable zmq_msg_t message_;
};

/// The parts of one ZeroMQ message.
using Packet = std::vector<ZmqMessage>;

inline constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};

class ZmqSocket {
 public:
  /// A part that says it is longer ends its connection before any memory is taken for it.
  ZmqSocket(const ZmqContext& context, int type, std::uint64_t max_part_bytes);
  ~ZmqSocket();
  ZmqSocket(ZmqSocket&& other) noexcept;
  ZmqSocket(const ZmqSocket&) = delete;
  ZmqSocket& operator=(const ZmqSocket&) = delete;

  void set(int option, int value);
  void set(int option, const std::string& value);
  /// Nothing: no limit.
  std::optional<std::uint64_t> max_part_bytes() const;
  /// Of what is bound and connected from here on.
  void set_max_part_bytes(std::uint64_t bytes);
  /// What is bound from here on takes peers of ZMTP 3 alone, which nodes are. One of an older protocol ends
  /// the process if its first bytes come while the socket closes. Requires a context without
  /// ZapAuthenticator.
  void refuse_old_protocols();
  void set_linger(std::chrono::milliseconds time) { set(ZMQ_LINGER, static_cast<int>(time.count())); }
  /// Throws TransportError naming the endpoint. Returns the endpoint in use, its port filled in.
  std::string bind(const std::string& endpoint);
  void connect(const std::string& endpoint);
  /// Connects anew where it was connected before; what was to be sent there is let go of.
  void connect_again(const std::string& endpoint);

  void send(Packet packet);
  /// Of a ROUTER. Returns false when it has no such peer (any more).
  bool send_to(const std::string& peer, Packet packet);
  /// Takes one message if one is waiting.
  bool receive(Packet& packet);
  /// Lets go of what was to be sent, and of the connection. Requires that nothing is called afterwards.
  void close() noexcept;
  void* get() const noexcept { return socket_; }

 private:
  bool send_part(ZmqMessage& part, int flags);
  void remove_files() noexcept;

  void* socket_;
  std::vector<std::string> files_;  // local sockets that are bound, which libzmq leaves behind
};

/// What became of a connection.
struct ConnectionEvent {
  enum class Kind : std::uint8_t {
    kDisconnected,
    kAccepted,       ///< the other side has connected, and said nothing yet
    kOpened,         ///< the handshake is done
    kClosedEarly,    ///< closed by the other side, or left idle, before the handshake was done
    kOtherSecurity,  ///< one side encrypts and the other does not
    kNotAMember,     ///< the other side has not this job's key
    kBadHandshake,   ///< it does not speak ZMTP as it should
  };
  Kind kind = Kind::kDisconnected;
  int fd = -1;  ///< of kDisconnected and kAccepted
};
/// What is wrong with a handshake, for people; nothing where nothing is, or there is no telling.
std::string_view fault_of(const ConnectionEvent& event);

/// Watches a socket's connections. Requires that the socket is there for as long.
class ConnectionWatch {
 public:
  ConnectionWatch(const ZmqContext& context, const ZmqSocket& watched);
  ~ConnectionWatch();
  ConnectionWatch(const ConnectionWatch&) = delete;
  ConnectionWatch& operator=(const ConnectionWatch&) = delete;
  std::optional<ConnectionEvent> next();
  void* get() const noexcept { return socket_.get(); }

 private:
  const ZmqSocket& watched_;
  ZmqSocket socket_;
};

/// Ends another thread's poll.
class Wakeup {
 public:
  Wakeup();
  ~Wakeup();
  Wakeup(const Wakeup&) = delete;
  Wakeup& operator=(const Wakeup&) = delete;
  void ring() noexcept;
  /// Forgets the rings so far.
  void clear() noexcept;
  int fd() const noexcept { return fd_; }

 private:
  int fd_;
};

/// Waits until one of the sockets or the wake-up has something, for at most timeout.
void poll(std::span<void* const> sockets, const Wakeup& wakeup, std::chrono::milliseconds timeout);

/// Turns frames into a message: header, payload, header, payload, ... Payloads have the checksums they are
/// sealed with.
Packet pack(std::vector<Frame> frames);
Packet pack(const FrameHeader& header, const std::string& payload);
/// Turns the parts of a message from first on back into frames as frame.h describes them. Throws FrameError.
std::vector<Frame> unpack(Packet packet, std::size_t first);

}  // namespace gradwire::transport
