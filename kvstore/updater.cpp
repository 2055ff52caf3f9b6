#include "kvstore/updater.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>
#include <stdexcept>

#include "compress/codecs.h"

namespace gradwire::kvstore {
namespace {

class TestUpdater final : public Updater {
 public:
  explicit TestUpdater(const std::map<std::string, double>& p)
      : rescale_(static_cast<float>(p.at("rescale_grad"))) {}

  void update(std::span<float> weight, std::span<const float> gradient, std::vector<float>&) const override {
    for (std::size_t i = 0; i < weight.size(); ++i) weight[i] += rescale_ * gradient[i];
  }

 private:
  float rescale_;
};

class SgdUpdater final : public Updater {
 public:
  explicit SgdUpdater(const std::map<std::string, double>& p)
      : learning_rate_(static_cast<float>(p.at("learning_rate"))),
        momentum_(static_cast<float>(p.at("momentum"))),
        wd_(static_cast<float>(p.at("wd"))),
        rescale_(static_cast<float>(p.at("rescale_grad"))),
        clip_(static_cast<float>(p.at("clip_gradient"))) {}

  void update(std::span<float> weight, std::span<const float> gradient,
              std::vector<float>& state) const override {
    if (momentum_ != 0 && state.empty()) state.assign(weight.size(), 0.0F);
    for (std::size_t i = 0; i < weight.size(); ++i) {
      float g = rescale_ * gradient[i];
      if (clip_ > 0) g = std::clamp(g, -clip_, clip_);
      const float step = learning_rate_ * (g + wd_ * weight[i]);
      if (momentum_ == 0) {
        weight[i] -= step;
      } else {
        state[i] = momentum_ * state[i] - step;
        weight[i] += state[i];
      }
    }
  }

 private:
  float learning_rate_, momentum_, wd_, rescale_, clip_;
};

struct Row {
  std::string_view name;
  std::vector<std::pair<std::string, double>> defaults;
  std::unique_ptr<Updater> (*make)(const std::map<std::string, double>&);
};

template <typename T>
std::unique_ptr<Updater> make_as(const std::map<std::string, double>& parameters) {
  return std::make_unique<T>(parameters);
}

const std::vector<Row>& table() {
  static const std::vector<Row> rows = {
      {"test", {{"rescale_grad", 1.0}}, make_as<TestUpdater>},
      {"sgd",
       {{"learning_rate", 0.01},
        {"momentum", 0.0},
        {"wd", 0.0},
        {"rescale_grad", 1.0},
        {"clip_gradient", -1.0}},
       make_as<SgdUpdater>},
  };
  return rows;
}

}  // namespace

OptimizerSpec parse_optimizer(const std::string& text) {
  std::istringstream words(text);
  OptimizerSpec spec;
  words >> spec.name;
  for (std::string word; words >> word;) {
    const auto equals = word.find('=');
    std::size_t used = 0;
    double value = 0;
    try {
      value = std::stod(word.substr(equals + 1), &used);
    } catch (const std::exception&) {
      used = 0;
    }
    if (equals == std::string::npos || used == 0 || equals + 1 + used != word.size() ||
        !std::isfinite(value)) {
      throw std::invalid_argument(
          fmt::format("set_optimizer: '{}' is not name=number, as in 'sgd learning_rate=0.1'", word));
    }
    spec.parameters.emplace_back(word.substr(0, equals), value);
  }
  return spec;
}

std::unique_ptr<Updater> make_updater(const OptimizerSpec& spec) {
  std::vector<std::string_view> names;
  for (const Row& row : table()) {
    names.push_back(row.name);
    if (row.name != spec.name) continue;
    std::map<std::string, double> parameters(row.defaults.begin(), row.defaults.end());
    std::vector<std::string_view> valid;
    for (const auto& [name, value] : row.defaults) valid.push_back(name);
    for (const auto& [name, value] : spec.parameters) {
      if (!parameters.contains(name)) {
        throw std::invalid_argument(
            fmt::format("set_optimizer: {} has no parameter '{}'; did you mean '{}'? It takes {}", spec.name,
                        name, compress::nearest(name, valid), fmt::join(valid, ", ")));
      }
      parameters[name] = value;
    }
    return row.make(parameters);
  }
  throw std::invalid_argument(
      fmt::format("set_optimizer: unknown optimizer '{}'; the server knows {}; did you mean '{}'?", spec.name,
                  fmt::join(names, ", "), compress::nearest(spec.name, names)));
}

}  // namespace gradwire::kvstore
