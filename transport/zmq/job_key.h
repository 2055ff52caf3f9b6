// JobKey makes a process a member of an encrypted job: its holders are admitted, nobody else is.
//
// It is two CURVE key pairs, of which members hold the secret halves. All nodes that listen prove their
// membership with one, all nodes that connect with the other. Neither half of either is ever sent in the
// clear.
//
// Threading: values and pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace gradwire::transport {

inline constexpr std::size_t kCurveKeyBytes = 32;
using CurveKey = std::array<std::byte, kCurveKeyBytes>;

struct CurveKeyPair {
  CurveKey public_key{};
  CurveKey secret_key{};
  bool operator==(const CurveKeyPair&) const = default;
};

/// Whether this libzmq can encrypt: whether it was built with libsodium, or tweetnacl.
bool has_curve();

class JobKey {
 public:
  /// A new one, from the system's random numbers. Throws TransportError where has_curve() is false.
  static JobKey make();
  /// Of text(). Throws std::invalid_argument, which does not repeat the text: it may be all but right.
  static JobKey parse(std::string_view text);

  /// 128 hexadecimal digits: a secret, for the job's members alone.
  std::string text() const;

  const CurveKeyPair& of_listeners() const { return listeners_; }
  const CurveKeyPair& of_connectors() const { return connectors_; }
  bool operator==(const JobKey&) const = default;

 private:
  JobKey(const CurveKeyPair& listeners, const CurveKeyPair& connectors)
      : listeners_(listeners), connectors_(connectors) {}

  CurveKeyPair listeners_, connectors_;
};

}  // namespace gradwire::transport
