// What error texts suggest in the place of a word that is unknown.
//
// Threading: functions of their arguments alone.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace gradwire::compress {

/// The word nearest to `given` by edit distance, for error texts; empty where none is near.
std::string nearest(std::string_view given, std::span<const std::string_view> valid);

/// "a, b, c", for error texts.
std::string join(std::span<const std::string_view> words);

/// "did you mean a? ", with the word that nearest() finds; empty where none is near enough to be what was
/// meant.
std::string did_you_mean(std::string_view given, std::span<const std::string_view> valid);

}  // namespace gradwire::compress
