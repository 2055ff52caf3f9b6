#include "fusion/schedule_bound.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <random>
#include <vector>

namespace gradwire::fusion {
namespace {

constexpr std::size_t kLayers = 4;

// Every schedule there is, by trying: in each unit of time the wire carries a unit of any layer whose
// gradient is ready, or rests. With whole seconds no schedule gains from switching within one. Time 0 is the
// start of backward; the next one begins when the last layer's forward ends.
class AllSchedules {
 public:
  AllSchedules(const std::array<LayerLoad, kLayers>& layers, NextForward next)
      : layers_(layers), next_(next) {
    int ready = 0;
    for (std::size_t i = kLayers; i-- > 0;) ready_[i] = ready += static_cast<int>(layers[i].backward_seconds);
  }

  int best() {
    State start;
    for (std::size_t i = 0; i < kLayers; ++i) start.left[i] = static_cast<int>(layers_[i].wire_seconds);
    start.forward_free = ready_[0];
    return best(start);
  }

 private:
  struct State {
    int now = 0;
    std::array<int, kLayers> left{};  ///< units of wire
    std::size_t forward = 0;          ///< next layer to go forward
    int forward_free = 0;             ///< when it may begin, if its sum is there
    auto operator<=>(const State&) const = default;
  };

  bool has_sum(const State& state) const {
    const auto done = [](int left) { return left == 0; };
    return next_ == NextForward::kPerLayer
               ? done(state.left[state.forward]) && state.now >= ready_[state.forward]
               : std::ranges::all_of(state.left, done);
  }

  // Forward goes on as soon as it may: to wait longer gains nothing.
  void go_forward(State& state) const {
    while (state.forward < kLayers && has_sum(state)) {
      const int begins = std::max(state.forward_free, state.now);
      state.forward_free = begins + static_cast<int>(layers_[state.forward].forward_seconds);
      ++state.forward;
    }
  }

  int best(State state) {
    go_forward(state);
    if (state.forward == kLayers) return state.forward_free;
    const auto [found, is_new] = known_.try_emplace(state, 0);
    if (!is_new) return found->second;
    State rests = state;
    ++rests.now;
    // Once all gradients are ready, resting only costs, and would go on for ever.
    int least = state.now < ready_[0] ? best(rests) : std::numeric_limits<int>::max();
    for (std::size_t i = 0; i < kLayers; ++i) {
      if (state.left[i] == 0 || state.now < ready_[i]) continue;
      State sent = rests;
      --sent.left[i];
      least = std::min(least, best(sent));
    }
    return known_[state] = least;
  }

  std::array<LayerLoad, kLayers> layers_;
  NextForward next_;
  std::array<int, kLayers> ready_{};
  std::map<State, int> known_;
};

TEST(ScheduleBound, IsTheBestOfAllSchedulesOfFourLayers) {
  std::mt19937 random(7);
  std::uniform_int_distribution<int> seconds(0, 3);
  for (int model = 0; model < 150; ++model) {
    std::array<LayerLoad, kLayers> layers;
    for (LayerLoad& layer : layers) {
      layer = {static_cast<double>(seconds(random)), static_cast<double>(seconds(random)),
               static_cast<double>(seconds(random))};
    }
    for (const NextForward next : {NextForward::kPerLayer, NextForward::kDrained}) {
      EXPECT_EQ(least_step_seconds(layers, next), AllSchedules(layers, next).best()) << "model " << model;
    }
  }
}

TEST(ScheduleBound, IsComputeWhereNothingIsSent) {
  const std::vector<LayerLoad> layers{{1, 2, 0}, {3, 4, 0}};
  EXPECT_EQ(least_step_seconds(layers, NextForward::kPerLayer), 10);
  EXPECT_EQ(least_step_seconds(layers, NextForward::kDrained), 10);
}

// The wire begins when the last layer is ready, and is never idle again.
TEST(ScheduleBound, IsTheWireWhereComputeIsNothing) {
  const std::vector<LayerLoad> layers{{0, 0, 5}, {0, 1, 7}, {0, 1, 9}};
  EXPECT_EQ(least_step_seconds(layers, NextForward::kPerLayer), 22);
}

// The back layer's sum hides behind the front layer's forward; drained, it does not.
TEST(ScheduleBound, HidesTheBackLayersBehindTheForwardOfThoseBefore) {
  const std::vector<LayerLoad> layers{{4, 1, 2}, {4, 1, 3}};
  EXPECT_EQ(least_step_seconds(layers, NextForward::kPerLayer), 2 + 2 + 4 + 4);
  EXPECT_EQ(least_step_seconds(layers, NextForward::kDrained), 2 + 4 + 8);
}

}  // namespace
}  // namespace gradwire::fusion
