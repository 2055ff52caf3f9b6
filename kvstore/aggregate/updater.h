// Updater changes a weight by a round's summed gradient, on the Server. Declared by name and numbers, never
// pickled.
//
// Threading: one Updater belongs to one Server thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace gradwire::kvstore {

/// What set_optimizer() takes: "sgd learning_rate=0.1 momentum=0.9".
struct OptimizerSpec {
  std::string name;
  std::vector<std::pair<std::string, double>> parameters;
};

OptimizerSpec parse_optimizer(const std::string& text);

/// Whether that is an optimizer with a momentum.
bool has_momentum(const std::string& text);

/// As it is called today what a file of version 1 calls sgd and has moments of: mxnet_sgd.
std::string renamed_since_version_1(const std::string& text);

/// A weight's own memory between rounds.
struct OptimizerState {
  std::vector<float> moments;  ///< of each element, one kind after the other; empty before the first round
  std::uint64_t steps = 0;     ///< rounds so far
  bool operator==(const OptimizerState&) const = default;
};

class Updater {
 public:
  virtual ~Updater() = default;
  /// Applies gradient to weight. Requires equal sizes, and one state per weight.
  virtual void update(std::span<float> weight, std::span<const float> gradient,
                      OptimizerState& state) const = 0;
  /// Kinds of moments that update() keeps of each element, once it keeps any.
  virtual std::size_t moment_kinds() const = 0;
};

/// Makes an optimizer. With g = clip(rescale_grad * gradient) in all but "test":
///   test     w += rescale_grad * gradient (MXNet 1.9's)
///   sgd      d = g + wd * w; m = momentum * m + d; w -= learning_rate * m, or with nesterov=1
///            w -= learning_rate * (d + momentum * m)
///   mxnet_sgd  m = momentum * m - learning_rate * d; w += m, or with nesterov=1
///            w += momentum * m - learning_rate * d: MXNet's sgd and nag. At a constant learning rate it is
///            sgd; a new rate does not change what the momentum has of earlier steps
///   adam     Kingma & Ba 2015, Algorithm 1, with wd * w added to g before it is clipped
///   adamw    Loshchilov & Hutter 2019, Algorithm 2: wd apart from the moments
///   adagrad  Duchi et al. 2011: w -= learning_rate * g / (sqrt(sum of g * g) + epsilon), with wd * w in g
/// sgd, adam, adamw and adagrad are torch.optim's SGD, Adam, AdamW and Adagrad; test and mxnet_sgd are MXNet
/// 1.9.1's test, sgd and nag, but that its nag decays m by the weight that it has just moved. MXNet's adam is
/// adam, but that it adds epsilon before the bias of v is corrected; its adagrad adds epsilon under the root,
/// and wd * w behind it.
///
/// Throws std::invalid_argument for unknown names, naming the valid ones, and for values out of range.
std::unique_ptr<Updater> make_updater(const OptimizerSpec& spec);

}  // namespace gradwire::kvstore
