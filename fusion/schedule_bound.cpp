#include "fusion/schedule_bound.h"

#include <algorithm>

namespace gradwire::fusion {

double least_step_seconds(std::span<const LayerLoad> layers, NextForward next) {
  double ready = 0;  // seconds from the start of backward
  for (const LayerLoad& layer : layers) ready += layer.backward_seconds;
  double now = ready;  // when the forward of the layer may begin
  double wire = 0;     // of this layer and those before it
  double arrived = 0;  // their sums
  double forward = 0;
  for (const LayerLoad& layer : layers) {
    wire += layer.wire_seconds;
    arrived = std::max(arrived, ready + wire);
    ready -= layer.backward_seconds;
    now = std::max(now, arrived) + layer.forward_seconds;
    forward += layer.forward_seconds;
  }
  return next == NextForward::kPerLayer ? now : arrived + forward;
}

}  // namespace gradwire::fusion
