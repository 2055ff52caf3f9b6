// Failover is the map of servers that have left or died, and of the mirrors that serve in place of dead
// ones. RoundThread::replace_server() fills it and requests from the mirror what the dead server had not
// answered. Keys keep the server that they live at: only the route changes, so no other code that knows
// servers by rank has to know.
//
// Threading: one owner; replaced() from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "transport/messenger.h"

namespace gradwire::kvstore {

class Failover {
 public:
  /// role: what a server is to people. Where every worker hosts one, it is that worker.
  explicit Failover(transport::Role role) : role_(role) {}

  /// A server has left; error: what has ended it, if an error has.
  void leave(std::uint32_t server, const std::string& error) { left_.emplace(server, error); }
  bool has_left(std::uint32_t server) const { return left_.contains(server); }

  /// mirror serves in the place of server, which has died. Returns false where that is known.
  bool replace(std::uint32_t server, std::uint32_t mirror);
  /// The servers in whose place this one serves.
  std::vector<std::uint32_t> served_by(std::uint32_t mirror) const;
  /// All replaced servers, each with its mirror.
  std::map<std::uint32_t, std::uint32_t> replaced() const;

  /// On whose behalf a frame speaks. A mirror speaks for the server that it replaces, and nobody else may. A
  /// dead server's own last frames count for nothing: its mirror has been asked for all that was awaited.
  std::optional<transport::Node> speaker_of(transport::Node from, const transport::FrameHeader& header) const;

  /// "server 2"
  std::string name(std::uint32_t server) const { return transport::to_string({role_, server}); }
  /// "server 2 left the job while this worker still needs it", or by which error it has ended.
  std::string describe(std::uint32_t server) const;

 private:
  const transport::Role role_;
  std::map<std::uint32_t, std::string> left_;  ///< and the errors that ended them, if errors did
  mutable std::mutex mutex_;                   ///< guards writes of what follows, and reads by others
  std::map<std::uint32_t, std::uint32_t> replaced_;
};

}  // namespace gradwire::kvstore
