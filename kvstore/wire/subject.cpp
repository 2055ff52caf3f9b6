#include "kvstore/wire/subject.h"

#include "kvstore/wire/protocol.h"

namespace gradwire::kvstore {

using transport::FrameHeader;
using transport::Kind;

Subject subject_of_request(Kind kind) {
  switch (kind) {
    case Kind::kPost:
    case Kind::kFetch:
    case Kind::kReceipt:
      return Subject::kBlob;
    case Kind::kRowInit:
    case Kind::kRowPush:
    case Kind::kRowPull:
    case Kind::kRowReadState:
    case Kind::kRowWriteState:
      return Subject::kRows;
    case Kind::kCommand:
      return Subject::kCommand;
    default:
      return Subject::kTensor;
  }
}

Subject subject_of_answer(const FrameHeader& answer) {
  switch (answer.kind) {
    case Kind::kBlob:
    case Kind::kDelivered:
      return Subject::kBlob;
    case Kind::kRowAck:
    case Kind::kRowReply:
    case Kind::kRowHeld:
    case Kind::kRowMissing:
    case Kind::kRowState:
      return Subject::kRows;
    case Kind::kError:
      if (answer.content == static_cast<std::uint8_t>(Refusal::kBlob)) return Subject::kBlob;
      if (answer.content == static_cast<std::uint8_t>(Refusal::kRows)) return Subject::kRows;
      [[fallthrough]];
    case Kind::kAck:
      return answer.count == 0 ? Subject::kCommand : Subject::kTensor;  // a command has no elements
    default:
      return Subject::kTensor;
  }
}

}  // namespace gradwire::kvstore
