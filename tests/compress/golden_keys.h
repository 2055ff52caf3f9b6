// The captures of MXNet 1.9.1 in tests/golden (README.md there), for every test of the 2-bit rule.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/test_options.h"

namespace gradwire::compress::golden {

class Reader {
 public:
  explicit Reader(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error("cannot read " + path + "; give --source-dir=FOLDER");
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
  }

  template <typename T>
  std::vector<T> array(std::size_t count) {
    if (position_ + count * sizeof(T) > bytes_.size())
      throw std::runtime_error("the golden file is truncated");
    std::vector<T> values(count);
    std::memcpy(values.data(), bytes_.data() + position_, count * sizeof(T));
    position_ += count * sizeof(T);
    return values;
  }
  template <typename T>
  T one() {
    return array<T>(1)[0];
  }
  bool at_end() const { return position_ == bytes_.size(); }

 private:
  std::vector<char> bytes_;
  std::size_t position_ = 0;
};

struct Push {
  std::vector<float> grad;
  std::vector<std::byte> packed;
  std::vector<float> residual;
};

struct Step {
  std::vector<Push> pushes;
  std::vector<float> pulled;
};

struct Key {
  float threshold;
  std::size_t elements;
  std::vector<Step> steps;
};

inline const std::vector<Key>& keys() {
  static const std::vector<Key> all = [] {
    Reader reader(test_options().source_dir + "/tests/golden/mxnet191_2bit.bin");
    if (reader.one<std::uint32_t>() != 0x31475747) throw std::runtime_error("not a golden file");
    std::vector<Key> found;
    for (auto captures = reader.one<std::uint32_t>(); captures > 0; --captures) {
      const auto threshold = reader.one<float>();
      const auto workers = reader.one<std::uint32_t>();
      for (auto sizes = reader.one<std::uint32_t>(); sizes > 0; --sizes) {
        Key key{threshold, reader.one<std::uint32_t>(), std::vector<Step>(3)};
        for (Step& step : key.steps) {
          for (std::uint32_t w = 0; w < workers; ++w) {
            auto grad = reader.array<float>(key.elements);
            auto packed = reader.array<std::byte>((key.elements + 15) / 16 * 4);
            step.pushes.push_back({std::move(grad), std::move(packed), reader.array<float>(key.elements)});
          }
          step.pulled = reader.array<float>(key.elements);
        }
        found.push_back(std::move(key));
      }
    }
    if (!reader.at_end()) throw std::runtime_error("the golden file is too long");
    return found;
  }();
  return all;
}

/// Equal bits; every NaN counts as the same value, as a processor may choose its bits.
inline bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

}  // namespace gradwire::compress::golden
