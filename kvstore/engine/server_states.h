// ServerStates reads and writes what the job's servers keep of keys from round to round, part by part.
//
// Threading: any thread; each call waits for the servers.
// Failure: std::invalid_argument with a server's refusal, such as while a round is in progress.
#pragma once

#include <cstdint>
#include <vector>

#include "kvstore/wire/key.h"
#include "kvstore/wire/protocol.h"
#include "transport/buffer.h"

namespace gradwire::kvstore {

struct EngineContext;

/// A partition of the job's servers, and the elements of which key it is.
struct HeldPart {
  KeyId tensor = 0;  ///< as the thread of the job knows it
  std::size_t part = 0;
  KeyId key = 0;
  std::uint64_t offset = 0, count = 0;  ///< elements of the key
  std::uint64_t tensor_offset = 0;      ///< elements of the tensor
};

class ServerStates {
 public:
  explicit ServerStates(EngineContext& context) : context_(context) {}

  /// All parts of all keys and buckets.
  std::vector<HeldPart> parts() const;
  /// What a server keeps of a part (partition_state.h), or of it the optimizer's alone, which may be read
  /// while other workers' pushes of the next round wait for this one's.
  transport::Buffer read(const HeldPart& part, StateScope kept) const;
  /// Gives it that. number: of the optimizer's, above that of any before; one that is not changes nothing.
  void write(const HeldPart& part, StateScope kept, transport::Buffer state,
             std::uint64_t number = kNoStep) const;
  /// What a server has not sent yet of a part's replies; empty: nothing.
  std::vector<float> residual_of(const HeldPart& part) const;

 private:
  EngineContext& context_;
};

}  // namespace gradwire::kvstore
