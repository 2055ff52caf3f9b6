// What all workers must give alike, compared by the texts that they have exchanged, and who fails where they
// differ.
//
// In the first generation of a job all fail together. In a later one, of a job that goes on, rank 0 was there
// before, and whoever differs from it is new: it alone fails, and leaves; for the others nothing is wrong
// until they hear of that (MembershipChanged). Threading: as the exchange before it; blocks nowhere.
#pragma once

#include <string>
#include <vector>

#include "transport/messenger.h"

namespace gradwire::kvstore {

/// Throws what require_same_keys() throws.
void agree_on_keys(transport::Messenger& messenger, std::vector<std::string> texts_by_rank);

/// Throws what require_same_settings() throws.
void agree_on_settings(transport::Messenger& messenger, const std::string& what,
                       std::vector<std::string> texts_by_rank);

}  // namespace gradwire::kvstore
