#include "kvstore/options.h"

namespace gradwire::kvstore {

ServerOptions hosted_server(const EngineOptions& options) {
  return {.credit_bytes = options.credit_bytes, .fusion_bytes = options.fusion_bytes, .trace = options.trace};
}

}  // namespace gradwire::kvstore
