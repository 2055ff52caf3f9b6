// What all workers must give alike, compared by the texts that they have exchanged, and who fails where they
// differ.
//
// In the first generation of a job all fail together. In a later one, of a job that goes on, rank 0 was there
// before, and whoever differs from it is new: it alone fails, and leaves; for the others nothing is wrong
// until they hear of that (MembershipChanged). Threading: as the exchange before it; blocks nowhere.
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

/// What a worker gives to an exchange in the place of its blob when its own call is wrong: the others, which
/// would wait for it, hear why.
std::string refusal(const std::string& text);

/// Throws std::invalid_argument with what the first of them has refused, and by which rank. Blobs by rank.
void require_no_refusal(std::span<const std::string> blobs);

/// Throws what require_same_keys() throws.
void agree_on_keys(transport::Messenger& messenger, std::vector<std::string> texts_by_rank);

/// Throws what require_same_settings() throws.
void agree_on_settings(transport::Messenger& messenger, const std::string& what,
                       std::vector<std::string> texts_by_rank);

}  // namespace gradwire::kvstore
