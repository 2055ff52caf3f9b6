#include "kvstore/engine/first_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvstore/runtime/pieces.h"

namespace gradwire::kvstore {
namespace {

/// What root gives as own; for those who answer themselves. In pieces: one exchange of 400 MB kept rank 0
/// from sending heartbeats for longer than ranks wait for them.
std::vector<std::byte> value_of(EngineContext& context, std::uint32_t root, std::span<const std::byte> own) {
  std::vector<std::byte> value(own.size());
  for (std::size_t at = 0; at < own.size(); at += kPieceBytes) {
    const auto piece = own.subspan(at, std::min(kPieceBytes, own.size() - at));
    // The others' values are ignored, and need not be sent.
    const std::string_view given(reinterpret_cast<const char*>(piece.data()),
                                 context.rank() == root ? piece.size() : 0);
    const std::string blob = std::move(context.meeting.all_gather("init value", given)[root]);
    if (blob.size() != piece.size())
      throw transport::TransportError(
          fmt::format("init: worker {} gave {} bytes, expected {}", root, blob.size(), piece.size()));
    std::memcpy(value.data() + at, blob.data(), blob.size());
  }
  return value;
}

/// Returns once servers have them.
void store(const EngineContext& context, std::span<const FirstValue> values) {
  std::vector<Submission> submissions;
  std::vector<Ticket> stored;
  for (const FirstValue& first : values) {
    auto& [key, operation] = submissions.emplace_back();
    key = first.key;
    operation.verb = Operation::Verb::kInit;
    operation.in = first.value;
    stored.push_back(operation.done);
  }
  context.rounds.job().submit(std::move(submissions));
  wait_all(stored);
}

/// Where every rank answers itself, it needs root's values for that.
void store_roots(EngineContext& context, std::span<const FirstValue> values, std::uint32_t root) {
  std::vector<std::byte> own;
  std::vector<std::size_t> begins;
  for (const FirstValue& first : values) {
    // Values are read in place as floats or doubles, so each begins at a multiple of the larger alignment.
    begins.push_back((own.size() + alignof(double) - 1) / alignof(double) * alignof(double));
    own.resize(begins.back());
    const auto bytes = first.value.bytes();
    own.insert(own.end(), bytes.begin(), bytes.end());
  }
  const auto roots = value_of(context, root, own);
  std::vector<FirstValue> given;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const ConstArrayView own_value = values[i].value;
    const auto bytes = std::span(roots).subspan(begins[i], own_value.bytes().size());
    given.push_back({values[i].key, {own_value.type(), bytes}});
  }
  store(context, given);
}

}  // namespace

void store_first_values(EngineContext& context, std::span<const FirstValue> values, std::uint32_t root) {
  for (const FirstValue& first : values) {
    context.keys.require_array("init", first.key, first.value);
    if (!first.value.is_float32() && !first.value.is_float64()) {
      throw std::invalid_argument(fmt::format("init: key '{}' was given as {}; give float32",
                                              context.keys.spec(first.key).name,
                                              name_of(first.value.type())));
    }
  }
  if (root >= context.workers()) {
    throw std::invalid_argument(
        fmt::format("init: root={} is not a worker rank; expected 0 to {}", root, context.workers() - 1));
  }
  Hierarchy* const hierarchy = context.rounds.hierarchy();
  const auto bytes_of = [](const FirstValue& first) {
    return first.value.bytes().size() + transport::kHeaderBytes;
  };
  for (const auto piece : in_pieces(values, bytes_of)) {
    if (context.in_order) {
      store_roots(context, piece, root);
    } else if (context.rank() == root) {
      hierarchy != nullptr ? hierarchy->store_upstream(piece) : store(context, piece);
    }
  }
  // One exchange more: leaders fetch from the job's servers, where the root must have stored before.
  if (hierarchy != nullptr) {
    context.meeting.all_gather("init", "");
    std::vector<KeyId> keys;
    for (const FirstValue& first : values) keys.push_back(first.key);
    if (hierarchy->leads()) hierarchy->fetch_first_values(keys);
  }
  // Nobody pulls before the server that answers it has the values.
  context.meeting.all_gather("init", "");
}

}  // namespace gradwire::kvstore
