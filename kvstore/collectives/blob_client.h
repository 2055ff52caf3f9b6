// BlobClient is a worker's end of the servers' blobs: it posts blobs,
// fetches others' and acknowledges them.
//
// Threading: post() and fetch() from any thread, they only hand over; the rest inside the Loop.
// Lifetime: bytes of a post stay alive and unchanged until its ticket is done, or, when it failed, until the
// servers' and the Messenger's threads have ended. Bytes to fetch into: until the ticket is done or failed.
// Failure: `fail` gets what a server refuses, and ends the Engine.
#pragma once

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvstore/collectives/blob.h"
#include "kvstore/runtime/loop.h"
#include "kvstore/runtime/outbox.h"
#include "kvstore/runtime/pending_requests.h"
#include "kvstore/runtime/ticket.h"
#include "transport/messenger.h"

namespace gradwire::kvstore {

class BlobClient {
 public:
  using Fail = std::function<void(std::exception_ptr)>;

  BlobClient(const transport::Messenger& messenger, std::shared_ptr<Loop> loop, Outbox& outbox,
             PendingRequests& pending, const PendingRequests::Patience& patience, Fail fail);

  /// Gives this worker's blob to its readers. Done when all have it and `bytes` is no longer read. `what`
  /// names the operation for people ("all_reduce"). Requires at least one byte and one reader.
  Ticket post(const char* what, const BlobId& id, const Readers& readers, std::span<const std::byte> bytes);
  /// Receives another worker's blob. Requires into to have its size.
  Ticket fetch(const char* what, const BlobId& id, std::span<std::byte> into);

  /// Takes a server's frame about a blob.
  void handle(const transport::Frame& frame);
  void fail_all(const std::exception_ptr& error);

 private:
  struct Post {
    const char* what = "";
    Ticket done;
    transport::FrameHeader header;
    transport::Buffer bytes;
    PendingRequests::Handle pending;
  };
  struct Fetch {
    const char* what = "";
    Ticket done;
    std::span<std::byte> into;
    PendingRequests::Handle pending;
  };
  std::uint32_t server_of(const BlobId& id) const;
  std::vector<std::uint32_t> workers_of(const Readers& readers) const;
  void send(const transport::FrameHeader& header, transport::Buffer bytes);
  void on_blob(const transport::Frame& frame);
  void on_delivered(const BlobId& id);
  void on_refusal(const transport::Frame& frame);

  const transport::Node self_;
  const std::uint32_t workers_;
  const std::uint32_t servers_;
  const bool hosts_server_;  ///< every worker has a server, and posts to its own
  const PendingRequests::Patience patience_;
  std::shared_ptr<Loop> loop_;  // owners: the client's owner, and the bytes of blobs in flight
  Outbox& outbox_;
  PendingRequests& pending_;
  Fail fail_;
  std::map<BlobId, Post> posts_;
  std::map<BlobId, Fetch> fetches_;
  std::exception_ptr failure_;
};

}  // namespace gradwire::kvstore
