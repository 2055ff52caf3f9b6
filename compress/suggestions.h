// What error texts suggest in the place of a word that is unknown.
//
// Threading: functions of their arguments alone.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace gradwire::compress {

/// "did you mean a? ", with the word that nearest() finds; empty where none is near enough to be what was
/// meant.
std::string did_you_mean(std::string_view given, std::span<const std::string_view> valid);

}  // namespace gradwire::compress
