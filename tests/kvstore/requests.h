// What workers send to an Aggregator, and what it answers, without a server around it.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvstore/aggregate/aggregator.h"
#include "kvstore/wire/protocol.h"
#include "transport/frame.h"

namespace gradwire::kvstore {

using Answers = std::vector<Answer>;

inline transport::Buffer bytes_of(std::span<const float> values) {
  transport::Buffer buffer = transport::Buffer::allocate(values.size_bytes());
  std::ranges::copy(std::as_bytes(values), buffer.bytes().begin());
  return buffer;
}

inline std::vector<float> floats_of(const transport::Frame& frame) {
  std::vector<float> values(frame.payload.size_bytes() / sizeof(float));
  std::memcpy(values.data(), frame.payload.bytes().data(), frame.payload.size_bytes());
  return values;
}

inline std::string text_of(const transport::Frame& frame) {
  return {reinterpret_cast<const char*>(frame.payload.bytes().data()), frame.payload.size_bytes()};
}

inline transport::Frame request(transport::Kind kind, std::uint64_t step, std::span<const float> values,
                                std::uint32_t sender = 0) {
  transport::Frame frame;
  frame.header.kind = kind;
  frame.header.sender = {transport::Role::kWorker, sender};
  frame.header.key = 4;
  frame.header.step = step;
  frame.header.count = values.size();
  frame.payload = bytes_of(values);
  return frame;
}

inline Answers handle(Aggregator& aggregator, std::uint32_t worker, transport::Frame frame) {
  Answers answers;
  aggregator.handle(worker, std::move(frame), answers);
  return answers;
}

/// A command, as worker 0 gives it.
inline transport::Frame command(std::string_view text) {
  transport::Frame frame;
  frame.header.kind = transport::Kind::kCommand;
  frame.payload = transport::Buffer::allocate(text.size());
  std::ranges::copy(std::as_bytes(std::span(text)), frame.payload.bytes().begin());
  return frame;
}

}  // namespace gradwire::kvstore
