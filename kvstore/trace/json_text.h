// Text as a JSON string.
#pragma once

#include <string>
#include <string_view>

namespace gradwire::kvstore {

/// Returns text in quotes, with what JSON does not let stand in them escaped.
std::string json_text(std::string_view text);

}  // namespace gradwire::kvstore
