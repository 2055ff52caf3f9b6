#include "kvstore/wire/async_policy.h"

#include <fmt/format.h>

#include <charconv>
#include <stdexcept>

namespace gradwire::kvstore {
namespace {

constexpr std::string_view kName = "at_once";
constexpr std::string_view kBound = " staleness_bound=";

}  // namespace

std::string to_string(const AsyncPolicy& policy) {
  if (!policy.staleness_bound) return std::string(kName);
  return fmt::format("{}{}{}", kName, kBound, *policy.staleness_bound);
}

AsyncPolicy parse_async_policy(std::string_view text) {
  std::string_view rest = text;
  const bool is_known = rest.starts_with(kName);
  if (is_known) rest.remove_prefix(kName.size());
  if (is_known && rest.empty()) return {};
  std::uint64_t bound = 0;
  if (is_known && rest.starts_with(kBound)) {
    rest.remove_prefix(kBound.size());
    const char* const end = rest.data() + rest.size();
    const auto [stopped, error] = std::from_chars(rest.data(), end, bound);
    if (error == std::errc() && stopped == end) return {bound};
  }
  throw std::invalid_argument(fmt::format(
      "rounds '{}' are not known; expected 'at_once' or 'at_once staleness_bound=4'", text.substr(0, 80)));
}

}  // namespace gradwire::kvstore
