#include "kvstore/client/engine_thread.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "compress/codecs.h"
#include "compress/float64_codec.h"
#include "compress/payload/little_endian.h"
#include "fusion/partition.h"
#include "kvstore/client/engine_tensor.h"
#include "kvstore/client/standstill.h"
#include "kvstore/leftover.h"
#include "kvstore/wire/protocol.h"
#include "kvstore/wire/shortened.h"

namespace gradwire::kvstore {

using transport::Buffer;
using transport::Frame;
using transport::FrameHeader;
using transport::Kind;
using transport::Node;
using transport::Role;
using Verb = EngineThread::Operation::Verb;

namespace {

constexpr auto kLongestTick = std::chrono::milliseconds(250);
constexpr auto kShortestTick = std::chrono::milliseconds(10);

std::vector<float> to_float32(std::span<const double> values) {
  std::vector<float> rounded(values.size());
  std::ranges::transform(values, rounded.begin(), [](double value) { return static_cast<float>(value); });
  return rounded;
}

/// Whether rounding has made an infinity of a number.
bool has_overflowed(std::span<const double> values, std::span<const float> rounded) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isinf(rounded[i]) && std::isfinite(values[i])) return true;
  }
  return false;
}

/// Who takes a worker's place begins above what that one has given, since it begins in a later second.
std::uint64_t numbered_by_the_second() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return kCommandsOfOneWorker *
         static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(now).count());
}

}  // namespace

EngineThread::EngineThread(transport::Messenger& messenger, const EngineOptions& options,
                           const Rounds& rounds)
    : messenger_(messenger),
      options_(options),
      in_order_(rounds.in_order ? std::make_unique<InOrder>() : nullptr),
      rounds_(rounds),
      tracer_(options.trace, rounds.tier),
      clock_probe_(messenger),
      compression_(
          std::make_shared<Compression>(Compression{compress::make({}), compress::ReplyKind::kSame})),
      none_of_float64_(std::make_shared<Compression>(
          Compression{std::make_unique<compress::Float64Codec>(), compress::ReplyKind::kSame})),
      outbox_(messenger, loop_, Role::kServer, messenger.world().servers, messenger.self().rank,
              {options.credit_bytes, options.fusion_bytes}, tracer_),
      mail_(messenger, loop_, outbox_, options.retry_timeout,
            [this](const std::exception_ptr& error) { fail_all(error); }),
      rows_(
          loop_, outbox_, rounds.servers_in_workers ? Role::kWorker : Role::kServer,
          {question_timeout(), options.retry_timeout},
          [this](const std::exception_ptr& error) { fail_all(error); },
          options.at_once ? &staleness_ : nullptr),
      failover_(rounds.servers_in_workers ? Role::kWorker : Role::kServer),
      commands_(messenger.world().servers, numbered_by_the_second(),
                [this](std::uint32_t server, Frame frame) { outbox_.add(server, std::move(frame)); }),
      pool_(options.codec_threads),
      thread_([this] { run(); }) {
  messenger_.attach(*this);
}

EngineThread::~EngineThread() {
  messenger_.detach();
  fail(std::make_exception_ptr(transport::TransportError("engine closed while operations were in flight")));
  Ticket drained = idle();
  try {
    drained.wait_for(std::chrono::seconds(10));  // jobs in the pool still write to callers' memory
  } catch (...) {  // NOLINT(bugprone-empty-catch): the failure was told to every ticket
  }
  for (const auto& [device, link] : links_) link->settle();  // whose callbacks come to the pool and the loop
  loop_->stop();
}

// ------------------------------------------------------------------------------------- calls from other
// threads

EngineThread::Tensor& EngineThread::add_tensor(KeySpec spec, const std::vector<Part>& parts) {
  Tensor& tensor = *tensors_.emplace_back(std::make_unique<Tensor>());
  tensor.id = tensors_.size() - 1;
  tensor.spec = std::move(spec);
  tracer_.name_key(tensor.id, tensor.spec.name);
  tensor.parts.resize(parts.size());
  for (std::size_t p = 0; p < parts.size(); ++p) tensor.parts[p].part = parts[p];
  std::sort(tensor.parts.begin(), tensor.parts.end(),
            [](const PartState& a, const PartState& b) { return a.part.offset < b.part.offset; });
  std::vector<std::uint32_t> owners;
  for (const PartState& state : tensor.parts) owners.push_back(state.part.server);
  tensor.turns = fusion::in_turns(owners, messenger_.self().rank + 1);
  return tensor;
}

void EngineThread::add_keys(std::vector<KeySpec> specs, std::vector<std::vector<Part>> parts) {
  loop_->post([this, specs = std::move(specs), parts = std::move(parts)]() mutable {
    for (std::size_t i = 0; i < specs.size(); ++i) add_tensor(std::move(specs[i]), parts[i]);
  });
}

void EngineThread::add_bucket(KeySpec spec, Part part, std::vector<std::uint32_t> segment_elements) {
  loop_->post([this, spec = std::move(spec), part, segments = std::move(segment_elements)]() mutable {
    add_tensor(std::move(spec), {part}).segments = std::move(segments);
  });
}

void EngineThread::set_compression(std::shared_ptr<const Compression> compression) {
  loop_->post([this, compression = std::move(compression)] {
    const auto before = std::exchange(compression_, compression);
    for (auto& tensor : tensors_) {
      if (!tensor->own_compression) renew_scales(*tensor, *before);
    }
  });
}

void EngineThread::set_compression_of(std::vector<KeyId> keys,
                                      std::shared_ptr<const Compression> compression) {
  loop_->post([this, keys = std::move(keys), compression = std::move(compression)] {
    for (const KeyId key : keys) {
      const auto before = std::exchange(tensors_[key]->own_compression, compression);
      renew_scales(*tensors_[key], before ? *before : *compression_);
    }
  });
}

void EngineThread::forget_sums_of_float64() {
  loop_->post([this] {
    for (auto& tensor : tensors_) tensor->value_current = tensor->value_current && tensor->value64.empty();
  });
}

void EngineThread::set_weight_replies(std::shared_ptr<const WeightReplies> replies) {
  loop_->post([this, replies = std::move(replies)] { weight_replies_ = replies; });
}

void EngineThread::submit(KeyId key, Operation operation) {
  if (tracer_.is_on()) note_submitted(key, operation);
  loop_->post(
      [this, key, operation = std::move(operation)]() mutable { take_in(key, std::move(operation)); });
}

void EngineThread::submit(std::vector<Submission> submissions) {
  if (tracer_.is_on()) {
    for (auto& [key, operation] : submissions) note_submitted(key, operation);
  }
  loop_->post([this, submissions = std::move(submissions)]() mutable {
    for (auto& [key, operation] : submissions) take_in(key, std::move(operation));
  });
}

void EngineThread::take_in(KeyId key, Operation operation) {
  Tensor& tensor = *tensors_[key];
  if (failure_) {
    operation.taken.fail(failure_);
    operation.done.fail(failure_);
    return;
  }
  const bool pushes = operation.verb == Verb::kPush || operation.verb == Verb::kPushPull;
  if (in_order_ && pushes) operation.number = in_order_->expect(tensor.parts.size());
  if (operation.verb == Verb::kPush && tensor.current) {
    operation.is_held = tensor.held_count > 0 || !stage(operation);
    if (operation.is_held) ++tensor.held_count;
  }
  tensor.waiting.push_back(std::move(operation));
  start_next(tensor);
}

Ticket EngineThread::command(std::string text, std::vector<Acknowledgement>* said) {
  Ticket done;
  loop_->post([this, done, text = std::move(text), said]() mutable {
    if (failure_) return done.fail(failure_);
    commands_.start(std::move(text), said, done, Clock::now());
  });
  return done;
}

Ticket EngineThread::idle() {
  Ticket ticket;
  loop_->post([this, ticket] {
    if (active_.empty()) return ticket.succeed();
    waiting_idle_.push_back(ticket);
  });
  return ticket;
}

void EngineThread::fail(std::exception_ptr error) {
  loop_->post([this, error = std::move(error)] { fail_all(error); });
}

std::vector<std::string> EngineThread::take_notices() {
  const std::lock_guard lock(notices_mutex_);
  return std::exchange(notices_, {});
}

void EngineThread::keep_failure_text() {
  const std::lock_guard lock(notices_mutex_);
  failure_text_ = text_of(failure_);
}

std::string EngineThread::failure() const {
  const std::lock_guard lock(notices_mutex_);
  return failure_text_;
}

void EngineThread::on_frames(Node from, std::vector<Frame> frames) {
  if (frames.front().header.kind == Kind::kTime) {  // at once: it must not wait for what is in the loop
    if (from.role == Role::kServer && frames.size() == 1) clock_probe_.take(frames.front().header);
    return;
  }
  loop_->post([this, from, frames = std::move(frames), arrived = tracer_.now()]() mutable {
    arrived_ = arrived;
    for (Frame& frame : frames) {
      if (const auto speaker = failover_.speaker_of(from, frame.header)) handle(*speaker, std::move(frame));
    }
  });
}

void EngineThread::on_question(const std::set<std::string>& rounds) {
  if (rounds_.standstill != nullptr) loop_->post([this, rounds] { rounds_.standstill->ask(rounds); });
}

void EngineThread::on_failure(const std::string& text) {
  fail(std::make_exception_ptr(transport::TransportError(text)));
}

// ------------------------------------------------------------------------------------- operations begin

void EngineThread::run() {
  loop_->run(
      std::clamp(question_timeout() / 2, kShortestTick, kLongestTick), [this] { flush(); },
      [this] { tick(); });
}

void EngineThread::start_next(Tensor& tensor) {
  if (tensor.current || tensor.waiting.empty()) return;
  tensor.current = std::move(tensor.waiting.front());
  tensor.waiting.pop_front();
  if (std::exchange(tensor.current->is_held, false)) --tensor.held_count;
  stage_held(tensor);
  if (!tensor.current->staged.empty()) tensor.current->in = tensor.current->staged;
  if (!tensor.current->staged64.empty()) tensor.current->in64 = tensor.current->staged64;
  tensor.error = nullptr;
  tensor.started = Clock::now();
  tensor.warned = false;
  tensor.parts_left = tensor.parts.size();
  if (std::exchange(tensor.weight_replies, weight_replies_) != weight_replies_) {
    tensor.forget_weight();
    tensor.value_current = false;  // as it was sent; a pull brings it as it is sent now
  }
  active_.insert(&tensor);
  if (tracer_.is_on()) note_start(tensor);
  start(tensor);
}

void EngineThread::start(Tensor& tensor) {
  try {
    switch (tensor.current->verb) {
      case Verb::kInit:
        return start_init(tensor);
      case Verb::kPull:
        return start_pull(tensor);
      case Verb::kReadState:
      case Verb::kWriteState:
        return start_state(tensor);
      case Verb::kPush:
      case Verb::kPushPull:
        tensor.use(compression_in_round(tensor));
        tensor.met_nonfinite = false;
        return tensor.current->device ? start_push_from_device(tensor) : start_push(tensor);
    }
  } catch (...) {  // a device, or memory. Posted: our caller is not done with this tensor
    fail(std::current_exception());
  }
}

/// Codec none takes keys of float64 in 64 bits; others take them in 32.
std::shared_ptr<const Compression> EngineThread::compression_in_round(const Tensor& tensor) const {
  const auto& chosen = compression_of(tensor);
  const bool is_none = chosen->codec->wire_id() == compress::WireId::kNone;
  return is_none && tensor.spec.is_float64() ? none_of_float64_ : chosen;
}

void EngineThread::start_push(Tensor& tensor) {
  Operation& operation = *tensor.current;
  const auto& codec = tensor.codec();
  const std::uint64_t elements = tensor.spec.elements();
  const bool on_device = operation.works_on_device();
  if (!on_device) {
    settle_on_host(tensor);
    if (codec.lossy() && tensor.residual.empty()) tensor.residual.assign(elements, 0.0F);
    if (codec.agrees_scales()) tensor.scales.resize(tensor.unit_count());
  }
  tensor.has_before = false;
  const bool keeps_residual = codec.lossy() || tensor.has_leftover();
  if (keeps_residual && keeps_rollback_) keep_what_was(tensor);
  if (operation.verb == Verb::kPush && !options_.at_once) {
    const bool is_wide = codec.as_float64() != nullptr;
    tensor.value_on_device = on_device;
    tensor.value.resize(on_device || is_wide ? 0 : elements);
    tensor.value64.resize(is_wide ? elements : 0);
    operation.out = on_device ? tensor.on_device->value() : std::span<float>(tensor.value);
    operation.out64 = tensor.value64;
  }
  tensor.value_current = false;
  tensor.is_shown = operation.verb == Verb::kPushPull;
  tensor.restored_scales_of.clear();
  ++tensor.step;
  raw_bytes_ += elements * (operation.in64.empty() ? sizeof(float) : sizeof(double));
  tensor.parts_to_take = tensor.parts.size();
  for (const std::size_t p : tensor.turns) {
    if (on_device) {
      encode_on_device(tensor, p);
    } else if (is_payload_already(tensor)) {
      const auto& part = tensor.parts[p].part;
      ++tensor.jobs;
      const auto values = operation.in64.empty()
                              ? std::as_bytes(operation.in.subspan(part.offset, part.count))
                              : std::as_bytes(operation.in64.subspan(part.offset, part.count));
      const auto keep = [owner = operation.owner] {};
      encoded(tensor, p, operation.owner ? Buffer::borrow(values, keep) : Buffer::borrow(values),
              tensor.push_flags(), nullptr);
    } else {
      encode(tensor, p);
    }
  }
}

/// Whether the caller's own memory is what a push sends, and is there until it is answered.
bool EngineThread::is_payload_already(const Tensor& tensor) const {
  const compress::Codec& codec = tensor.codec();
  const bool is_of_float64 = !tensor.current->in64.empty();
  return !codec.lossy() && !tensor.has_leftover() && is_of_float64 == (codec.as_float64() != nullptr) &&
         tensor.current->verb == Verb::kPushPull;
}

void EngineThread::start_pull(Tensor& tensor) {
  const Operation& pull = *tensor.current;
  const bool is_more = tensor.is_shown || pull.is_for_servers_own;
  tensor.asks_for_servers_own = is_more && tensor.weight_replies->are_deltas();
  const bool is_here = tensor.value_current && (pull.out64.empty() || !tensor.value_on_device);
  const bool asks = !is_here || tensor.asks_for_servers_own;
  if (asks && pull.works_on_device()) return land(tensor);  // which comes here again
  tensor.is_shown = true;
  if (asks) {
    ++tensor.pulls;
    for (std::size_t p = 0; p < tensor.parts.size(); ++p) send(tensor, p, Kind::kPull, {}, 0);
    return;
  }
  tensor.parts_left = 1;
  if (tensor.met_nonfinite) pull.done.note_nonfinite();
  if (pull.device && !tensor.value64.empty())
    tensor.value.assign(tensor.value64.begin(), tensor.value64.end());
  if (pull.device || tensor.value_on_device) return copy_value(tensor);
  ++tensor.jobs;
  pool_.submit(pull.priority, [this, &tensor] {
    const auto bring = [&tensor](const auto& value) {
      std::ranges::copy(value, tensor.current->out64.begin());
    };
    if (!tensor.current->out64.empty()) {
      tensor.value64.empty() ? bring(tensor.value) : bring(tensor.value64);
    } else {
      const auto rounded = [](auto element) { return static_cast<float>(element); };
      tensor.value64.empty()
          ? std::ranges::copy(tensor.value, tensor.current->out.begin()).out
          : std::ranges::transform(tensor.value64, tensor.current->out.begin(), rounded).out;
    }
    loop_->post([this, &tensor] { job_done(tensor, nullptr); });
  });
}

void EngineThread::start_init(Tensor& tensor) {
  ++tensor.pulls;
  for (std::size_t p = 0; p < tensor.parts.size(); ++p) {
    const auto& part = tensor.parts[p].part;
    const Operation& init = *tensor.current;
    const auto values = init.in64.empty() ? std::as_bytes(init.in.subspan(part.offset, part.count))
                                          : std::as_bytes(init.in64.subspan(part.offset, part.count));
    send(tensor, p, Kind::kInit, Buffer::borrow(values), 0);
  }
}

/// Takes a push's values while the round before is in flight: its caller waits only until they are taken.
/// Returns false where there is no room for them.
bool EngineThread::stage(Operation& operation) {
  const std::uint64_t bytes = operation.in.size_bytes() + operation.in64.size_bytes() + kAheadBytes;
  if (bytes > options_.push_ahead_bytes || ahead_bytes_ > options_.push_ahead_bytes - bytes) return false;
  operation.ahead_bytes = bytes;
  ahead_bytes_ += bytes;
  if (operation.device) {
    stage_on_device(operation);
    return true;
  }
  operation.staged.assign(operation.in.begin(), operation.in.end());
  operation.in = operation.staged;
  operation.staged64.assign(operation.in64.begin(), operation.in64.end());
  operation.in64 = operation.staged64;
  operation.taken.succeed();
  return true;
}

/// Takes what is held of a tensor, in order, as far as there is room. Looked for when a round of the tensor
/// is over and not when there is room elsewhere: so what a push waits for is a round of its own key, and
/// workers that wait for one another are found (standstill.h).
void EngineThread::stage_held(Tensor& tensor) {
  auto next = tensor.waiting.end();
  for (std::size_t left = tensor.held_count; left > 0;) left -= (--next)->is_held ? 1 : 0;
  for (; tensor.held_count > 0; ++next) {
    if (!next->is_held) continue;
    if (!stage(*next)) return;
    next->is_held = false;
    --tensor.held_count;
  }
}

// ------------------------------------------------------------------------------------- encode and send

void EngineThread::encode(Tensor& tensor, std::size_t index) {
  ++tensor.jobs;
  const compress::Position position{static_cast<std::uint32_t>(tensor.id), messenger_.self().rank,
                                    tensor.step - 1, tensor.parts[index].part.offset};
  pool_.submit(tensor.current->priority, [this, &tensor, index, position] {
    const auto begin = Clock::now();
    Buffer payload;
    std::uint32_t flags = tensor.push_flags();
    std::exception_ptr error;
    try {
      encode_to(payload, flags, tensor, index, position);
      make_ready_to_go(tensor, index, payload, flags);
      if (tracer_.is_on()) note(Stage::kEncode, tensor, index, begin, payload.size_bytes());
    } catch (...) {
      error = std::current_exception();
    }
    codec_nanoseconds_ += static_cast<std::uint64_t>((Clock::now() - begin).count());
    loop_->post([this, &tensor, index, payload = std::move(payload), flags, error]() mutable {
      encoded(tensor, index, std::move(payload), flags, error);
    });
  });
}

/// In the pool.
void EngineThread::encode_to(Buffer& payload, std::uint32_t& flags, Tensor& tensor, std::size_t index,
                             const compress::Position& position) {
  const Part& part = tensor.parts[index].part;
  const auto& codec = tensor.codec();
  const auto residual = tensor.residual_of(part);
  if (!residual.empty() && tensor.has_before)
    std::ranges::copy(residual, tensor.residual_before.begin() + static_cast<std::ptrdiff_t>(part.offset));
  payload = buffers_.take(codec.max_encoded_size(part.count));
  if (codec.as_float64() != nullptr && !tensor.current->in64.empty()) {  // as it is
    const auto values = tensor.current->in64.subspan(part.offset, part.count);
    const auto bytes = payload.bytes();
    payload.truncate(values.size_bytes());
    if (residual.empty()) {
      std::memcpy(bytes.data(), values.data(), values.size_bytes());
    } else {
      std::memcpy(bytes.data(), with_leftover(values, residual).data(), values.size_bytes());
    }
    return;
  }
  std::vector<float> rounded;  // codecs work in float32
  if (!tensor.current->in64.empty()) {
    const auto exact = tensor.current->in64.subspan(part.offset, part.count);
    rounded = to_float32(exact);
    if (has_overflowed(exact, rounded)) notify_of_overflow(tensor);
  }
  const auto grad =
      rounded.empty() ? tensor.current->in.subspan(part.offset, part.count) : std::span<const float>(rounded);
  const auto scales = tensor.scales_known ? tensor.scales_of(part) : std::span<const compress::UnitScale>();
  const bool is_measured = codec.lossy() && compress::measures_share(position.step);
  compress::ShareSent share{is_measured ? compress::squares_of(grad, residual) : 0, 0, is_measured};
  const auto encoded_run =
      codec.lossy() || residual.empty()
          ? codec.encode(grad, residual, scales, payload.bytes(), position)
          : codec.encode(with_leftover(grad, residual), {}, scales, payload.bytes(), position);
  if (is_measured) {
    share.kept_squares = compress::squares_of({}, residual);
    tensor.parts[index].share = share;
  }
  payload.truncate(encoded_run.bytes);
  if (encoded_run.nonfinite) flags |= transport::kFlagNonfinite;
}

/// Once for each key. In the pool.
void EngineThread::notify_of_overflow(const Tensor& tensor) {
  {
    const std::lock_guard lock(notices_mutex_);
    if (!overflowed_.insert(tensor.id).second) return;
  }
  notify(
      fmt::format("key '{}': float64 values are beyond the largest float32, 3.4e38, in which codec {} works, "
                  "and count as "
                  "not finite; use codec none for this key, or smaller values",
                  tensor.spec.name, tensor.codec().name()));
}

/// What is done to a payload wherever it was encoded. In the pool.
void EngineThread::make_ready_to_go(const Tensor& tensor, std::size_t part, Buffer& payload,
                                    std::uint32_t& flags) {
  const auto& codec = tensor.codec();
  if (codec.wants_lossless_stage() && !in_order_)
    shorten(codec, tensor.parts[part].part.count, payload, flags, buffers_);
  if (codec.lossy() || messenger_.seals_payloads()) payload.seal();
}

void EngineThread::encoded(Tensor& tensor, std::size_t part, Buffer payload, std::uint32_t flags,
                           std::exception_ptr error) {
  if (error || tensor.error) return job_done(tensor, error);
  --tensor.jobs;
  if (--tensor.parts_to_take == 0 && tensor.current->verb == Verb::kPush) tensor.current->taken.succeed();
  send(tensor, part, Kind::kPush, std::move(payload), flags);
}

FrameHeader EngineThread::header_of(const Tensor& tensor, std::size_t index) const {
  const PartState& state = tensor.parts[index];
  FrameHeader header;
  header.kind = state.request;
  header.flags = state.flags;
  header.key = tensor.id;
  header.offset = state.part.offset;
  header.count = state.part.count;
  header.priority = tensor.current->priority;
  header.step = kNoStep - tensor.pulls;
  header.content = static_cast<std::uint8_t>(content_of_request(tensor, state));
  if (state.request == Kind::kReadState || state.request == Kind::kWriteState) {
    header.content = static_cast<std::uint8_t>(tensor.current->kept);
    if (state.request == Kind::kWriteState && tensor.current->kept == Kept::kOptimizer)
      header.step = tensor.current->number;
  }
  if (state.request == Kind::kInit && !tensor.current->in64.empty())
    header.dtype = static_cast<std::uint8_t>(Dtype::kFloat64);
  if (state.request == Kind::kPush) {
    header.codec = static_cast<std::uint8_t>(tensor.compression->codec->wire_id());
    header.codec_parameters = tensor.compression->codec->wire_parameters();
    header.dtype = static_cast<std::uint8_t>(tensor.dtype_of_push());
    header.reply = static_cast<std::uint8_t>(tensor.compression->reply);
    header.step = tensor.step - 1;
    header.program_step = tensor.current->program_step;
  }
  return header;
}

void EngineThread::send(Tensor& tensor, std::size_t index, Kind kind, Buffer payload, std::uint32_t flags) {
  PartState& state = tensor.parts[index];
  state.request = kind;
  state.flags = flags;
  state.payload = std::move(payload);
  if (kind == Kind::kPush) encoded_bytes_ += state.payload.size_bytes();
  state.answered = false;
  state.is_held = false;
  state.brought_floats = false;
  state.resends = 0;
  state.asked = Clock::now();
  state.awaited.clear();
  if (failover_.has_left(state.part.server)) {  // posted: our caller is not done with this tensor
    return fail(std::make_exception_ptr(transport::TransportError(failover_.describe(state.part.server))));
  }
  Frame frame{header_of(tensor, index), state.payload.share()};
  if (!in_order_ || kind != Kind::kPush) return outbox_.add(state.part.server, std::move(frame));
  for (Frame& next : in_order_->add(tensor.current->number, index, std::move(frame)))
    outbox_.add(state.part.server, std::move(next));
}

void EngineThread::flush() {
  try {
    outbox_.flush();
  } catch (const std::exception&) {
    fail_all(std::current_exception());
  }
}

// ------------------------------------------------------------------------------------- operations end

void EngineThread::job_done(Tensor& tensor, std::exception_ptr error) {
  --tensor.jobs;
  const bool pulls = tensor.current->verb == Verb::kPull;
  if (error && !failure_ && !pulls) return fail_all(error);  // a round that others share is lost
  part_done(tensor, error);
}

void EngineThread::part_done(Tensor& tensor, std::exception_ptr error) {
  if (error && !tensor.error) tensor.error = error;
  if (tensor.parts_left > 0) --tensor.parts_left;
  if (tensor.jobs > 0 || (tensor.parts_left > 0 && !tensor.error)) return;
  if (!tensor.error && tensor.current->device && tensor.current->device->lands) return lift(tensor);
  finish(tensor, tensor.error);
}

void EngineThread::finish(Tensor& tensor, std::exception_ptr error) {
  Operation operation = std::move(*tensor.current);
  tensor.current.reset();
  for (PartState& state : tensor.parts) {
    state.answered = true;
    state.payload = {};
  }
  if (error) tensor.forget_weight();  // some of it may have come; servers think that all of it has
  const bool pushed = operation.verb == Verb::kPush || operation.verb == Verb::kPushPull;
  if (pushed && !error) {
    tensor.value_current = operation.verb == Verb::kPush && !options_.at_once;  // else others push meanwhile
    tensor.scales_known = tensor.compression->codec->agrees_scales() && is_in_force(tensor) &&
                          std::ranges::none_of(tensor.parts, &PartState::brought_floats);
    if (tensor.has_leftover() && is_all_sent(tensor.residual)) tensor.residual = {};
  }
  active_.erase(&tensor);
  ahead_bytes_ -= operation.ahead_bytes;
  if (error) {
    operation.taken.fail(error);
    operation.done.fail(error);
  } else {
    operation.done.succeed();
  }
  start_next(tensor);
  if (!active_.empty()) return;
  for (const Ticket& ticket : std::exchange(waiting_idle_, {})) ticket.succeed();
}

void EngineThread::fail_all(std::exception_ptr error) {
  if (failure_) return;
  failure_ = error;
  keep_failure_text();
  if (rounds_.on_failure) rounds_.on_failure(error);
  mail_.fail_all(error);
  rows_.fail_all(error);
  commands_.fail_all(error);
  for (auto& tensor : tensors_) {
    tensor->held_count = 0;
    for (const Operation& operation : std::exchange(tensor->waiting, {})) {
      ahead_bytes_ -= operation.ahead_bytes;
      operation.taken.fail(error);
      operation.done.fail(error);
    }
  }
  for (Tensor* tensor : std::vector<Tensor*>(active_.begin(), active_.end())) {
    tensor->error = error;
    for (PartState& state : tensor->parts) state.answered = true;
    if (tensor->jobs == 0) finish(*tensor, error);
  }
}

}  // namespace gradwire::kvstore
