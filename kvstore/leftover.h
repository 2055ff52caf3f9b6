// What a lossy codec has left unsent when later values are sent without loss. It goes with the next values,
// and the residual is then zero. So a change of codec or reply loses nothing.
//
// Threading: pure functions.
#pragma once

#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include "kvstore/release_memory.h"

namespace gradwire::kvstore {

/// Adds the residual to values that are about to be sent as they are, and clears it. An element whose value
/// is not finite is sent unchanged and keeps its residual: its receiver drops it. Requires equal sizes.
template <typename Element>
void add_leftover(std::span<Element> values, std::span<float> residual) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) continue;
    values[i] += residual[i];
    residual[i] = 0;
  }
}

/// The same to a copy of the values.
template <typename Element>
std::vector<Element> with_leftover(std::span<const Element> values, std::span<float> residual) {
  std::vector<Element> sent(values.begin(), values.end());
  add_leftover<Element>(sent, residual);
  return sent;
}

/// Whether nothing is left in a residual.
bool is_all_sent(std::span<const float> residual);

/// As add_leftover(), of a residual that is given up once nothing is left.
template <typename Element>
void take_leftover(std::span<Element> values, std::vector<float>& residual) {
  add_leftover<Element>(values, residual);
  if (is_all_sent(residual)) release_memory(residual);
}

}  // namespace gradwire::kvstore
