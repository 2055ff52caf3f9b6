// The first values of keys: those of one worker, which the servers then hold, or, where a library sums, each
// rank.
//
// Threading: a collective.
#pragma once

#include <cstdint>
#include <span>

#include "kvstore/engine/engine_context.h"
#include "kvstore/options.h"

namespace gradwire::kvstore {

/// Stores root's values as Engine::init() has it.
void store_first_values(EngineContext& context, std::span<const FirstValue> values, std::uint32_t root);

}  // namespace gradwire::kvstore
