// Names the instruction set that the kernels were dispatched to on this processor, for `gradwire doctor` and
// reports.
#pragma once

#include <string>

namespace gradwire::compress {

/// E.g. "AVX3_DL", "AVX2", "SCALAR".
std::string simd_target();

}  // namespace gradwire::compress
