#include "kvstore/aggregate/updater.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <sstream>
#include <stdexcept>

#include "compress/suggestions.h"

namespace gradwire::kvstore {
namespace {

using Parameters = std::map<std::string, double>;

float number(const Parameters& parameters, const char* name) {
  return static_cast<float>(parameters.at(name));
}

class TestUpdater final : public Updater {
 public:
  explicit TestUpdater(const Parameters& p) : rescale_(number(p, "rescale_grad")) {}

  void update(std::span<float> weight, std::span<const float> gradient, OptimizerState&) const override {
    for (std::size_t i = 0; i < weight.size(); ++i) weight[i] += rescale_ * gradient[i];
  }

  std::size_t moment_kinds() const override { return 0; }

 private:
  float rescale_;
};

/// What all real optimizers do to a gradient first.
class Preparation {
 public:
  explicit Preparation(const Parameters& p)
      : rescale_(number(p, "rescale_grad")), clip_(number(p, "clip_gradient")) {}

  float operator()(float gradient) const { return clipped(rescale_ * gradient); }

  /// With a weight's decay in what is clipped.
  float operator()(float gradient, float decay) const { return clipped(rescale_ * gradient + decay); }

 private:
  float clipped(float g) const { return clip_ > 0 ? std::clamp(g, -clip_, clip_) : g; }

  float rescale_, clip_;
};

/// Where the learning rate stands: outside the momentum, which is then one of gradients, or in each
/// gradient's part of it, as at MXNet.
enum class Momentum : std::uint8_t { kOfGradients, kOfSteps };

template <Momentum form>
class SgdUpdater final : public Updater {
 public:
  explicit SgdUpdater(const Parameters& p)
      : prepared_(p),
        learning_rate_(number(p, "learning_rate")),
        momentum_(number(p, "momentum")),
        wd_(number(p, "wd")),
        is_nesterov_(p.at("nesterov") != 0) {}

  void update(std::span<float> weight, std::span<const float> gradient,
              OptimizerState& state) const override {
    auto& m = state.moments;
    // Also in the middle of a job: the same optimizer may be given a momentum later, and goes on from its
    // state.
    if (momentum_ != 0 && m.empty()) m.assign(weight.size(), 0.0F);
    for (std::size_t i = 0; i < weight.size(); ++i) {
      const float g = prepared_(gradient[i]) + wd_ * weight[i];
      if (momentum_ == 0) {
        weight[i] -= learning_rate_ * g;
      } else if constexpr (form == Momentum::kOfGradients) {
        m[i] = momentum_ * m[i] + g;
        weight[i] -= learning_rate_ * (is_nesterov_ ? g + momentum_ * m[i] : m[i]);
      } else {
        const float step = learning_rate_ * g;
        m[i] = momentum_ * m[i] - step;
        weight[i] += is_nesterov_ ? momentum_ * m[i] - step : m[i];
      }
    }
  }

  std::size_t moment_kinds() const override { return 1; }

 private:
  Preparation prepared_;
  float learning_rate_, momentum_, wd_;
  bool is_nesterov_;
};

template <bool is_decay_apart>
class AdamUpdater final : public Updater {
 public:
  explicit AdamUpdater(const Parameters& p)
      : prepared_(p),
        learning_rate_(p.at("learning_rate")),
        beta1_(p.at("beta1")),
        beta2_(p.at("beta2")),
        epsilon_(number(p, "epsilon")),
        wd_(number(p, "wd")) {}

  void update(std::span<float> weight, std::span<const float> gradient,
              OptimizerState& state) const override {
    const std::size_t n = weight.size();
    if (state.moments.empty()) state.moments.assign(2 * n, 0.0F);
    const auto t = static_cast<double>(++state.steps);
    const auto step = static_cast<float>(learning_rate_ / (1 - std::pow(beta1_, t)));
    const auto root = static_cast<float>(std::sqrt(1 - std::pow(beta2_, t)));
    const auto kept1 = static_cast<float>(beta1_), new1 = static_cast<float>(1 - beta1_);
    const auto kept2 = static_cast<float>(beta2_), new2 = static_cast<float>(1 - beta2_);
    const auto shrink = static_cast<float>(1 - learning_rate_ * static_cast<double>(wd_));
    for (std::size_t i = 0; i < n; ++i) {
      const float g = is_decay_apart ? prepared_(gradient[i]) : prepared_(gradient[i], wd_ * weight[i]);
      // Before the step, so that the decay is of the weight that the gradient was taken at.
      if constexpr (is_decay_apart) weight[i] *= shrink;
      float& m = state.moments[i];
      float& v = state.moments[n + i];
      m = kept1 * m + new1 * g;
      v = kept2 * v + new2 * g * g;
      weight[i] -= step * (m / (std::sqrt(v) / root + epsilon_));
    }
  }

  std::size_t moment_kinds() const override { return 2; }

 private:
  Preparation prepared_;
  double learning_rate_, beta1_, beta2_;  // doubles: their powers are near 1
  float epsilon_, wd_;
};

class AdagradUpdater final : public Updater {
 public:
  explicit AdagradUpdater(const Parameters& p)
      : prepared_(p),
        learning_rate_(number(p, "learning_rate")),
        epsilon_(number(p, "epsilon")),
        wd_(number(p, "wd")) {}

  void update(std::span<float> weight, std::span<const float> gradient,
              OptimizerState& state) const override {
    if (state.moments.empty()) state.moments.assign(weight.size(), 0.0F);
    for (std::size_t i = 0; i < weight.size(); ++i) {
      const float g = prepared_(gradient[i]) + wd_ * weight[i];
      float& sum = state.moments[i];
      sum += g * g;
      weight[i] -= learning_rate_ * (g / (std::sqrt(sum) + epsilon_));
    }
  }

  std::size_t moment_kinds() const override { return 1; }

 private:
  Preparation prepared_;
  float learning_rate_, epsilon_, wd_;
};

/// A parameter, its default, and the values it may have: [least, below).
struct Parameter {
  std::string_view name;
  double value;
  double least = -std::numeric_limits<double>::infinity();
  double below = std::numeric_limits<double>::infinity();
};

struct Row {
  std::string_view name;
  std::vector<Parameter> parameters;
  std::unique_ptr<Updater> (*make)(const Parameters&);
};

template <typename T>
std::unique_ptr<Updater> make_as(const Parameters& parameters) {
  return std::make_unique<T>(parameters);
}

std::vector<Parameter> with_common(std::vector<Parameter> own) {
  // A clip_gradient that is not above 0 clips nothing, as at MXNet.
  own.insert(own.end(), {{"wd", 0.0, 0}, {"rescale_grad", 1.0}, {"clip_gradient", -1.0}});
  return own;
}

const std::vector<Row>& table() {
  const std::vector<Parameter> adam = {
      {"learning_rate", 0.001, 0}, {"beta1", 0.9, 0, 1}, {"beta2", 0.999, 0, 1}, {"epsilon", 1e-8, 0}};
  const std::vector<Parameter> sgd = {
      {"learning_rate", 0.01, 0}, {"momentum", 0.0, 0}, {"nesterov", 0.0, 0, 2}};
  static const std::vector<Row> rows = {
      {"test", {{"rescale_grad", 1.0}}, make_as<TestUpdater>},
      {"sgd", with_common(sgd), make_as<SgdUpdater<Momentum::kOfGradients>>},
      {"mxnet_sgd", with_common(sgd), make_as<SgdUpdater<Momentum::kOfSteps>>},
      {"adam", with_common(adam), make_as<AdamUpdater<false>>},
      {"adamw", with_common(adam), make_as<AdamUpdater<true>>},
      {"adagrad", with_common({{"learning_rate", 0.01, 0}, {"epsilon", 1e-10, 0}}), make_as<AdagradUpdater>},
  };
  return rows;
}

std::string suggestion(const std::string& given, const std::vector<std::string_view>& valid) {
  const std::string near = compress::nearest(given, valid);
  return near.empty() ? near : fmt::format("did you mean '{}'? ", near);
}

const Row& row_of(const std::string& optimizer) {
  std::vector<std::string_view> names;
  for (const Row& row : table()) {
    if (row.name == optimizer) return row;
    names.push_back(row.name);
  }
  throw std::invalid_argument(fmt::format("set_optimizer: unknown optimizer '{}'; {}the server knows {}",
                                          optimizer, suggestion(optimizer, names), fmt::join(names, ", ")));
}

void require_valid(const Row& row, const std::string& name, double value) {
  std::vector<std::string_view> valid;
  for (const Parameter& parameter : row.parameters) {
    valid.push_back(parameter.name);
    if (parameter.name != name) continue;
    // Updaters compute in float32.
    if (!std::isfinite(static_cast<float>(value))) {
      throw std::invalid_argument(
          fmt::format("set_optimizer: {}={} of {} is larger than float32 can say; expected at most {}", name,
                      value, row.name, std::numeric_limits<float>::max()));
    }
    if (value >= parameter.least && value < parameter.below) return;
    const bool is_bounded = std::isfinite(parameter.below);
    throw std::invalid_argument(fmt::format(
        "set_optimizer: {}={} of {} is out of range; expected at least {}{}", name, value, row.name,
        parameter.least, is_bounded ? fmt::format(" and below {}", parameter.below) : ""));
  }
  throw std::invalid_argument(fmt::format("set_optimizer: {} has no parameter '{}'; {}it takes {}", row.name,
                                          name, suggestion(name, valid), fmt::join(valid, ", ")));
}

/// As torch: without a momentum there is nothing to look ahead by.
void require_momentum(const Row& row, const Parameters& parameters) {
  const auto nesterov = parameters.find("nesterov");
  if (nesterov == parameters.end() || nesterov->second == 0 || parameters.at("momentum") != 0) return;
  throw std::invalid_argument(fmt::format(
      "set_optimizer: nesterov={} of {} needs a momentum, and momentum=0 is given or the default; "
      "expected one above 0, as momentum=0.9, or leave nesterov out",
      nesterov->second, row.name));
}

}  // namespace

OptimizerSpec parse_optimizer(const std::string& text) {
  std::istringstream words(text);
  OptimizerSpec spec;
  words >> spec.name;
  for (std::string word; words >> word;) {
    const auto equals = word.find('=');
    const char* const end = word.data() + word.size();
    const char* const digits = equals == std::string::npos ? end : word.data() + equals + 1;
    double value = 0;
    const auto [stopped, error] = std::from_chars(digits, end, value);  // in any locale
    if (error != std::errc() || stopped != end || !std::isfinite(value)) {
      throw std::invalid_argument(
          fmt::format("set_optimizer: '{}' is not name=number, as in 'sgd learning_rate=0.1'", word));
    }
    spec.parameters.emplace_back(word.substr(0, equals), value);
  }
  return spec;
}

bool has_momentum(const std::string& text) {
  return std::ranges::any_of(parse_optimizer(text).parameters, [](const auto& parameter) {
    return parameter.first == "momentum" && parameter.second != 0;
  });
}

std::string renamed_since_version_1(const std::string& text) {
  constexpr std::string_view kThen = "sgd", kNow = "mxnet_sgd";
  if (parse_optimizer(text).name != kThen) return text;
  return std::string(kNow) + text.substr(text.find(kThen) + kThen.size());
}

std::unique_ptr<Updater> make_updater(const OptimizerSpec& spec) {
  const Row& row = row_of(spec.name);
  Parameters parameters;
  for (const Parameter& parameter : row.parameters) parameters.emplace(parameter.name, parameter.value);
  for (const auto& [name, value] : spec.parameters) {
    require_valid(row, name, value);
    parameters[name] = value;
  }
  // Last, when all values are known, whether given or defaults.
  require_momentum(row, parameters);
  return row.make(parameters);
}

}  // namespace gradwire::kvstore
