// release_memory() frees what a vector holds.
//
// Threading: a pure function.
#pragma once

#include <vector>

namespace gradwire::kvstore {

/// Empties a vector and frees its memory, which clear() and `values = {}` both keep.
template <typename T>
void release_memory(std::vector<T>& values) {
  values = std::vector<T>();
}

}  // namespace gradwire::kvstore
