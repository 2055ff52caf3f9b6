// A peer made of a plain socket and the text of transport/PROTOCOL.md: it speaks ZMTP 3.0 without libzmq, and
// says wrong things on request.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "transport/frame.h"

namespace gradwire::transport {

class RawPeer {
 public:
  /// Connects to "tcp://127.0.0.1:port"; says nothing yet.
  explicit RawPeer(const std::string& endpoint);
  ~RawPeer();
  RawPeer(RawPeer&& other) noexcept;
  RawPeer(const RawPeer&) = delete;
  RawPeer& operator=(const RawPeer&) = delete;

  /// Greeting and READY as a DEALER, up to the peer's READY.
  void handshake();
  void write(std::string_view bytes);
  void write_message(const std::vector<std::string>& parts);
  void write_frame(const FrameHeader& header, const std::string& payload);

  /// The parts of the next message; nothing when the peer closed, or stayed silent for five seconds.
  std::optional<std::vector<std::string>> read_message();
  struct Control {
    FrameHeader header;
    std::string payload;
  };
  /// The next frame that is no heartbeat.
  std::optional<Control> read_control();
  /// All that the peer says until it closes the connection, or is silent for five seconds.
  std::string read_to_the_end();
  /// Whether the peer neither says anything nor closes the connection for so long.
  bool is_silent_for(std::chrono::milliseconds time);
  /// Whether the peer closes the connection within five seconds.
  bool is_closed_by_peer();

 private:
  std::optional<std::string> read_exactly(std::size_t size_bytes);

  int fd_ = -1;
};

inline std::string zmtp_frame(std::uint8_t flags, std::string_view body) {
  std::string bytes;
  if (body.size() < 256) {
    bytes = {static_cast<char>(flags), static_cast<char>(body.size())};
  } else {
    bytes = {static_cast<char>(flags | 2)};
    for (int shift = 56; shift >= 0; shift -= 8) bytes += static_cast<char>(body.size() >> shift & 0xFF);
  }
  return bytes.append(body);
}

inline std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// The greeting and READY of a DEALER.
inline std::string zmtp_greeting() {
  std::string greeting(64, '\0');
  greeting[0] = static_cast<char>(0xFF);
  greeting[9] = 0x7F;
  greeting[10] = 3;
  greeting.replace(12, 4, "NULL");
  return greeting;
}

inline std::string zmtp_ready() {
  using namespace std::string_literals;
  return zmtp_frame(4, "\5READY\x0BSocket-Type\0\0\0\6DEALER"s);
}

inline RawPeer::RawPeer(const std::string& endpoint) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const std::size_t colon = endpoint.rfind(':');
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(endpoint.substr(colon + 1))));
  const timeval patience{5, 0};
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  if (connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    throw std::runtime_error("raw peer: cannot connect to " + endpoint);
  }
}

inline RawPeer::~RawPeer() {
  if (fd_ >= 0) close(fd_);
}

inline RawPeer::RawPeer(RawPeer&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

inline void RawPeer::handshake() {
  write(zmtp_greeting());
  ASSERT_TRUE(read_exactly(64)) << "no greeting";
  write(zmtp_ready());
  const auto head = read_exactly(2);
  ASSERT_TRUE(head && (*head)[0] == 4) << "no READY";
  ASSERT_TRUE(read_exactly(static_cast<std::uint8_t>((*head)[1])));
}

inline void RawPeer::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count <= 0) return;  // the peer has had enough; what it did is judged by what it sent
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

inline void RawPeer::write_message(const std::vector<std::string>& parts) {
  std::string bytes;
  for (std::size_t i = 0; i < parts.size(); ++i) bytes += zmtp_frame(i + 1 < parts.size() ? 1 : 0, parts[i]);
  write(bytes);
}

inline void RawPeer::write_frame(const FrameHeader& header, const std::string& payload) {
  const auto bytes = encode_header(header, std::as_bytes(std::span(payload)));
  write_message({std::string(as_text(bytes)), payload});
}

inline std::optional<std::string> RawPeer::read_exactly(std::size_t size_bytes) {
  std::string bytes(size_bytes, '\0');
  std::size_t have = 0;
  while (have < size_bytes) {
    const ssize_t count = recv(fd_, bytes.data() + have, size_bytes - have, 0);
    if (count <= 0) return std::nullopt;
    have += static_cast<std::size_t>(count);
  }
  return bytes;
}

inline std::optional<std::vector<std::string>> RawPeer::read_message() {
  std::vector<std::string> parts;
  for (;;) {
    const auto flags = read_exactly(1);
    if (!flags) return std::nullopt;
    const auto length = read_exactly((*flags)[0] & 2 ? 8 : 1);
    if (!length) return std::nullopt;
    std::uint64_t size = 0;
    for (const char byte : *length) size = size << 8 | static_cast<std::uint8_t>(byte);
    auto body = read_exactly(size);
    if (!body) return std::nullopt;
    parts.push_back(std::move(*body));
    if (((*flags)[0] & 1) == 0) return parts;
  }
}

inline std::optional<RawPeer::Control> RawPeer::read_control() {
  for (;;) {
    const auto parts = read_message();
    if (!parts || parts->size() != 2) return std::nullopt;
    const FrameHeader header =
        decode_header(std::as_bytes(std::span((*parts)[0])), std::as_bytes(std::span((*parts)[1])));
    if (header.kind != Kind::kHeartbeat) return Control{header, (*parts)[1]};
  }
}

inline std::string RawPeer::read_to_the_end() {
  std::string heard;
  char bytes[4096];
  for (ssize_t count = 0; (count = recv(fd_, bytes, sizeof(bytes), 0)) > 0;)
    heard.append(bytes, static_cast<std::size_t>(count));
  return heard;
}

inline bool RawPeer::is_silent_for(std::chrono::milliseconds time) {
  pollfd watched{fd_, POLLIN, 0};
  return poll(&watched, 1, static_cast<int>(time.count())) == 0;
}

inline bool RawPeer::is_closed_by_peer() {
  char bytes[4096];
  for (;;) {
    const ssize_t count = recv(fd_, bytes, sizeof(bytes), 0);
    if (count == 0) return true;
    if (count < 0) return errno == ECONNRESET;
  }
}

}  // namespace gradwire::transport
