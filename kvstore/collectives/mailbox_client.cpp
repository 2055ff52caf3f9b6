#include "kvstore/collectives/mailbox_client.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "kvstore/wire/protocol.h"

namespace gradwire::kvstore {

using transport::Buffer;
using transport::Frame;
using transport::FrameHeader;
using transport::Kind;
using transport::Role;

namespace {

/// With dedicated servers, runs of this many bytes take turns among them.
constexpr unsigned kTurnBits = 20;

}  // namespace

MailboxClient::MailboxClient(const transport::Messenger& messenger, std::shared_ptr<Loop> loop,
                             Outbox& outbox, std::chrono::milliseconds retry_timeout, Fail fail)
    : self_(messenger.self()),
      workers_(messenger.world().workers),
      servers_(messenger.world().servers),
      hosts_server_(messenger.local_peer().has_value()),
      retry_timeout_(retry_timeout),
      loop_(std::move(loop)),
      outbox_(outbox),
      fail_(std::move(fail)) {}

Ticket MailboxClient::post(const char* what, const LetterId& id, const Readers& readers,
                           std::span<const std::byte> bytes) {
  Ticket done;
  loop_->post([this, what, id, readers, bytes, done] {
    if (failure_) return done.fail(failure_);
    // Read no more: acknowledged by all, and let go by a server of this process and by the sockets.
    auto released = [loop = loop_, done] { loop->post([done] { done.succeed(); }); };
    Post& post = posts_[id];
    post.what = what;
    post.began = Clock::now();
    post.done = done;
    post.header = header_of(Kind::kPost, id, bytes.size(), readers);
    post.bytes = Buffer::borrow(bytes, std::move(released));
    ask(post);
  });
  return done;
}

Ticket MailboxClient::fetch(const char* what, const LetterId& id, std::span<std::byte> into) {
  Ticket done;
  loop_->post([this, what, id, into, done] {
    if (failure_) return done.fail(failure_);
    Fetch& fetch = fetches_[id];
    fetch.what = what;
    fetch.began = Clock::now();
    fetch.done = done;
    fetch.into = into;
    ask(id, fetch);
  });
  return done;
}

/// Where a letter lies. A worker's own server hands its letters out without a hop on the wire.
std::uint32_t MailboxClient::server_of(const LetterId& id) const {
  if (hosts_server_) return id.poster;
  return static_cast<std::uint32_t>((id.poster + (id.offset >> kTurnBits)) % servers_);
}

void MailboxClient::ask(const FrameHeader& header, Buffer bytes) {
  outbox_.add(server_of(letter_of(header)), {header, std::move(bytes)});
}

void MailboxClient::ask(Post& post) {
  post.asked = Clock::now();
  ask(post.header, post.bytes.share());
}

void MailboxClient::ask(const LetterId& id, Fetch& fetch) {
  fetch.asked = Clock::now();
  ask(header_of(Kind::kFetch, id, fetch.into.size()), {});
}

/// What arrives damaged counts as lost.
bool MailboxClient::handle(transport::Node, const Frame& frame) {
  switch (frame.header.kind) {
    case Kind::kLetter:
      on_letter(frame);
      return true;
    case Kind::kDelivered:
      posts_.erase(letter_of(frame.header));
      return true;
    case Kind::kError:
      if (frame.header.content != static_cast<std::uint8_t>(Refusal::kLetter)) return false;
      on_refusal(frame);
      return true;
    default:
      return false;
  }
}

void MailboxClient::on_letter(const Frame& frame) {
  const LetterId id = letter_of(frame.header);
  if (id.poster >= workers_ || !frame.payload.is_intact()) return;
  if (const auto found = fetches_.find(id); found != fetches_.end()) {
    Fetch& fetch = found->second;
    if (frame.payload.size_bytes() != fetch.into.size()) {
      return fail_(std::make_exception_ptr(
          transport::TransportError(fmt::format("{}: worker {} sent {} bytes, {} were expected", fetch.what,
                                                id.poster, frame.payload.size_bytes(), fetch.into.size()))));
    }
    std::memcpy(fetch.into.data(), frame.payload.bytes().data(), fetch.into.size());
    const Ticket done = fetch.done;
    fetches_.erase(found);
    done.succeed();
  }
  ask(header_of(Kind::kReceipt, id, frame.header.count), {});  // of one that came twice, too
}

/// Matters to those that wait; a repeated request may be refused after its first was answered.
void MailboxClient::on_refusal(const Frame& frame) {
  const LetterId id = letter_of(frame.header);
  const auto post = posts_.find(id);
  const auto fetch = fetches_.find(id);
  if ((post == posts_.end() && fetch == fetches_.end()) || !frame.payload.is_intact()) return;
  const char* what = post != posts_.end() ? post->second.what : fetch->second.what;
  fail_(std::make_exception_ptr(transport::TransportError(fmt::format("{}: {}", what, payload_text(frame)))));
}

void MailboxClient::retry(Clock::time_point now) {
  for (auto& [id, post] : posts_) {
    if (now - post.asked >= retry_timeout_) ask(post);
  }
  for (auto& [id, fetch] : fetches_) {
    if (now - fetch.asked >= retry_timeout_) ask(id, fetch);
  }
}

void MailboxClient::ask_again(std::uint32_t server) {
  for (auto& [id, post] : posts_) {
    if (server_of(id) == server) ask(post);
  }
  for (auto& [id, fetch] : fetches_) {
    if (server_of(id) == server) ask(id, fetch);
  }
}

void MailboxClient::fail_all(const std::exception_ptr& error) {
  failure_ = error;
  for (auto& [id, post] : posts_) post.done.fail(error);
  for (auto& [id, fetch] : fetches_) fetch.done.fail(error);
  posts_.clear();
  fetches_.clear();
}

bool MailboxClient::awaits_server(std::uint32_t rank) const {
  const auto is_there = [&](const auto& entry) { return server_of(entry.first) == rank; };
  return std::ranges::any_of(posts_, is_there) || std::ranges::any_of(fetches_, is_there);
}

MailboxClient::Clock::time_point MailboxClient::oldest() const {
  auto oldest = Clock::time_point::max();
  for (const auto& [id, post] : posts_) oldest = std::min(oldest, post.began);
  for (const auto& [id, fetch] : fetches_) oldest = std::min(oldest, fetch.began);
  return oldest;
}

std::string MailboxClient::describe_wait(Clock::time_point now) const {
  const char* what = "a collective";
  std::set<std::uint32_t> ranks;
  for (const auto& [id, fetch] : fetches_) {
    what = fetch.what;
    ranks.insert(id.poster);
  }
  if (fetches_.empty()) {  // who has what this worker posted is known to the server alone
    for (const auto& [id, post] : posts_) {
      what = post.what;
      const Readers readers = readers_of(post.header);
      for (std::uint32_t rank = 0; rank < workers_; ++rank) {
        const bool reads = readers.only == kNobody ? rank != readers.except : rank == readers.only;
        if (reads && rank != self_.rank) ranks.insert(rank);
      }
    }
  }
  const auto waited = std::chrono::duration<double>(now - oldest()).count();
  return fmt::format("{} has waited {:.0f} s for worker {}{}", what, waited, fmt::join(ranks, ", "),
                     fetches_.empty() ? " to receive what was sent" : "");
}

}  // namespace gradwire::kvstore
