// What became of an operation of a Collective, for whoever waits for it.
#pragma once

#include <algorithm>
#include <cstring>
#include <exception>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/transport/frames.h"
#include "transport/collective.h"

namespace gradwire::transport {

using Outcome = std::pair<Buffer, std::exception_ptr>;

inline std::future<Outcome> start(Collective& collective, Buffer values, std::optional<ElementType> type) {
  const auto promise = std::make_shared<std::promise<Outcome>>();
  const auto done = [promise](Buffer result, std::exception_ptr error) {
    promise->set_value({std::move(result), std::move(error)});
  };
  type ? collective.all_reduce(std::move(values), *type, done)
       : collective.all_gather(std::move(values), done);
  return promise->get_future();
}

template <typename T>
Buffer buffer_of(const std::vector<T>& values) {
  Buffer buffer = Buffer::allocate(values.size() * sizeof(T));
  std::memcpy(buffer.bytes().data(), values.data(), buffer.size_bytes());
  return buffer;
}

template <typename T>
std::vector<T> values_of(std::future<Outcome> outcome) {
  auto [buffer, error] = outcome.get();
  if (error) std::rethrow_exception(error);
  std::vector<T> values(buffer.size_bytes() / sizeof(T));
  std::ranges::copy(std::as_const(buffer).bytes(), std::as_writable_bytes(std::span(values)).begin());
  return values;
}

inline std::string error_of(std::future<Outcome> outcome) {
  return error_of([&] { values_of<std::byte>(std::move(outcome)); });
}

}  // namespace gradwire::transport
