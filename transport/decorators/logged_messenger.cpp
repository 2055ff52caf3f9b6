#include "transport/decorators/logged_messenger.h"

#include <string_view>
#include <utility>

namespace gradwire::transport {
namespace {

/// What a frame is called, and what its key is the number of.
struct Words {
  std::string_view kind, thing = "key";
};

Words words_of(Kind kind) {
  switch (kind) {
    case Kind::kInit:
      return {"init"};
    case Kind::kPush:
      return {"push"};
    case Kind::kReply:
      return {"reply"};
    case Kind::kPull:
      return {"pull"};
    case Kind::kValue:
      return {"value"};
    case Kind::kProbe:
      return {"probe"};
    case Kind::kHeld:
      return {"held"};
    case Kind::kMissing:
      return {"missing"};
    case Kind::kCommand:
      return {"command", "number"};
    case Kind::kAck:
      return {"ack"};
    case Kind::kError:
      return {"error"};
    case Kind::kPost:
      return {"post", "collective"};
    case Kind::kFetch:
      return {"fetch", "collective"};
    case Kind::kLetter:
      return {"letter", "collective"};
    case Kind::kReceipt:
      return {"receipt", "collective"};
    case Kind::kDelivered:
      return {"delivered", "collective"};
    case Kind::kClock:
      return {"clock", "number"};
    case Kind::kTime:
      return {"time", "number"};
    case Kind::kReadState:
      return {"read state"};
    case Kind::kState:
      return {"state"};
    case Kind::kWriteState:
      return {"write state"};
    case Kind::kMirrored:
      return {"mirrored", "log"};
    case Kind::kRowInit:
      return {"row init", "table"};
    case Kind::kRowPush:
      return {"row push", "table"};
    case Kind::kRowPull:
      return {"row pull", "table"};
    case Kind::kRowAck:
      return {"row ack", "table"};
    case Kind::kRowReply:
      return {"row reply", "table"};
    case Kind::kRowHeld:
      return {"row held", "table"};
    case Kind::kRowMissing:
      return {"row missing", "table"};
    case Kind::kRowReadState:
      return {"row read state", "table"};
    case Kind::kRowState:
      return {"row state", "table"};
    case Kind::kRowWriteState:
      return {"row write state", "table"};
    default:
      return {"frame"};
  }
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
    : PassingMessenger(std::move(messenger)), take_(std::move(take)), self_(self()) {}

void LoggedMessenger::send(Node to, std::vector<Frame> frames) {
  for (const Frame& frame : frames) take_(line_of(self_, frame, "sends", "to", to));
  PassingMessenger::send(to, std::move(frames));
}

void LoggedMessenger::on_frames(Node from, std::vector<Frame> frames) {
  for (const Frame& frame : frames) take_(line_of(self_, frame, "hears", "from", from));
  PassingMessenger::on_frames(from, std::move(frames));
}

std::unique_ptr<Messenger> logged(std::unique_ptr<Messenger> messenger, const TakeLine& take) {
  if (!take) return messenger;
  return std::make_unique<LoggedMessenger>(std::move(messenger), take);
}

void MessageLines::add(std::string line) {
  const std::lock_guard lock(mutex_);
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
