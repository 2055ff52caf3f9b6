// CodecEntry is a codec's row in the table (codecs.h), which its own header declares.
//
// Threading: values.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "compress/codec.h"

namespace gradwire::compress {

struct ParameterInfo {
  std::string_view name;
  std::string_view default_value;  ///< as written in a spec, e.g. "0.5"
  std::string_view help;           ///< what it does, its unit and its valid values
};

/// One row: everything that the conformance suite, the fuzzer, the bench and Python's listing need.
struct CodecEntry {
  std::string_view name;
  WireId wire_id;
  std::string_view summary;
  std::span<const ParameterInfo> parameters;
  std::unique_ptr<Codec> (*make)(const CodecSpec&);
  std::unique_ptr<Codec> (*from_wire)(const WireParameters&);
};

}  // namespace gradwire::compress
