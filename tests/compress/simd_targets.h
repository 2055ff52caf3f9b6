// Runs a check once on every instruction set that this machine has and Highway compiled.
#pragma once

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <cstdint>

namespace gradwire::compress {

template <typename Check>
void on_every_target(const Check& check) {
  std::int64_t targets = hwy::SupportedTargets() | HWY_SCALAR;
  for (; targets != 0; targets &= targets - 1) {
    const std::int64_t target = targets & -targets;
    if ((target & HWY_TARGETS) == 0) continue;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    check();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace gradwire::compress
