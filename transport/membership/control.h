// The texts of control frames (rendezvous, data connections): lines of "key=value". They are part of the
// wire format: transport/PROTOCOL.md.
//
// Threading: values and pure functions. Every parse_*() throws FrameError on malformed text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transport/frame.h"

namespace gradwire::transport {

/// In a header's sender: a node that has no rank yet.
inline constexpr std::uint32_t kNoRank = 0x00FFFFFF;

/// kHello, node -> scheduler.
struct Hello {
  Role role = Role::kWorker;
  std::optional<std::uint32_t> rank;  ///< wanted; none: by order of arrival
  std::uint32_t workers = 0;
  std::uint32_t servers = 0;
  std::string endpoint;  ///< where a server listens; empty for workers
  std::string local;     ///< machine_identity() and where it listens for that machine alone; may be empty
  std::string pair;      ///< the same for a worker and the server that its process hosts; else empty
  std::uint32_t version = kVersion;
  std::string host;
  std::uint64_t pid = 0;
  std::uint32_t replicas = 0;
  /// Where the job continues after deaths: a name that this process alone has, kept through its generations;
  /// else empty.
  std::string member;
  /// Where the job continues after deaths: "NAME=VALUE", settings that all workers must share.
  std::vector<std::string> settings{};
  bool operator==(const Hello&) const = default;
};
std::string to_text(const Hello& hello);
Hello parse_hello(std::string_view text);

/// kRoster, scheduler -> node.
struct Roster {
  std::uint32_t rank = 0;
  std::uint64_t epoch = 0;
  std::uint32_t workers = 0;
  std::uint32_t servers = 0;
  std::vector<std::string> endpoints;  ///< of the servers, in rank order
  std::vector<std::string> locals;     ///< their Hello::local, in rank order; none, or one per server
  std::uint32_t replicas = 0;
  std::uint32_t generation = 1;  ///< of the job, counted from 1
  bool operator==(const Roster&) const = default;
};
std::string to_text(const Roster& roster);
Roster parse_roster(std::string_view text);

/// kHello, worker -> server, the first frame of a data connection.
struct StreamHello {
  std::uint32_t stream = 0;
  std::uint32_t streams = 1;
  bool operator==(const StreamHello&) const = default;
};
std::string to_text(const StreamHello& hello);
StreamHello parse_stream_hello(std::string_view text);

/// kGoodbye, scheduler -> node: the node that has left.
std::string goodbye_text(Node node);
Node parse_goodbye(std::string_view text);
/// kGoodbye of a leaver, and of the scheduler about it: the error that has ended it; empty: it ended
/// normally. One line: control characters become spaces, and text longer than 400 bytes is cut.
std::string error_text(std::string_view error);
std::string parse_error(std::string_view text);

/// kDeparture, scheduler -> node: the server that has died, and the one that serves in its place.
struct Departure {
  std::uint32_t server = 0;
  std::uint32_t mirror = 0;
  bool operator==(const Departure&) const = default;
};
std::string to_text(const Departure& departure);
Departure parse_departure(std::string_view text);

/// kExchangeResult: length (u64) and bytes of each blob, in rank order.
std::string pack_blobs(const std::vector<std::string>& blobs);
std::vector<std::string> parse_blobs(std::string_view bytes);

/// kExchangeResult that is not complete: ranks, u32 each.
std::string pack_ranks(const std::vector<std::uint32_t>& ranks);
std::vector<std::uint32_t> parse_ranks(std::string_view bytes);

/// Header field step of kExchange. Part of the wire format, never renumber.
enum class ExchangeAsk : std::uint64_t { kOffer = 0, kStatus = 1 };
/// Header field step of kExchangeResult. Part of the wire format, never renumber.
enum class ExchangeAnswer : std::uint64_t { kComplete = 0, kWaiting = 1, kDeserted = 2 };

/// What a caller of exchange() waits for, and the answers so far.
struct AwaitedExchange {
  std::optional<std::vector<std::string>> blobs;      ///< complete: in rank order
  std::optional<std::string> deserted;                ///< it cannot be completed any more, and why
  std::optional<std::vector<std::uint32_t>> missing;  ///< the ranks awaited, when last asked

  /// Takes a kExchangeResult. Throws FrameError on a payload that is none.
  void take(ExchangeAnswer answer, std::string_view payload);
};
/// Header field key of kGoodbye. Part of the wire format, never renumber.
enum class GoodbyeStage : std::uint64_t { kLeaving = 0, kAcknowledged = 1 };
/// Header field key of kFailure; a worker's kMembership has its Parting (messenger.h) in step. Part of the
/// wire format, never renumber. kMembership: only this generation has failed; its members come again, and the
/// job goes on.
/// kCalls: the workers' calls do not fit together.
enum class FailureCause : std::uint64_t { kFault = 0, kDeadline = 1, kMembership = 2, kCalls = 3 };

}  // namespace gradwire::transport
