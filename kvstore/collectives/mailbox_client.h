// MailboxClient is a worker's end of the servers' mailboxes: it posts letters, fetches others', acknowledges
// them, asks again, and knows who is awaited.
//
// Threading: post() and fetch() from any thread, they only hand over; the rest inside the Loop.
// Lifetime: bytes of a post stay alive and unchanged until its ticket is done, or, when it failed, until the
//   servers' and the Messenger's threads have ended. Bytes to fetch into: until the ticket is done or failed.
// Failure: what a server refuses is told to `fail`, which ends the Engine.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "kvstore/collectives/letter.h"
#include "kvstore/runtime/loop.h"
#include "kvstore/runtime/outbox.h"
#include "kvstore/runtime/ticket.h"
#include "transport/messenger.h"

namespace gradwire::kvstore {

class MailboxClient {
 public:
  using Clock = std::chrono::steady_clock;
  using Fail = std::function<void(std::exception_ptr)>;

  MailboxClient(const transport::Messenger& messenger, std::shared_ptr<Loop> loop, Outbox& outbox,
                std::chrono::milliseconds retry_timeout, Fail fail);

  /// Gives this worker's letter to its readers. Done when all have it and `bytes` is read no more. `what`
  /// names the operation to people ("all_reduce"). Requires at least one byte and one reader.
  Ticket post(const char* what, const LetterId& id, const Readers& readers, std::span<const std::byte> bytes);
  /// Receives another worker's letter. Requires into to have its size.
  Ticket fetch(const char* what, const LetterId& id, std::span<std::byte> into);

  /// Takes what a server sent; returns false when it does not concern a letter.
  bool handle(transport::Node from, const transport::Frame& frame);
  /// Asks again for what has not been answered for retry_timeout.
  void retry(Clock::time_point now);
  /// Asks again for all that this server was asked for.
  void ask_again(std::uint32_t server);
  void fail_all(const std::exception_ptr& error);

  bool idle() const { return posts_.empty() && fetches_.empty(); }
  bool awaits_server(std::uint32_t rank) const;
  /// Letters name their posters and readers.
  static bool awaits_workers() { return true; }
  /// Since when the oldest has waited; Clock::time_point::max() when idle.
  Clock::time_point oldest() const;
  /// "all_gather has waited 60 s for worker 2"
  std::string describe_wait(Clock::time_point now) const;

 private:
  struct Pending {
    const char* what = "";
    Clock::time_point began, asked;
    Ticket done;
  };
  struct Post : Pending {
    transport::FrameHeader header;
    transport::Buffer bytes;
  };
  struct Fetch : Pending {
    std::span<std::byte> into;
  };
  std::uint32_t server_of(const LetterId& id) const;
  void ask(const transport::FrameHeader& header, transport::Buffer bytes);
  void ask(Post& post);
  void ask(const LetterId& id, Fetch& fetch);
  void on_letter(const transport::Frame& frame);
  void on_refusal(const transport::Frame& frame);

  const transport::Node self_;
  const std::uint32_t workers_;
  const std::uint32_t servers_;
  const bool hosts_server_;  ///< every worker has a server, and posts to its own
  const std::chrono::milliseconds retry_timeout_;
  std::shared_ptr<Loop> loop_;  // owners: the client's owner, and the bytes of letters on their way
  Outbox& outbox_;
  Fail fail_;
  std::map<LetterId, Post> posts_;
  std::map<LetterId, Fetch> fetches_;
  std::exception_ptr failure_;
};

}  // namespace gradwire::kvstore
