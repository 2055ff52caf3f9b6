#include "kvstore/wire/agreement.h"

#include <fmt/format.h>

#include <functional>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "kvstore/wire/key.h"

namespace gradwire::kvstore {
namespace {

/// No blob of a call that is not refused begins so.
constexpr std::string_view kRefusal{"\0refused\n", 9};

using Comparison = std::function<void(std::span<const std::string>)>;

void agree(transport::Messenger& messenger, std::vector<std::string> texts, const Comparison& compare) {
  if (messenger.world().generation == 1) return compare(texts);
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (rank != messenger.self().rank) texts[rank] = texts[0];
  }
  try {
    compare(texts);
  } catch (const std::invalid_argument& difference) {
    messenger.regroup(fmt::format("came later and does not fit: {}", difference.what()),
                      transport::Parting::kLeaves);
    throw;
  }
}

}  // namespace

std::string refusal(const std::string& text) { return std::string(kRefusal) + text; }

void require_no_refusal(std::span<const std::string> blobs) {
  for (std::size_t rank = 0; rank < blobs.size(); ++rank) {
    if (!blobs[rank].starts_with(kRefusal)) continue;
    throw std::invalid_argument(fmt::format("worker {}: {}", rank, blobs[rank].substr(kRefusal.size())));
  }
}

void agree_on_keys(transport::Messenger& messenger, std::vector<std::string> texts) {
  agree(messenger, std::move(texts),
        [](std::span<const std::string> by_rank) { require_same_keys(by_rank); });
}

void agree_on_settings(transport::Messenger& messenger, const std::string& what,
                       std::vector<std::string> texts) {
  agree(messenger, std::move(texts),
        [&](std::span<const std::string> by_rank) { require_same_settings(what, by_rank); });
}

}  // namespace gradwire::kvstore
