#include "kvstore/client/round_thread.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "kvstore/client/standstill.h"
#include "kvstore/wire/protocol.h"
#include "kvstore/wire/subject.h"
#include "transport/thread_name.h"

namespace gradwire::kvstore {

using transport::Frame;
using transport::Kind;
using transport::Node;
using transport::Role;

namespace {

// How late a repetition, a warning or an abort may be. A tick is half the question timeout, within these
// bounds: an idle thread does not wake up often, and a job with long timeouts still notices promptly.
constexpr auto kLongestTick = std::chrono::milliseconds(250);
constexpr auto kShortestTick = std::chrono::milliseconds(10);

/// Who takes a worker's place begins above what that one has given, since it begins in a later second.
std::uint64_t numbered_by_the_second() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return kCommandsOfOneWorker *
         static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(now).count());
}

/// After which a server is asked who is awaited: early enough for the answer to be here when a warning is
/// due.
std::chrono::milliseconds question_timeout(const EngineOptions& options) {
  return std::min(options.retry_timeout, options.slow_warning / 2);
}

Role server_role(const RoundThread::Rounds& rounds) {
  return rounds.servers_in_workers ? Role::kWorker : Role::kServer;
}

}  // namespace

RoundThread::RoundThread(transport::Messenger& messenger, const EngineOptions& options, const Rounds& rounds)
    : messenger_(messenger),
      settings_(rounds),
      context_{messenger, options, pool_, RoundSpans(Tracer(options.trace, rounds.tier))},
      clock_probe_(messenger),
      failover_(server_role(rounds)),
      outbox_(messenger, context_.loop, Role::kServer, messenger.world().servers, messenger.self().rank,
              {options.credit_bytes, options.fusion_bytes}, context_.spans.tracer()),
      pending_(server_role(rounds), {options.slow_warning, options.slow_abort}),
      commands_(pending_, messenger.world().servers, numbered_by_the_second(), options.retry_timeout,
                [this](std::uint32_t server, Frame frame) { outbox_.add(server, std::move(frame)); }),
      // A blob's client knows whom it waits for, and needs no early question.
      blobs_(messenger, context_.loop, outbox_, pending_, {options.retry_timeout, options.retry_timeout},
             [this](const std::exception_ptr& error) { fail_all(error); }),
      rows_(
          context_.loop, outbox_, pending_, server_role(rounds),
          {question_timeout(options), options.retry_timeout},
          [this](const std::exception_ptr& error) { fail_all(error); },
          options.async ? &staleness_ : nullptr),
      tensors_(messenger.self().rank, options.residual_type),
      residuals_(tensors_),
      encoder_(messenger, context_.buffers, context_.notices, !rounds.in_order),
      decoder_(rounds.contributors),
      weights_(options.async.has_value(), context_.buffers),
      devices_(context_, encoder_, decoder_),
      dense_(tensors_, pending_, outbox_, failover_, weights_, staleness_,
             {question_timeout(options), options.retry_timeout, options.async.has_value(), rounds.in_order},
             {[this](Tensor& tensor, std::size_t part, Frame answer) {
                rounds_.answered(tensor, part, std::move(answer));
              },
              [this](Tensor& tensor, std::exception_ptr error) { rounds_.ended(tensor, std::move(error)); },
              [this](const std::exception_ptr& error) { fail_all(error); },
              [this](std::exception_ptr error) { fail(std::move(error)); }}),
      rounds_(context_, {tensors_, residuals_, pending_, dense_, devices_, encoder_, decoder_, weights_}),
      waits_(tensors_, rounds_.active(), options.async),
      pool_(options.codec_threads) {
  // Before the thread runs, since a task of its own may have to fail.
  context_.fail_now = [this](const std::exception_ptr& error) { fail_all(error); };
  thread_ = std::jthread([this] { run(); });
  messenger_.attach(*this);
}

RoundThread::~RoundThread() {
  // First, so that no frame is posted to clients that are ending. What is in the inbox already finds that all
  // has failed.
  messenger_.detach();
  fail(std::make_exception_ptr(transport::TransportError("engine closed while operations were in flight")));
  Ticket drained = idle();
  try {
    drained.wait_for(std::chrono::seconds(10));  // jobs in the pool still write to callers' memory
  } catch (...) {  // NOLINT(bugprone-empty-catch): the failure was told to every ticket
  }
  devices_.settle();  // their callbacks come to the pool and the loop
  context_.loop->stop();
}

// ------------------------------------------------------------------------------------- calls from others

void RoundThread::add_keys(std::vector<KeySpec> specs, std::vector<std::vector<Part>> parts,
                           std::vector<Origin> origins) {
  post([this, specs = std::move(specs), parts = std::move(parts), origins = std::move(origins)] {
    for (std::size_t i = 0; i < specs.size(); ++i) {
      Tensor& tensor = tensors_.add(specs[i], parts[i]);
      if (!origins.empty()) tensor.origin = origins[i];
      context_.spans.tracer().name_key(tensor.id, tensor.spec.name);
    }
  });
}

void RoundThread::add_bucket(KeySpec spec, Part part, std::vector<std::uint32_t> segment_elements,
                             std::optional<Origin> origin) {
  post([this, spec = std::move(spec), part, segments = std::move(segment_elements), origin] {
    Tensor& tensor = tensors_.add(spec, {&part, 1}, segments);
    tensor.origin = origin.value_or(tensor.origin);
    context_.spans.tracer().name_key(tensor.id, tensor.spec.name);
  });
}

void RoundThread::submit(KeyId key, Operation operation) {
  context_.spans.submitted(key, operation);
  context_.loop->post([this, key, operation = std::move(operation)]() mutable {
    rounds_.take_in(key, std::move(operation));
  });
}

void RoundThread::submit(std::vector<Submission> submissions) {
  for (auto& [key, operation] : submissions) context_.spans.submitted(key, operation);
  context_.loop->post([this, submissions = std::move(submissions)]() mutable {
    for (auto& [key, operation] : submissions) rounds_.take_in(key, std::move(operation));
  });
}

void RoundThread::set_weight_replies(std::shared_ptr<const WeightReplies> replies) {
  post([this, replies = std::move(replies)] { rounds_.set_weight_replies(replies); });
}

Ticket RoundThread::command(std::string text, std::vector<Acknowledgement>* said) {
  Ticket done;
  post([this, done, text = std::move(text), said] {
    if (failure_) return done.fail(failure_);
    commands_.start(text, said, done, PendingRequests::Clock::now());
  });
  return done;
}

Ticket RoundThread::idle() {
  Ticket ticket;
  post([this, ticket] { rounds_.when_idle(ticket); });
  return ticket;
}

Ticket RoundThread::handed_over() {
  Ticket ticket;
  post([this, ticket] { rounds_.when_handed_over(ticket); });
  return ticket;
}

void RoundThread::between_rounds(std::span<const KeyId> keys, const std::function<void()>& task) {
  Ticket ticket;
  post([this, ticket, keys, &task] {
    try {
      for (const KeyId key : keys) {
        if (tensors_[key].current) {
          throw std::logic_error(fmt::format(
              "residuals: a round of key '{}' is in progress; wait for it first", tensors_[key].spec.name));
        }
      }
      task();
      ticket.succeed();
    } catch (...) {
      ticket.fail(std::current_exception());
    }
  });
  ticket.wait();
}

std::string RoundThread::failure() const {
  const std::lock_guard lock(failure_mutex_);
  return failure_text_;
}

// ------------------------------------------------------------------------------------- what others send

void RoundThread::on_frames(Node from, std::vector<Frame> frames) {
  if (frames.front().header.kind == Kind::kTime) {  // at once: it must not wait for what is in the loop
    if (from.role == Role::kServer && frames.size() == 1) clock_probe_.take(frames.front().header);
    return;
  }
  context_.loop->post(
      [this, from, frames = std::move(frames), arrived = context_.spans.tracer().now()]() mutable {
        context_.arrived = arrived;
        for (Frame& frame : frames) {
          if (const auto speaker = failover_.speaker_of(from, frame.header))
            handle(*speaker, std::move(frame));
        }
      });
}

void RoundThread::handle(Node from, Frame frame) {
  if (from.role != Role::kServer) return;
  switch (subject_of_answer(frame.header)) {
    case Subject::kTensor:
      return dense_.handle(from, std::move(frame));
    case Subject::kRows:
      return rows_.handle(from, frame);
    case Subject::kBlob:
      return blobs_.handle(frame);
    case Subject::kCommand:
      return commands_.handle(from, frame);
  }
}

void RoundThread::on_question(const std::set<std::string>& rounds) {
  if (settings_.standstill != nullptr) post([this, rounds] { settings_.standstill->ask(rounds); });
}

void RoundThread::on_goodbye(Node peer, const std::string& error) {
  // A worker that leaves concerns servers. They name it in their answers to those that still wait for it.
  if (peer.role == Role::kWorker && settings_.on_worker_left) settings_.on_worker_left();
  if (peer.role != Role::kServer) return;
  post([this, rank = peer.rank, error] { lose_server(rank, error); });
}

/// A worker that takes its server along when it leaves has done all its rounds: only what still needs it
/// fails.
void RoundThread::lose_server(std::uint32_t rank, const std::string& error) {
  // A mirror takes along the servers in whose place it served: nobody mirrors them any more.
  for (const std::uint32_t dead : failover_.served_by(rank)) lose_server(dead, error);
  failover_.leave(rank, error);
  // No worker depends on what a server that has left would have executed.
  if (settings_.servers_in_workers) commands_.lose_server(rank);
  // A dedicated server leaves when all workers have left, so one that goes before has failed.
  if (!settings_.servers_in_workers || pending_.awaits_server(rank))
    fail_all(std::make_exception_ptr(transport::TransportError(failover_.describe(rank))));
}

void RoundThread::on_departure(Node server, Node mirror) {
  post([this, rank = server.rank, mirror = mirror.rank] { replace_server(rank, mirror); });
}

/// Asks at once for all that the server still owed: what it was sent, and what it answered, may be lost on
/// the way. Its mirror knows each request that was answered to anybody, and tells what it lacks.
void RoundThread::replace_server(std::uint32_t rank, std::uint32_t mirror) {
  if (!failover_.replace(rank, mirror)) return;
  context_.notices.add(
      fmt::format("server {} has died; its mirror, server {}, serves in its place and is mirrored for it by "
                  "nobody: start the job again from a checkpoint when it suits",
                  rank, mirror));
  outbox_.replace(rank, mirror);
  pending_.ask_again(rank, PendingRequests::Clock::now());
}

// ------------------------------------------------------------------------------------- time and failure

void RoundThread::run() {
  transport::name_this_thread("gw engine");
  context_.loop->run(
      std::clamp(question_timeout(context_.options) / 2, kShortestTick, kLongestTick), [this] { flush(); },
      [this] { tick(); });
}

void RoundThread::flush() {
  try {
    // send() throws once the job has failed. The sink's report of that may still be in the inbox.
    if (const auto again = outbox_.flush(PendingRequests::Clock::now())) context_.loop->wake_at(*again);
  } catch (const std::exception&) {
    fail_all(std::current_exception());
  }
}

void RoundThread::tick() {
  const auto now = PendingRequests::Clock::now();
  if (const auto overdue = pending_.overdue(now)) return give_up(*overdue);
  for (std::string& warning : pending_.warnings(now)) context_.notices.add(std::move(warning));
  pending_.retry(now);
  // Servers say for one request after another that they hold it. Looking once a tick is enough for a store
  // that closes.
  rounds_.tell_handed_over();
  if (settings_.standstill != nullptr && !failure_) settings_.standstill->tick();
}

void RoundThread::give_up(const std::string& text) {
  // Before the job is failed: that comes back here as a TransportError, and the first error is the one that
  // callers get.
  fail_all(std::make_exception_ptr(transport::TimeoutError(text)));
  messenger_.fail(fmt::format("{} gave up: {}", transport::to_string(messenger_.self()), text));
}

void RoundThread::fail_all(const std::exception_ptr& error) {
  // Later errors are consequences of the first, and name its cause less well.
  if (failure_) return;
  failure_ = error;
  {
    const std::lock_guard lock(failure_mutex_);
    failure_text_ = text_of(error);
  }
  if (settings_.on_failure) settings_.on_failure(error);
  blobs_.fail_all(error);
  rows_.fail_all(error);
  commands_.fail_all(error);
  rounds_.fail(error);
}

}  // namespace gradwire::kvstore
