#include "transport/zmq/curve.h"

#include <algorithm>

namespace gradwire::transport {
namespace {

const std::string kDomain = "gradwire";
constexpr int kEnforceDomain =
    93;  // ZMQ_ZAP_ENFORCE_DOMAIN; libzmq 4.3 has it, its header shows it to drafts
const std::string kZapVersion = "1.0";  // of ZAP
constexpr std::uint64_t kBoxBytes =
    33;  // what CurveZMQ adds to a frame: command name, nonce, authenticator, flags

std::string text_of(const CurveKey& key) { return {reinterpret_cast<const char*>(key.data()), key.size()}; }

/// The limit on frames is of what is in the box.
void make_room_for_the_box(ZmqSocket& socket) {
  // ZMQ_MAXMSGSIZE is compared with what comes over the wire, and that is the frame in its box.
  const auto limit = socket.max_part_bytes();
  // No limit stays none.
  if (limit) socket.set_max_part_bytes(*limit + kBoxBytes);
}

}  // namespace

void show_membership(ZmqSocket& socket, const JobKey& key) {
  socket.set(ZMQ_CURVE_SERVERKEY, text_of(key.of_listeners().public_key));
  socket.set(ZMQ_CURVE_PUBLICKEY, text_of(key.of_connectors().public_key));
  socket.set(ZMQ_CURVE_SECRETKEY, text_of(key.of_connectors().secret_key));
  make_room_for_the_box(socket);
}

ZapAuthenticator::ZapAuthenticator(const ZmqContext& context, const JobKey& key)
    : socket_(context, ZMQ_REP, kNoLimit), key_(key) {
  // The name is ZAP's (ZeroMQ RFC 27): libzmq looks for a handler there, in the same context.
  socket_.bind("inproc://zeromq.zap.01");
}

void ZapAuthenticator::guard(ZmqSocket& socket) const {
  socket.set(ZMQ_CURVE_SERVER, 1);
  socket.set(ZMQ_CURVE_SECRETKEY, text_of(key_.of_listeners().secret_key));
  socket.set(ZMQ_ZAP_DOMAIN, kDomain);
  socket.set(kEnforceDomain, 1);  // where nobody answers any more, nobody is let in
  make_room_for_the_box(socket);
}

// Request: version, id, domain, address, identity, mechanism, credentials. Answer: version, id, status, text,
// user, metadata.
void ZapAuthenticator::answer() {
  constexpr std::size_t kId = 1, kMechanism = 5, kCredentials = 6;
  Packet request;
  while (socket_.receive(request)) {
    // CURVE itself lets in anybody who knows the listeners' public key. Only the connectors' key makes a
    // member.
    const bool is_member = request.size() == kCredentials + 1 && request[kMechanism].text() == "CURVE" &&
                           std::ranges::equal(request[kCredentials].bytes(), key_.of_connectors().public_key);
    Packet answer;
    // Also a malformed request gets an answer: a REP socket takes no other request before.
    for (const std::string& part :
         {kZapVersion, request.size() > kId ? request[kId].text() : std::string(),
          std::string(is_member ? "200" : "400"), std::string(is_member ? "" : "no member of this job"),
          std::string(), std::string()})
      answer.emplace_back(part);
    socket_.send(std::move(answer));
  }
}

}  // namespace gradwire::transport
