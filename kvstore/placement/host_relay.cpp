#include "kvstore/placement/host_relay.h"

#include <fmt/format.h>

#include <string>

#include "kvstore/wire/answer.h"
#include "kvstore/wire/protocol.h"

namespace gradwire::kvstore {
namespace {

using transport::Buffer;
using transport::Frame;
using transport::Kind;

}  // namespace

void HostRelay::start(Server& server, RoundThread& uplink) {
  const std::lock_guard lock(mutex_);
  server_ = &server;
  uplink_ = &uplink;
}

void HostRelay::stop() {
  const std::lock_guard lock(mutex_);
  server_ = nullptr;
  uplink_ = nullptr;
}

void HostRelay::add_key(KeyId key, std::uint64_t offset, KeyId upstream) {
  const std::lock_guard lock(mutex_);
  upstream_[{key, offset}] = upstream;
}

void HostRelay::take(Frame sum) {
  const std::lock_guard lock(mutex_);
  // After stop() the uplink ends, and nobody waits for the answer.
  if (server_ == nullptr) return;
  // The round has failed on the host. There is no sum to push, and its workers get the error as their answer.
  if (sum.header.kind == Kind::kError) return server_->answer(std::move(sum));
  const auto known = upstream_.find({sum.header.key, sum.header.offset});
  if (known == upstream_.end()) {
    const auto text = fmt::format("key {} offset {} was not declared by the leader of the host",
                                  sum.header.key, sum.header.offset);
    return server_->answer(refusal_of(sum.header, {Refusal::kFinal, text}));
  }
  const auto round = std::make_shared<Round>();  // owners: this call and the operation's ticket
  round->frame = std::move(sum);
  Operation operation;
  const bool is_wide = dtype_of(round->frame.header) == Dtype::kFloat64;
  const ArrayView values(is_wide ? ElementType::kFloat64 : ElementType::kFloat32,
                         round->frame.payload.bytes());
  operation.in = operation.out = values;
  // The same memory gets the answer: a push_pull in place. Frames that still borrow it keep it alive.
  operation.owner = std::make_shared<Buffer>(round->frame.payload.share());
  operation.priority = round->frame.header.priority;
  operation.program_step = round->frame.header.program_step;
  round->done = operation.done;
  operation.done.then([this, round](const std::exception_ptr& error) { answer(round, error); });
  uplink_->submit(known->second, std::move(operation));
}

void HostRelay::answer(const std::shared_ptr<Round>& round, const std::exception_ptr& error) {
  const std::lock_guard lock(mutex_);
  // Also where stop() has come before. The uplink's jobs may still write to the sum, whatever becomes of the
  // answer.
  if (error) failed_.push_back(round);
  if (server_ == nullptr) return;
  if (error) return server_->answer(refusal_of(round->frame.header, {Refusal::kFinal, text_of(error)}));
  // Ranks of other hosts may have found a NaN. The flag in the answer is for all workers of this host.
  if (round->done.nonfinite()) round->frame.header.flags |= transport::kFlagNonfinite;
  server_->answer(std::move(round->frame));
}

}  // namespace gradwire::kvstore
