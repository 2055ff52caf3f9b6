#include "transport/frame.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "transport/checksum.h"

namespace gradwire::transport {
namespace {

static_assert(std::endian::native == std::endian::little, "headers are written as little-endian memory");

// Where each field stands; the table of transport/PROTOCOL.md.
enum Offset : std::size_t {
  kAtMagic = 0,
  kAtVersion = 4,
  kAtKind = 5,
  kAtCodec = 6,
  kAtDtype = 7,
  kAtReply = 8,
  kAtContent = 9,
  kAtReserved16 = 10,
  kAtFlags = 12,
  kAtEpoch = 16,
  kAtSender = 24,
  kAtPriority = 28,
  kAtKey = 32,
  kAtStep = 40,
  kAtOffset = 48,
  kAtCount = 56,
  kAtCodecParameters = 64,
  kAtPayloadBytes = 80,
  kAtPayloadCrc = 88,
  kAtHeaderCrc = 92,
  kAtProgramStep = 96,
  kAtOnBehalf = 100,
  kAtNumber = 104,
};

constexpr std::uint32_t kRankMask = 0x00FFFFFF;

template <typename T>
void store(HeaderBytes& to, Offset at, const T& value) {
  std::memcpy(to.data() + at, &value, sizeof(value));
}

template <typename T>
T load(const HeaderBytes& from, Offset at) {
  T value;
  std::memcpy(&value, from.data() + at, sizeof(value));
  return value;
}

struct KindRange {
  Kind first, last;
};
constexpr std::array kKinds = {KindRange{Kind::kHello, Kind::kWait}, KindRange{Kind::kInit, Kind::kMirrored},
                               KindRange{Kind::kRowInit, Kind::kRowWriteState}};

// Ranges, and not what Kind can hold: a peer may send any byte, and a sink switches over the kinds.
bool is_known(Kind kind) {
  return std::ranges::any_of(
      kKinds, [kind](const KindRange& range) { return kind >= range.first && kind <= range.last; });
}

/// "one of 1-10, 32-53, 60-69"
std::string known_kinds() {
  std::string text;
  for (const auto& [first, last] : kKinds) {
    text += (text.empty() ? "one of " : ", ") + std::to_string(static_cast<int>(first)) + "-" +
            std::to_string(static_cast<int>(last));
  }
  return text;
}

[[noreturn]] void refuse(const char* field, std::uint64_t given, const std::string& expected) {
  throw FrameError("frame: " + std::string(field) + " is " + std::to_string(given) + ", expected " +
                   expected);
}

void require(const char* field, std::uint64_t given, std::uint64_t expected) {
  if (given != expected) refuse(field, given, std::to_string(expected));
}

std::uint32_t packed(Node node) {
  return static_cast<std::uint32_t>(node.role) << 24 | (node.rank & kRankMask);
}

Node load_node(const HeaderBytes& bytes, Offset at, const char* field) {
  const auto value = load<std::uint32_t>(bytes, at);
  const auto role = static_cast<Role>(value >> 24);
  if (role != Role::kScheduler && role != Role::kServer && role != Role::kWorker) {
    refuse(field, value >> 24, "1 (scheduler), 2 (server) or 3 (worker)");
  }
  return {role, value & kRankMask};
}

bool has_checksum(const HeaderBytes& bytes) {
  return (load<std::uint32_t>(bytes, kAtFlags) & kFlagNoChecksum) == 0;
}

// Throws unless these bytes are a header, whole and unchanged.
HeaderBytes load_header(std::span<const std::byte> header) {
  require("header length", header.size(), kHeaderBytes);
  HeaderBytes bytes;
  // Copied, since a received header may begin at any address.
  std::memcpy(bytes.data(), header.data(), kHeaderBytes);
  // Magic and version before the checksum: a stranger, or another version, is named as what it is and not as
  // damage.
  require("magic", load<std::uint32_t>(bytes, kAtMagic), kMagic);
  require("version", load<std::uint8_t>(bytes, kAtVersion), kVersion);
  HeaderBytes unsigned_bytes = bytes;
  store(unsigned_bytes, kAtHeaderCrc, std::uint32_t{0});
  require("header checksum", load<std::uint32_t>(bytes, kAtHeaderCrc), checksum(unsigned_bytes));
  return bytes;
}

// Everything else that must hold before the fields mean anything.
void check(const HeaderBytes& bytes, std::uint64_t payload_bytes) {
  const auto kind = load<Kind>(bytes, kAtKind);
  if (!is_known(kind)) refuse("kind", static_cast<std::uint8_t>(kind), known_kinds());
  // So that a later version can give it a meaning: this one refuses what it would ignore.
  require("reserved field at 10", load<std::uint16_t>(bytes, kAtReserved16), 0);
  require("payload length", load<std::uint64_t>(bytes, kAtPayloadBytes), payload_bytes);
  if (has_checksum(bytes)) return;
  // One way to say it: a number that nobody compares would look like a checksum.
  require("absent payload checksum", load<std::uint32_t>(bytes, kAtPayloadCrc), 0);
  // The I/O thread acts on control frames, and compares no payload without a checksum.
  if (is_control(kind))
    refuse("kind", static_cast<std::uint8_t>(kind), "32 or above without a payload checksum");
}

}  // namespace

std::string to_string(Node node) {
  switch (node.role) {
    case Role::kScheduler:
      return "scheduler";
    case Role::kServer:
      return "server " + std::to_string(node.rank);
    case Role::kWorker:
      return "worker " + std::to_string(node.rank);
  }
  return "role " + std::to_string(static_cast<int>(node.role)) + " rank " + std::to_string(node.rank);
}

HeaderBytes encode_header(const Frame& frame) {
  const FrameHeader& header = frame.header;
  const std::uint64_t payload_bytes = frame.payload.size_bytes();
  // An empty payload has checksum 0, and needs no seal to say so.
  const auto sealed = payload_bytes == 0 ? 0U : frame.payload.checksum();
  HeaderBytes bytes{};
  store(bytes, kAtMagic, kMagic);
  store(bytes, kAtVersion, kVersion);
  store(bytes, kAtKind, header.kind);
  store(bytes, kAtCodec, header.codec);
  store(bytes, kAtDtype, header.dtype);
  store(bytes, kAtReply, header.reply);
  store(bytes, kAtContent, header.content);
  store(bytes, kAtFlags, header.flags | (sealed ? 0U : kFlagNoChecksum));
  store(bytes, kAtEpoch, header.epoch);
  store(bytes, kAtSender, packed(header.sender));
  store(bytes, kAtPriority, header.priority);
  store(bytes, kAtKey, header.key);
  store(bytes, kAtStep, header.step);
  store(bytes, kAtOffset, header.offset);
  store(bytes, kAtCount, header.count);
  store(bytes, kAtCodecParameters, header.codec_parameters);
  store(bytes, kAtOnBehalf, header.on_behalf ? packed(*header.on_behalf) : 0U);
  store(bytes, kAtNumber, header.number);
  store(bytes, kAtProgramStep, header.program_step);
  store(bytes, kAtPayloadBytes, payload_bytes);
  store(bytes, kAtPayloadCrc, sealed.value_or(0));
  // Last, over all other fields; its own is still 0.
  store(bytes, kAtHeaderCrc, checksum(bytes));
  return bytes;
}

HeaderBytes encode_header(const FrameHeader& header, std::span<const std::byte> payload) {
  Frame frame{header, Buffer::borrow(payload)};
  frame.payload.seal();
  return encode_header(frame);
}

std::uint64_t payload_bytes_of(std::span<const std::byte> header) {
  return load<std::uint64_t>(load_header(header), kAtPayloadBytes);
}

OpenedHeader open_header(std::span<const std::byte> header, std::uint64_t payload_bytes) {
  const HeaderBytes bytes = load_header(header);
  check(bytes, payload_bytes);
  OpenedHeader opened;
  if (has_checksum(bytes)) opened.checksum = load<std::uint32_t>(bytes, kAtPayloadCrc);
  FrameHeader& out = opened.header;
  out.kind = load<Kind>(bytes, kAtKind);
  out.codec = load<std::uint8_t>(bytes, kAtCodec);
  out.dtype = load<std::uint8_t>(bytes, kAtDtype);
  out.reply = load<std::uint8_t>(bytes, kAtReply);
  out.content = load<std::uint8_t>(bytes, kAtContent);
  // This flag is about the payload beside it. A header that is passed on must not keep it.
  out.flags = load<std::uint32_t>(bytes, kAtFlags) & ~kFlagNoChecksum;
  out.epoch = load<std::uint64_t>(bytes, kAtEpoch);
  out.sender = load_node(bytes, kAtSender, "sender role");
  out.priority = load<std::int32_t>(bytes, kAtPriority);
  out.key = load<std::uint64_t>(bytes, kAtKey);
  out.step = load<std::uint64_t>(bytes, kAtStep);
  out.offset = load<std::uint64_t>(bytes, kAtOffset);
  out.count = load<std::uint64_t>(bytes, kAtCount);
  out.codec_parameters = load<std::array<std::uint32_t, 4>>(bytes, kAtCodecParameters);
  // No role is 0, so 0 stands for nobody.
  if (load<std::uint32_t>(bytes, kAtOnBehalf) != 0)
    out.on_behalf = load_node(bytes, kAtOnBehalf, "role on whose behalf");
  out.number = load<std::uint64_t>(bytes, kAtNumber);
  out.program_step = load<std::uint32_t>(bytes, kAtProgramStep);
  return opened;
}

FrameHeader decode_header(std::span<const std::byte> header, std::span<const std::byte> payload) {
  const OpenedHeader opened = open_header(header, payload.size());
  Buffer sealed = Buffer::borrow(payload);
  if (opened.checksum) sealed.seal(*opened.checksum);
  require_intact(sealed);
  return opened.header;
}

void require_intact(const Buffer& payload) {
  if (payload.checksum()) require("payload checksum", *payload.checksum(), checksum(payload.bytes()));
}

std::string payload_text(const Frame& frame) {
  const std::span<const std::byte> bytes = frame.payload.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace gradwire::transport
