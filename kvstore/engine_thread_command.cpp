// EngineThread: what every server is told, and what it says of having done it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <stdexcept>

#include "kvstore/engine_tensor.h"

namespace gradwire::kvstore {

using transport::Buffer;
using transport::Frame;
using transport::FrameHeader;
using transport::Kind;

Ticket EngineThread::command(std::string text, std::uint64_t* place) {
  Ticket done;
  loop_->post([this, done, text = std::move(text), place]() mutable {
    if (failure_) return done.fail(failure_);
    const auto now = Clock::now();
    command_ = Command{done, std::move(text), ++commands_, place, {}, now, now};
    for (std::uint32_t rank = 0; rank < messenger_.world().servers; ++rank) command_->servers.insert(rank);
    for (const std::uint32_t rank : command_->servers) send_command(rank);
  });
  return done;
}

void EngineThread::send_command(std::uint32_t server) {
  Buffer payload = Buffer::allocate(command_->text.size());
  std::memcpy(payload.bytes().data(), command_->text.data(), command_->text.size());
  FrameHeader header;
  header.kind = Kind::kCommand;
  header.key = command_->number;
  outbox_.add(server, {header, std::move(payload)});
}

/// Whether a frame is about a command: one that is done already is answered again, since it may be sent
/// again.
bool EngineThread::take_acknowledgement(transport::Node from, const Frame& frame) {
  const FrameHeader& header = frame.header;
  if (header.count != 0 || (header.kind != Kind::kAck && header.kind != Kind::kError)) return false;
  if (!command_ || header.key != command_->number) return true;
  if (header.kind == Kind::kError)
    command_->done.fail(std::make_exception_ptr(std::invalid_argument(payload_text(frame))));
  if (from.rank == 0 && command_->place != nullptr && !command_->done.done()) *command_->place = header.step;
  command_->servers.erase(from.rank);
  if (!command_->servers.empty()) return true;
  command_->done.succeed();
  command_.reset();
  return true;
}

void EngineThread::tick_command(Clock::time_point now) {
  if (!command_) return;
  if (now - command_->began >= options_.slow_abort) {
    return give_up(fmt::format("servers {} have not carried out '{}' within {} s",
                               fmt::join(command_->servers, ", "), command_->text,
                               options_.slow_abort.count() / 1000));
  }
  if (now - command_->asked < options_.retry_timeout) return;
  command_->asked = now;
  for (const std::uint32_t rank : command_->servers) send_command(rank);
}

}  // namespace gradwire::kvstore
