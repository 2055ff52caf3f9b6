// What must be equal on all workers, compared by the texts that they have exchanged, and which workers fail
// if they differ.
//
// In the first generation of a job all fail together. In a later generation, rank 0 was there before, and a
// worker that differs from it is new. It alone fails, and leaves. The others continue until they get
// MembershipChanged.
//
// Threading: as the exchange before it; never blocks.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/messenger.h"

namespace gradwire::kvstore {

/// Gives a worker's blob to all, and returns every worker's in rank order.
using Meet = std::function<std::vector<std::string>(std::string_view name, std::string_view blob)>;

/// What a worker gives to an exchange in place of its blob when its own call is wrong. The others, which
/// would wait for it, get the reason.
std::string refusal(const std::string& text);

/// Throws std::invalid_argument with what the first of them has refused, and by which rank. Blobs by rank.
void require_no_refusal(std::span<const std::string> blobs);

/// Throws what require_same_keys() throws.
void agree_on_keys(transport::Messenger& messenger, std::vector<std::string> texts_by_rank);

/// Throws what require_same_settings() throws.
void agree_on_settings(transport::Messenger& messenger, const std::string& what,
                       std::vector<std::string> texts_by_rank);

}  // namespace gradwire::kvstore
