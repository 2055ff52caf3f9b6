#include "transport/zmq/job_key.h"

#include <zmq.h>

#include <stdexcept>

#include "transport/messenger.h"

namespace gradwire::transport {
namespace {

constexpr std::size_t kZ85Chars = kCurveKeyBytes / 4 * 5 + 1;  // with the NUL that ends it
constexpr std::size_t kHexChars = kCurveKeyBytes * 2;
constexpr std::string_view kDigits = "0123456789abcdef";
using Z85 = std::array<char, kZ85Chars>;

CurveKey from_z85(const Z85& text) {
  CurveKey key;
  // libzmq's functions take keys in Z85, which has characters that shells interpret. So people get
  // hexadecimal digits.
  if (zmq_z85_decode(reinterpret_cast<std::uint8_t*>(key.data()), text.data()) == nullptr)
    throw TransportError("job key: libzmq made a key that it cannot read");
  return key;
}

void require_curve() {
  if (!has_curve())
    throw TransportError(
        "job key: this libzmq was built without CURVE and cannot encrypt; expected one with libsodium "
        "(Debian's libzmq5 has it), or a job without encryption");
}

CurveKeyPair make_pair() {
  Z85 public_key, secret_key;
  if (zmq_curve_keypair(public_key.data(), secret_key.data()) != 0)
    throw TransportError(std::string("job key: zmq_curve_keypair: ") + zmq_strerror(zmq_errno()));
  return {from_z85(public_key), from_z85(secret_key)};
}

CurveKeyPair pair_of(const CurveKey& secret) {
  Z85 secret_key, public_key;
  zmq_z85_encode(secret_key.data(), reinterpret_cast<const std::uint8_t*>(secret.data()), secret.size());
  if (zmq_curve_public(public_key.data(), secret_key.data()) != 0)
    throw TransportError(std::string("job key: zmq_curve_public: ") + zmq_strerror(zmq_errno()));
  return {from_z85(public_key), secret};
}

std::string to_hex(const CurveKey& key) {
  std::string text;
  for (const std::byte byte : key) {
    text += kDigits[std::to_integer<std::size_t>(byte >> 4)];
    text += kDigits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

std::size_t digit(char c) {
  const char lower = c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
  return kDigits.find(lower);
}

CurveKey from_hex(std::string_view text) {
  CurveKey key;
  for (std::size_t i = 0; i < key.size(); ++i)
    key[i] = static_cast<std::byte>(digit(text[2 * i]) << 4 | digit(text[2 * i + 1]));
  return key;
}

}  // namespace

bool has_curve() { return zmq_has("curve") != 0; }

JobKey JobKey::make() {
  require_curve();
  return {make_pair(), make_pair()};
}

JobKey JobKey::parse(std::string_view text) {
  bool is_hex = text.size() == 2 * kHexChars;
  // All digits are looked at, and the error names the length only: the text may be a key with one wrong
  // digit.
  for (const char c : text) is_hex = is_hex && digit(c) != std::string_view::npos;
  if (!is_hex)
    throw std::invalid_argument("job key: " + std::to_string(text.size()) +
                                " characters that are no key; expected 128 hexadecimal digits, as `gradwire "
                                "key` prints them");
  require_curve();
  // Public keys are computed and not part of the text, so the two cannot disagree.
  return {pair_of(from_hex(text.substr(0, kHexChars))), pair_of(from_hex(text.substr(kHexChars)))};
}

std::string JobKey::text() const { return to_hex(listeners_.secret_key) + to_hex(connectors_.secret_key); }

}  // namespace gradwire::transport
