// Updater changes a weight by a round's summed gradient, on the Server. Declared by name and numbers, never
// pickled.
//
// Threading: one Updater belongs to one Server thread.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace gradwire::kvstore {

/// What set_optimizer() takes: "sgd learning_rate=0.1 momentum=0.9".
struct OptimizerSpec {
  std::string name;
  std::vector<std::pair<std::string, double>> parameters;
};

OptimizerSpec parse_optimizer(const std::string& text);

class Updater {
 public:
  virtual ~Updater() = default;
  /// Applies gradient to weight. state is this weight's own memory between rounds, empty at first.
  virtual void update(std::span<float> weight, std::span<const float> gradient,
                      std::vector<float>& state) const = 0;
};

/// Makes "test" (w += rescale_grad * g, MXNet 1.9's) or "sgd" (MXNet's: g' = clip(rescale_grad * g) + wd * w,
/// m = momentum * m - learning_rate * g', w += m). Throws std::invalid_argument naming the valid ones.
std::unique_ptr<Updater> make_updater(const OptimizerSpec& spec);

}  // namespace gradwire::kvstore
