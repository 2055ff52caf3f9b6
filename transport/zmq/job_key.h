// JobKey is what makes a process a member of an encrypted job: whoever holds it is let in, nobody else is.
//
// Two CURVE key pairs, of which members hold the secret halves: one with which all that listen prove that
// they are of the job, one with which all that connect do. Neither half of either is ever sent in the clear.
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
