#include "kvstore/collectives/blob_client.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "kvstore/wire/protocol.h"

namespace gradwire::kvstore {

using transport::Buffer;
using transport::Frame;
using transport::FrameHeader;
using transport::Kind;

namespace {

/// With dedicated servers, runs of this many bytes take turns among them.
constexpr unsigned kTurnBits = 20;
/// A blob is one request.
constexpr std::uint64_t kOnly = 0;

}  // namespace

BlobClient::BlobClient(const transport::Messenger& messenger, std::shared_ptr<Loop> loop, Outbox& outbox,
                       PendingRequests& pending, const PendingRequests::Patience& patience, Fail fail)
    : self_(messenger.self()),
      workers_(messenger.world().workers),
      servers_(messenger.world().servers),
      hosts_server_(messenger.local_peer().has_value()),
      patience_(patience),
      loop_(std::move(loop)),
      outbox_(outbox),
      pending_(pending),
      fail_(std::move(fail)) {}

Ticket BlobClient::post(const char* what, const BlobId& id, const Readers& readers,
                        std::span<const std::byte> bytes) {
  Ticket done;
  loop_->post([this, what, id, readers, bytes, done] {
    if (failure_) return done.fail(failure_);
    // Read no more: acknowledged by all, and let go by a server of this process and by the sockets.
    auto released = [loop = loop_, done] { loop->post([done] { done.succeed(); }); };
    const auto now = PendingRequests::Clock::now();
    const auto pending = pending_.begin([what] { return fmt::format("{} has", what); }, now, true);
    posts_[id] = {what, done, header_of(Kind::kPost, id, bytes.size(), readers),
                  Buffer::borrow(bytes, std::move(released)), pending};
    const auto ask = [this, id] { send(posts_.at(id).header, posts_.at(id).bytes.share()); };
    pending_.add(pending, kOnly, {server_of(id), patience_, ask, workers_of(readers)}, now);
    ask();
  });
  return done;
}

Ticket BlobClient::fetch(const char* what, const BlobId& id, std::span<std::byte> into) {
  Ticket done;
  loop_->post([this, what, id, into, done] {
    if (failure_) return done.fail(failure_);
    const auto now = PendingRequests::Clock::now();
    const auto pending = pending_.begin([what] { return fmt::format("{} has", what); }, now);
    fetches_[id] = {what, done, into, pending};
    const auto ask = [this, id, size = into.size()] { send(header_of(Kind::kFetch, id, size), {}); };
    pending_.add(pending, kOnly, {server_of(id), patience_, ask, {id.poster}}, now);
    ask();
  });
  return done;
}

/// Where a blob lies. A worker's own server hands its blobs out without a hop on the wire.
std::uint32_t BlobClient::server_of(const BlobId& id) const {
  if (hosts_server_) return id.poster;
  return static_cast<std::uint32_t>((id.poster + (id.offset >> kTurnBits)) % servers_);
}

/// Which of them has a blob by now is known to its server alone.
std::vector<std::uint32_t> BlobClient::workers_of(const Readers& readers) const {
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t rank = 0; rank < workers_; ++rank) {
    const bool reads = readers.only == kNobody ? rank != readers.except : rank == readers.only;
    if (reads && rank != self_.rank) ranks.push_back(rank);
  }
  return ranks;
}

void BlobClient::send(const FrameHeader& header, Buffer bytes) {
  outbox_.add(server_of(blob_id_of(header)), {header, std::move(bytes)});
}

/// What arrives damaged counts as lost.
void BlobClient::handle(const Frame& frame) {
  if (frame.header.kind == Kind::kBlob) return on_blob(frame);
  if (frame.header.kind == Kind::kDelivered) return on_delivered(blob_id_of(frame.header));
  on_refusal(frame);
}

void BlobClient::on_blob(const Frame& frame) {
  const BlobId id = blob_id_of(frame.header);
  // No receipt: the fetch is repeated, and the server sends the blob again.
  if (id.poster >= workers_ || !frame.payload.is_intact()) return;
  if (const auto found = fetches_.find(id); found != fetches_.end()) {
    const auto& [what, done, into, pending] = found->second;
    if (frame.payload.size_bytes() != into.size()) {
      return fail_(std::make_exception_ptr(
          transport::TransportError(fmt::format("{}: worker {} sent {} bytes, {} were expected", what,
                                                id.poster, frame.payload.size_bytes(), into.size()))));
    }
    std::memcpy(into.data(), frame.payload.bytes().data(), into.size());
    // `done` refers into the entry that is erased.
    const Ticket fetched = done;
    pending_.end(pending);
    fetches_.erase(found);
    fetched.succeed();
  }
  send(header_of(Kind::kReceipt, id, frame.header.count), {});  // of one that came twice, too
}

void BlobClient::on_delivered(const BlobId& id) {
  const auto found = posts_.find(id);
  if (found == posts_.end()) return;
  pending_.end(found->second.pending);
  // This lets the bytes go. The ticket is done once the sockets, and a server of this process, have let them
  // go too.
  posts_.erase(found);
}

/// Matters to those that wait; a repeated request may be refused after its first was answered.
void BlobClient::on_refusal(const Frame& frame) {
  const BlobId id = blob_id_of(frame.header);
  const auto post = posts_.find(id);
  const auto fetch = fetches_.find(id);
  if ((post == posts_.end() && fetch == fetches_.end()) || !frame.payload.is_intact()) return;
  const char* what = post != posts_.end() ? post->second.what : fetch->second.what;
  fail_(std::make_exception_ptr(transport::TransportError(fmt::format("{}: {}", what, payload_text(frame)))));
}

void BlobClient::fail_all(const std::exception_ptr& error) {
  failure_ = error;
  // The bytes of a post may still be in a socket. Their owner keeps them until the threads have ended.
  for (auto& [id, post] : posts_) {
    pending_.end(post.pending);
    post.done.fail(error);
  }
  for (auto& [id, fetch] : fetches_) {
    pending_.end(fetch.pending);
    fetch.done.fail(error);
  }
  posts_.clear();
  fetches_.clear();
}

}  // namespace gradwire::kvstore
