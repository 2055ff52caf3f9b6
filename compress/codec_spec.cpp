// The text form of a CodecSpec: name[:parameter=value[,parameter=value...]].
#include <stdexcept>
#include <utility>

#include "compress/codecs.h"
#include "compress/payload/parameters.h"

namespace gradwire::compress {
namespace {

Parameter parse_parameter(std::string_view codec, std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0 || equals + 1 == text.size()) {
    throw std::invalid_argument(std::string(codec) + ": \"" + std::string(text) +
                                "\" is not parameter=value, as in 2bit:threshold=0.5,nonfinite=skip");
  }
  const std::string_view value = text.substr(equals + 1);
  double number = 0;
  if (parse_number(value, number)) return {std::string(text.substr(0, equals)), number};
  return {std::string(text.substr(0, equals)), std::string(value)};
}

}  // namespace

CodecSpec parse_spec(std::string_view text) {
  const std::size_t colon = text.find(':');
  CodecSpec spec{std::string(text.substr(0, colon)), {}};
  if (spec.name.empty()) {
    throw std::invalid_argument("codec \"" + std::string(text) +
                                "\" has no name, expected e.g. 2bit:threshold=0.5,nonfinite=skip");
  }
  if (colon == std::string_view::npos) return spec;
  for (std::string_view rest = text.substr(colon + 1);;) {
    const std::size_t comma = rest.find(',');
    spec.parameters.push_back(parse_parameter(spec.name, rest.substr(0, comma)));
    if (comma == std::string_view::npos) return spec;
    rest.remove_prefix(comma + 1);
  }
}

std::string canonical_spec(const CodecSpec& spec) {
  const CodecSpec full = make(spec)->spec();
  std::string text = full.name;
  char separator = ':';
  for (const Parameter& parameter : full.parameters) {
    text += separator + parameter.name + "=" + parameter_text(parameter.value);
    separator = ',';
  }
  return text;
}

}  // namespace gradwire::compress
