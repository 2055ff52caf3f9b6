// A TCP relay between a node and what it connects to: a link that can be down for a moment.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace gradwire::transport {

class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

/// Hands on what comes between whoever connects and "tcp://127.0.0.1:port". Threading: one of its own.
class Relay {
 public:
  explicit Relay(const std::string& to) : to_(address_of(std::stoi(to.substr(to.rfind(':') + 1)))) {
    sockaddr_in own = address_of(0);
    socklen_t size = sizeof(own);
    if (bind(listener_.get(), reinterpret_cast<sockaddr*>(&own), size) != 0 ||
        listen(listener_.get(), 16) != 0 ||
        getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0)
      throw std::runtime_error("relay: cannot listen");
    endpoint_ = "tcp://127.0.0.1:" + std::to_string(ntohs(own.sin_port));
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }

  const std::string& endpoint() const { return endpoint_; }
  /// Closes all connections, and each new one at once, until it is up again.
  void set_up(bool up) {
    up_ = up;
    while (!up && open_ > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  struct Pair {
    Socket near, far;
  };

  static sockaddr_in address_of(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    return address;
  }
  static Socket new_socket() { return Socket(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

  void run(const std::stop_token& stop) {
    std::vector<Pair> pairs;
    while (!stop.stop_requested()) {
      if (!up_) pairs.clear();
      open_ = static_cast<int>(pairs.size());
      std::vector<pollfd> waiting{{listener_.get(), POLLIN, 0}};
      for (const Pair& pair : pairs) {
        waiting.push_back({pair.near.get(), POLLIN, 0});
        waiting.push_back({pair.far.get(), POLLIN, 0});
      }
      poll(waiting.data(), waiting.size(), 5);
      if (waiting[0].revents != 0) let_in(pairs);
      for (std::size_t i = 1; i + 1 < waiting.size(); i += 2) {
        Pair& pair = pairs[(i - 1) / 2];
        const bool lives = (waiting[i].revents == 0 || hand_on(pair.near, pair.far)) &&
                           (waiting[i + 1].revents == 0 || hand_on(pair.far, pair.near));
        if (!lives) pair = Pair();
      }
      std::erase_if(pairs, [](const Pair& pair) { return pair.near.get() < 0; });
    }
  }

  void let_in(std::vector<Pair>& pairs) {
    Socket near(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    Socket far = new_socket();
    if (!up_ || connect(far.get(), reinterpret_cast<const sockaddr*>(&to_), sizeof(to_)) != 0) return;
    pairs.push_back({std::move(near), std::move(far)});
  }

  static bool hand_on(const Socket& from, const Socket& to) {
    std::array<char, 65536> bytes{};
    const ssize_t count = recv(from.get(), bytes.data(), bytes.size(), 0);
    return count > 0 && send(to.get(), bytes.data(), static_cast<std::size_t>(count), MSG_NOSIGNAL) == count;
  }

  const sockaddr_in to_;
  const Socket listener_ = new_socket();
  std::string endpoint_;
  std::atomic<bool> up_{true};
  std::atomic<int> open_{0};
  std::jthread thread_;  // last: joined before the rest dies
};

}  // namespace gradwire::transport
