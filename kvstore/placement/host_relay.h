// HostRelay forwards the sums of a host's Server to the main job, and the answers back. The leader of a host
// has one.
//
// Threading: take() on the Server's threads, answers on the uplink's; the rest from anywhere.
// Lifetime: outlives the Server; dies after the uplink, whose threads may write to sums that have failed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kvstore/client/round_thread.h"
#include "kvstore/server/server.h"
#include "kvstore/wire/key.h"

namespace gradwire::kvstore {

class HostRelay {
 public:
  /// Answers go to server, sums to uplink, from now on until stop().
  void start(Server& server, RoundThread& uplink);
  /// What comes later is dropped. Returns once nobody is using either.
  void stop();

  /// Names the uplink's key for a partition of the Server.
  void add_key(KeyId key, std::uint64_t offset, KeyId upstream);
  /// Pushes a round's sum.
  void take(transport::Frame sum);

 private:
  struct Round {
    transport::Frame frame;  ///< the sum, and in the same memory the answer
    Ticket done;
  };
  void answer(const std::shared_ptr<Round>& round, const std::exception_ptr& error);

  std::mutex mutex_;  ///< guards what follows
  Server* server_ = nullptr;
  RoundThread* uplink_ = nullptr;
  std::map<std::pair<KeyId, std::uint64_t>, KeyId> upstream_;
  std::vector<std::shared_ptr<Round>> failed_;  ///< kept: jobs of the uplink may still be at it
};

}  // namespace gradwire::kvstore
