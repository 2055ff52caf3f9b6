#include "compress/payload/simd_target.h"

#include <hwy/highway.h>

namespace gradwire::compress {

std::string simd_target() {
  const auto supported = hwy::SupportedTargets() & HWY_TARGETS;
  return hwy::TargetName(supported & -supported);  // the lowest bit is the best target
}

}  // namespace gradwire::compress
