#include "transport/decorators/logged_messenger.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

namespace gradwire::transport {
namespace {

/// What a frame is called, and what its key is the number of.
struct Words {
  Kind of{};
  std::string_view kind, thing = "key";
};

constexpr Words kWords[] = {
    {Kind::kInit, "init"},
    {Kind::kPush, "push"},
    {Kind::kReply, "reply"},
    {Kind::kPull, "pull"},
    {Kind::kValue, "value"},
    {Kind::kProbe, "probe"},
    {Kind::kHeld, "held"},
    {Kind::kMissing, "missing"},
    {Kind::kCommand, "command", "number"},
    {Kind::kAck, "ack"},
    {Kind::kError, "error"},
    {Kind::kPost, "post", "collective"},
    {Kind::kFetch, "fetch", "collective"},
    {Kind::kBlob, "blob", "collective"},
    {Kind::kReceipt, "receipt", "collective"},
    {Kind::kDelivered, "delivered", "collective"},
    {Kind::kClock, "clock", "number"},
    {Kind::kTime, "time", "number"},
    {Kind::kReadState, "read state"},
    {Kind::kState, "state"},
    {Kind::kWriteState, "write state"},
    {Kind::kMirrored, "mirrored", "log"},
    {Kind::kRowInit, "row init", "table"},
    {Kind::kRowPush, "row push", "table"},
    {Kind::kRowPull, "row pull", "table"},
    {Kind::kRowAck, "row ack", "table"},
    {Kind::kRowReply, "row reply", "table"},
    {Kind::kRowHeld, "row held", "table"},
    {Kind::kRowMissing, "row missing", "table"},
    {Kind::kRowReadState, "row read state", "table"},
    {Kind::kRowState, "row state", "table"},
    {Kind::kRowWriteState, "row write state", "table"},
};

Words words_of(Kind kind) {
  const auto* const found = std::ranges::find(kWords, kind, &Words::of);
  return found == std::end(kWords) ? Words{kind, "frame"} : *found;
}

/// "worker 0 sends push of key 3 step 7 offset 0, 65536 bytes, to server 1". Steps that count down are of no
/// round.
std::string line_of(Node self, const Frame& frame, std::string_view verb, std::string_view way, Node peer) {
  const FrameHeader& header = frame.header;
  const Words words = words_of(header.kind);
  std::string line = to_string(self);
  line.append(" ").append(verb).append(" ").append(words.kind).append(" of ").append(words.thing).append(" ");
  line += std::to_string(header.key);
  if (header.step >> 63 == 0) line += " step " + std::to_string(header.step);
  line += " offset " + std::to_string(header.offset);
  line += ", " + std::to_string(frame.payload.size_bytes()) + " bytes, ";
  return line.append(way).append(" ").append(to_string(peer));
}

}  // namespace

LoggedMessenger::LoggedMessenger(std::unique_ptr<Messenger> messenger, TakeLine take)
    : ForwardingMessenger(std::move(messenger)), take_(std::move(take)), self_(self()) {}

void LoggedMessenger::send(Node to, std::vector<Frame> frames) {
  // Before the frames are handed on: their payloads are gone afterwards, and an answer could be logged first.
  for (const Frame& frame : frames) take_(line_of(self_, frame, "sends", "to", to));
  ForwardingMessenger::send(to, std::move(frames));
}

void LoggedMessenger::on_frames(Node from, std::vector<Frame> frames) {
  for (const Frame& frame : frames) take_(line_of(self_, frame, "hears", "from", from));
  ForwardingMessenger::on_frames(from, std::move(frames));
}

std::unique_ptr<Messenger> logged(std::unique_ptr<Messenger> messenger, const TakeLine& take) {
  if (!take) return messenger;
  return std::make_unique<LoggedMessenger>(std::move(messenger), take);
}

void MessageLines::add(std::string line) {
  const std::lock_guard lock(mutex_);
  // Nobody may be taking them, and a node sends thousands of frames a second.
  if (lines_.size() == most_) {
    ++left_out_;
    return;
  }
  lines_.push_back(std::move(line));
}

std::vector<std::string> MessageLines::take() {
  const std::lock_guard lock(mutex_);
  if (left_out_ > 0)
    lines_.push_back("and " + std::to_string(std::exchange(left_out_, 0)) +
                     " messages more, of which no line was kept");
  return std::exchange(lines_, {});
}

}  // namespace gradwire::transport
