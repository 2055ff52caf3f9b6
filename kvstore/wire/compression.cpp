#include "kvstore/wire/compression.h"

#include <fmt/format.h>

#include "compress/codecs.h"

namespace gradwire::kvstore {

std::string name_of(const Compression& compression) {
  return fmt::format("{} reply={}", compress::canonical_spec(compression.codec->spec()),
                     static_cast<int>(compression.reply));
}

}  // namespace gradwire::kvstore
