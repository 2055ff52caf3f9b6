#include "kvstore/server/server_shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "kvstore/wire/answer.h"
#include "kvstore/wire/subject.h"
#include "transport/thread_name.h"

namespace gradwire::kvstore {

using transport::Frame;
using transport::Kind;
using transport::Node;
using transport::Role;

namespace {

constexpr std::chrono::milliseconds kTick{1'000};
/// Of one thread; far above the credit of some hundred workers.
constexpr std::size_t kMostBytesForLater = std::size_t{64} << 20;

Sealing sealing_of(const transport::Messenger& messenger) {
  return messenger.seals_payloads() ? Sealing::kAll : Sealing::kLossy;
}

}  // namespace

ServerShard::ServerShard(transport::Messenger& messenger, const ServerOptions& options,
                         const ShardPlace& place, const std::shared_ptr<StragglerCounts>& stragglers,
                         std::shared_ptr<std::atomic<std::uint64_t>> mirrored_bytes)
    : messenger_(messenger),
      place_(place),
      watch_{options.mirror_patience, options.slow_warning, options.slow_abort, options.notify},
      is_silent_(place.mirrored.has_value()),
      mirrored_bytes_(std::move(mirrored_bytes)),
      trace_(Tracer(options.trace, options.tier)),
      aggregator_(messenger.world().workers, sealing_of(messenger)),
      rows_(messenger.world().workers, sealing_of(messenger)),
      commands_(messenger.world().workers),
      blobs_(messenger.world().workers),
      outbox_(messenger, loop_, Role::kWorker, messenger.world().workers, messenger.self().rank,
              {options.credit_bytes, options.fusion_bytes}, trace_.tracer()) {
  if (place.mirror) log_.emplace(static_cast<std::uint8_t>(place.log), static_cast<std::uint8_t>(place.logs));
  if (!options.contributors.empty()) aggregator_.set_contributors(options.contributors);
  aggregator_.set_upstream(options.upstream);
  aggregator_.set_stragglers(stragglers);
  if (options.trace)
    aggregator_.set_watch([this](auto moment, const auto& push) { trace_.on(moment, push); });
  thread_ = std::jthread([this] { run(); });
}

// --- from other threads ---

void ServerShard::post(std::uint32_t worker, std::vector<Frame> frames) {
  const auto arrived = trace_.tracer().now();
  loop_->post([this, worker, frames = std::move(frames), arrived]() mutable {
    if (is_silent_) return keep_for_later(worker, std::move(frames));
    trace_.arrived(arrived, worker);
    take(worker, std::move(frames));
  });
}

void ServerShard::answer(Frame frame) {
  loop_->post([this, frame = std::move(frame)]() mutable { aggregator_.answer(std::move(frame), answers_); });
}

Ticket ServerShard::sent() {
  Ticket ticket;
  loop_->post([this, ticket] { waiting_sent_.push_back(ticket); });
  return ticket;
}

Ticket ServerShard::copy_payloads_of(std::uint32_t worker) {
  Ticket ticket;
  loop_->post([this, worker, ticket] {
    aggregator_.copy_payloads_of(worker);
    blobs_.copy_bytes_of(worker);
    ticket.succeed();
  });
  return ticket;
}

void ServerShard::forget_worker(std::uint32_t rank, const std::string& error) {
  loop_->post([this, rank, error] { leaving_.emplace(rank, error); });
}

void ServerShard::post_mirrored(std::vector<Frame> frames) {
  loop_->post([this, frames = std::move(frames)]() mutable { take_mirrored(std::move(frames)); });
}

void ServerShard::serve() {
  loop_->post([this] {
    is_silent_ = false;
    // Goodbyes are not in the log: who waited for one that left may have been answered there, and not at the
    // same place here.
    aggregator_.forget_sent();
    for (Request& request : std::exchange(for_later_, {})) {
      std::vector<Frame> one;
      one.push_back(std::move(request.frame));
      take(request.worker, std::move(one));
    }
  });
}

void ServerShard::acknowledge(std::uint64_t next) {
  // Before what waits there: answers leave while the next sums are still to be made.
  loop_->post_first([this, next] {
    if (!log_) return;
    forward_again(log_->acknowledge(next, Clock::now()));
    send_answers();
  });
}

void ServerShard::lose_mirror() {
  loop_->post([this] {
    if (!log_) return;
    log_->forgo();
    send_answers();
    log_.reset();
  });
}

// --- on its thread ---

void ServerShard::run() {
  transport::name_this_thread("gw aggregator");
  loop_->run(
      log_ ? std::min(kTick, watch_.patience) : kTick, [this] { send_answers(); },
      [this] {
        const auto now = Clock::now();
        if (now - forgot_ >= kTick) {
          forgot_ = now;
          forget_the_gone();
        }
        if (log_) watch_mirror(now);
      });
}

/// Every answer waits for the mirror, so workers would name this server, and not who it waits for.
void ServerShard::watch_mirror(Clock::time_point now) {
  forward_again(log_->overdue(now, watch_.patience));
  const auto waited = log_->waited(now);
  if (waited < watch_.slow_warning) {
    watch_.has_warned = false;
    return;
  }
  const auto text = fmt::format(
      "{} has waited {} s for its mirror, {}, to acknowledge what it was sent; see whether that is alive, "
      "and whether the two reach each other",
      to_string(messenger_.self()), std::chrono::duration_cast<std::chrono::seconds>(waited).count(),
      to_string(*place_.mirror));
  if (!std::exchange(watch_.has_warned, true) && watch_.notify) watch_.notify(text);
  if (waited < watch_.slow_abort) return;
  messenger_.fail(text);
  loop_->stop();
}

/// No more than what workers may have sent before the departure is heard of here; they ask again for the
/// rest.
void ServerShard::keep_for_later(std::uint32_t worker, std::vector<Frame> frames) {
  for (Frame& frame : frames) {
    const std::size_t bytes = transport::kHeaderBytes + frame.payload.size_bytes();
    if (bytes > kMostBytesForLater - bytes_for_later_) continue;
    bytes_for_later_ += bytes;
    for_later_.push_back({worker, std::move(frame)});
  }
}

void ServerShard::take(std::uint32_t worker, std::vector<Frame> frames) {
  if (log_) forward(worker, frames);
  for (Frame& frame : frames) handle(worker, std::move(frame));
  // At once, and not with the batch's: while the next sum is made, the link carries this one.
  if (!answers_.empty() || !outbox_.empty()) send_answers();
}

/// First of all, so that the mirror's acknowledgement is on its way while the sum is made. What arrived
/// damaged is refused, and changes nothing here or there.
void ServerShard::forward(std::uint32_t worker, const std::vector<Frame>& frames) {
  const auto now = Clock::now();
  std::vector<Frame> passed;
  for (const Frame& frame : frames) {
    if (!frame.payload.is_intact()) continue;
    passed.push_back(log_->forward(worker, frame, now));
    *mirrored_bytes_ += frame.payload.size_bytes();
  }
  if (!passed.empty()) send(*place_.mirror, std::move(passed));
}

void ServerShard::forward_again(std::vector<Frame> frames) {
  if (!frames.empty()) send(*place_.mirror, std::move(frames));
}

/// What is not next is dropped, and comes again. Acknowledged before it is acted upon: it is in this process,
/// and nothing that a worker asks here is looked at before it.
void ServerShard::take_mirrored(std::vector<Frame> frames) {
  if (!is_silent_) return;
  std::vector<Frame> taken;
  for (Frame& frame : frames) {
    if (intake_.take(frame)) taken.push_back(std::move(frame));
  }
  std::vector<Frame> acknowledgement;
  acknowledgement.push_back(mirrored(
      {intake_.next(), static_cast<std::uint8_t>(place_.log), static_cast<std::uint8_t>(place_.logs)}));
  send(*place_.mirrored, std::move(acknowledgement));
  for (Frame& frame : taken) {
    const std::uint32_t worker = frame.header.sender.rank;
    handle(worker, std::move(frame));
  }
  answers_.clear();  // the other server gives them
}

void ServerShard::handle(std::uint32_t worker, Frame frame) {
  switch (subject_of_request(frame.header.kind)) {
    case Subject::kTensor:
      return aggregator_.handle(worker, std::move(frame), answers_);
    case Subject::kRows:
      return rows_.handle(worker, std::move(frame), answers_);
    case Subject::kBlob:
      return blobs_.handle(worker, std::move(frame), answers_);
    case Subject::kCommand:
      return carry_out(worker, std::move(frame));
  }
}

/// What arrives damaged counts as lost. A mirror carries out the same ones: it takes the same frames.
void ServerShard::carry_out(std::uint32_t worker, Frame command) {
  if (!command.payload.is_intact() || !commands_.admits(worker, command.header, answers_)) return;
  const std::size_t own = answers_.size();
  if (!tell_mirrored_bytes(worker, command)) {
    aggregator_.handle(worker, share(command), answers_);
    if (answers_.at(own).frame.header.kind == Kind::kAck) rows_.heed(worker, command, answers_);
  }
  Frame& answer = answers_.at(own).frame;
  set_thread(answer.header, {place_.log, place_.logs});
  commands_.keep(worker, answer);
}

bool ServerShard::tell_mirrored_bytes(std::uint32_t worker, const Frame& frame) {
  if (payload_text(frame) != "mirrored") return false;
  answers_.push_back(
      {worker, answer_to(frame.header, Kind::kAck, text_payload(std::to_string(*mirrored_bytes_)))});
  return true;
}

void ServerShard::forget_the_gone() {
  for (const auto& [rank, error] : gone_) {
    aggregator_.forget_worker(rank, answers_, error);
    rows_.forget_worker(rank, answers_, error);
    blobs_.forget_worker(rank, answers_, error);
  }
  gone_ = std::exchange(leaving_, {});
  send_answers();
}

void ServerShard::send_answers() {
  if (is_silent_) answers_.clear();
  if (log_) {
    log_->hold(std::exchange(answers_, {}));
    answers_ = log_->release();
  }
  for (auto& answer : std::exchange(answers_, {})) {
    answer.frame.header.on_behalf = place_.mirrored;
    answer.frame.header.number = 0;
    outbox_.add(answer.worker, std::move(answer.frame));
  }
  try {
    outbox_.flush(Clock::now());
  } catch (const transport::TransportError&) {
    loop_->stop();  // the job has failed; on_failure tells wait() why
  }
  if (!outbox_.empty() || (log_ && !log_->empty())) return;
  for (const Ticket& ticket : std::exchange(waiting_sent_, {})) ticket.succeed();
}

void ServerShard::send(Node to, std::vector<Frame> frames) {
  try {
    messenger_.send(to, std::move(frames));
  } catch (const transport::TransportError&) {
    loop_->stop();  // as above
  }
}

}  // namespace gradwire::kvstore
