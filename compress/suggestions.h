// Suggestions of error texts for an unknown word.
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

/// "did you mean a? ", with the word that nearest() finds; empty if none is near.
std::string did_you_mean(std::string_view given, std::span<const std::string_view> valid);

}  // namespace gradwire::compress
