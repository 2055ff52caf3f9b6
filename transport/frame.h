// Frame is what travels between two ranks: a fixed header of kHeaderBytes bytes, little endian, and a
// payload. The byte layout, with a worked example, is transport/PROTOCOL.md.
//
// Threading: values and pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

#include "transport/buffer.h"

namespace gradwire::transport {

inline constexpr std::uint32_t kMagic = 0x31575247;  // "GRW1"
inline constexpr std::uint8_t kVersion = 1;
inline constexpr std::size_t kHeaderBytes = 112;

/// Part of the wire format, never renumber.
enum class Role : std::uint8_t { kScheduler = 1, kServer = 2, kWorker = 3 };

/// A worker, a server or the scheduler of a job; a process may host a worker and a server. Part of the wire
/// format as role << 24 | rank.
struct Node {
  Role role = Role::kWorker;
  std::uint32_t rank = 0;
  auto operator<=>(const Node&) const = default;
};

/// "worker 3", "scheduler"
std::string to_string(Node node);

/// What a frame is for. 1-31 are the transport's own and never reach a Sink. Part of the wire format, never
/// renumber.
enum class Kind : std::uint8_t {
  // control plane (transport/)
  kHello = 1,           ///< node -> scheduler: role, wanted rank, endpoint, job settings
  kRoster = 2,          ///< scheduler -> node: rank, epoch, endpoints of all servers
  kHeartbeat = 3,       ///< both ways, empty
  kExchange = 4,        ///< worker -> scheduler: one blob for a numbered, named exchange
  kExchangeResult = 5,  ///< scheduler -> workers: all blobs in rank order
  kGoodbye =
      6,  ///< node -> scheduler -> servers and workers: this node has left; the error that ended it, or empty
  kFailure = 7,    ///< scheduler -> all, or any node -> scheduler: a named node failed; text
  kReject = 8,     ///< to the sender of a frame that is not acceptable; text
  kDeparture = 9,  ///< scheduler -> all: a server died and its mirror serves in its place; text
  kWait = 10,      ///< worker -> scheduler: what it waits in; back: what of others' it has begun; text
  // data plane (kvstore/)
  kInit = 32,   ///< worker -> server: first value of a key
  kPush = 33,   ///< worker -> server: one contribution to a round; answered by kReply
  kReply = 34,  ///< server -> worker: the answer to a round
  kPull = 35,   ///< worker -> server: send the stored value; answered by kValue
  kValue = 36,  ///< server -> worker: the stored value (kvstore/wire/PROTOCOL.md)
  kProbe = 37,  ///< worker -> server: is my push of this round here? answered by kReply, kHeld or kMissing
  kHeld = 38,   ///< server -> worker: your push is here, others are awaited (payload: their ranks, u32 each)
  kMissing = 39,     ///< server -> worker: send that push again
  kCommand = 40,     ///< worker -> server: text; answered by kAck
  kAck = 41,         ///< server -> worker: the request was carried out
  kError = 42,       ///< server -> worker: the request was refused; text
  kPost = 43,        ///< worker -> server: bytes for other workers to fetch; answered by kDelivered
  kFetch = 44,       ///< worker -> server: send me what that worker posted; answered by kBlob
  kBlob = 45,        ///< server -> worker: those bytes; answered by kReceipt
  kReceipt = 46,     ///< worker -> server: they are here
  kDelivered = 47,   ///< server -> worker: every recipient has what you posted
  kClock = 48,       ///< worker -> server: what time is it there? answered by kTime
  kTime = 49,        ///< server -> worker: it is this
  kReadState = 50,   ///< worker -> server: what do you keep of a partition between rounds? answered by kState
  kState = 51,       ///< server -> worker: that
  kWriteState = 52,  ///< worker -> server: keep that; answered by kAck
  kMirrored = 53,    ///< server -> the server that it mirrors: all requests below this number are here
  kRowInit = 60,     ///< worker -> server: first values of some rows of a table; answered by kRowAck
  kRowPush = 61,     ///< worker -> server: some rows, a contribution to a round; answered by kRowAck
  kRowPull = 62,     ///< worker -> server: what a round made of some rows, or of all; answered by kRowReply
  kRowAck = 63,      ///< server -> worker: it is here
  kRowReply = 64,    ///< server -> worker: rows
  kRowHeld = 65,     ///< server -> worker: that round awaits others (payload: their ranks, u32 each)
  kRowMissing = 66,  ///< server -> worker: the payload did not arrive whole, send it again
  kRowReadState = 67,   ///< worker -> server: what do you keep of a table's rows? answered by kRowState
  kRowState = 68,       ///< server -> worker: that, of some rows
  kRowWriteState = 69,  ///< worker -> server: keep that of some rows; answered by kRowAck
};

/// Whether a frame is the transport's own. Its payload always has a checksum, and is compared with it on
/// arrival.
constexpr bool is_control(Kind kind) { return kind < Kind::kInit; }

/// Part of the wire format, never renumber.
enum Flags : std::uint32_t {
  kFlagNonfinite =
      1u << 0,  ///< a NaN, an infinity or a value beyond the format was found (OR-ed into the reply)
  kFlagNoChecksum = 1u << 1,  ///< the payload has no checksum; transport's own: no FrameHeader holds it
  kFlagSegments = 1u << 2,    ///< (kv) the payload is of several tensors: compress::Segmented
  kFlagLossless = 1u << 3,    ///< (kv) the payload is shortened: compress::lossless::restore
};

/// Every field is on the wire; the meaning of those marked (kv) is kvstore's, transport only carries them.
struct FrameHeader {
  Kind kind = Kind::kHeartbeat;
  std::uint8_t codec = 0;    ///< (kv) compress::WireId
  std::uint8_t dtype = 0;    ///< (kv) element type of the tensor
  std::uint8_t reply = 0;    ///< (kv) compress::ReplyKind asked for, or given
  std::uint8_t content = 0;  ///< (kv) of a reply: sum, weight or weight delta
  std::uint32_t flags = 0;   ///< Flags
  std::uint64_t epoch = 0;   ///< membership epoch of the job; 0 before the roster is known
  Node sender;
  std::uint64_t key = 0;                            ///< (kv) wire key; exchanges: sequence number
  std::uint64_t step = 0;                           ///< (kv) round of the key
  std::uint64_t offset = 0;                         ///< (kv) first element of the partition
  std::uint64_t count = 0;                          ///< (kv) elements in the partition
  std::int32_t priority = 0;                        ///< (kv) higher is sooner
  std::array<std::uint32_t, 4> codec_parameters{};  ///< (kv) exact bits
  /// (kv) Another node that the frame is for. From a server to its mirror: the worker that made the request.
  /// Between a worker and a mirror: the server in whose place the mirror serves. None: the sender or
  /// receiver itself.
  std::optional<Node> on_behalf;
  std::uint64_t number = 0;  ///< (kv) of a request among those that a server passes on to its mirror; else 0
  /// (kv) Of a push: the step of the worker's program, modulo 2^32, that it belongs to, which all workers of
  /// a round must agree on; 0: not given.
  std::uint32_t program_step = 0;
  bool operator==(const FrameHeader&) const = default;
};

/// An arrived frame. Its header was checked. Its payload has the sender's seal, if it came with one, and was
/// not compared with it yet: the reader does that (Buffer::is_intact), in the pass that reads the payload.
struct Frame {
  FrameHeader header;
  Buffer payload;
};

/// A frame's payload as text.
std::string payload_text(const Frame& frame);

/// Bytes from a peer that are no valid frame; the text says which field, what was given and what was
/// expected.
class FrameError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

using HeaderBytes = std::array<std::byte, kHeaderBytes>;

/// Writes the header of a frame: with its payload's checksum where that is sealed, else saying that there is
/// none.
HeaderBytes encode_header(const Frame& frame);
/// Writes the header of (header, payload), both checksums filled in.
HeaderBytes encode_header(const FrameHeader& header, std::span<const std::byte> payload);

struct OpenedHeader {
  FrameHeader header;
  std::optional<std::uint32_t> checksum;  ///< of the payload
};

/// Reads and checks a header alone: magic, version, its checksum, the payload's length. Throws FrameError.
OpenedHeader open_header(std::span<const std::byte> header, std::uint64_t payload_bytes);
/// Compares a payload with its seal, if it has one. Throws FrameError.
void require_intact(const Buffer& payload);
/// Reads how long the payload of a header is, to make room for it. Checks magic, version and header checksum;
/// throws FrameError.
std::uint64_t payload_bytes_of(std::span<const std::byte> header);

/// Both in one.
FrameHeader decode_header(std::span<const std::byte> header, std::span<const std::byte> payload);

}  // namespace gradwire::transport
