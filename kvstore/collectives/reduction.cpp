#include "kvstore/collectives/reduction.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "compress/dense/halves.h"

namespace gradwire::kvstore {
namespace {

// Workers compare these names before a collective begins, so they are the same in every front end.
constexpr std::array<std::pair<std::string_view, ReduceOp>, 5> kOps = {{{"sum", ReduceOp::kSum},
                                                                        {"average", ReduceOp::kAverage},
                                                                        {"min", ReduceOp::kMin},
                                                                        {"max", ReduceOp::kMax},
                                                                        {"product", ReduceOp::kProduct}}};
constexpr std::array<std::pair<std::string_view, DataType>, 8> kTypes = {{{"uint8", DataType::kUint8},
                                                                          {"int8", DataType::kInt8},
                                                                          {"int32", DataType::kInt32},
                                                                          {"int64", DataType::kInt64},
                                                                          {"float16", DataType::kFloat16},
                                                                          {"bfloat16", DataType::kBfloat16},
                                                                          {"float32", DataType::kFloat32},
                                                                          {"float64", DataType::kFloat64}}};

template <typename Table, typename Value>
std::string_view name_in(const Table& table, Value value) {
  return std::ranges::find(table, value, [](const auto& row) { return row.second; })->first;
}

template <typename Table>
auto value_in(const Table& table, const char* what, std::string_view name) {
  const auto found = std::ranges::find(table, name, [](const auto& row) { return row.first; });
  if (found != table.end()) return found->second;
  std::vector<std::string_view> names;
  for (const auto& row : table) names.push_back(row.first);
  throw std::invalid_argument(
      fmt::format("unknown {} '{}'; valid are {}", what, name, fmt::join(names, ", ")));
}

/// An element as it is stored, and what it is combined in.
template <typename Stored>
struct Plain {
  using Bits = Stored;
  using Accumulator = Stored;
  static Accumulator load(Bits bits) { return bits; }
  static Bits store(Accumulator value) { return value; }
};

struct Float16 {
  using Bits = std::uint16_t;
  using Accumulator = float;
  static float load(Bits bits) { return compress::dense::float_from_f16(bits); }
  static Bits store(float value) { return compress::dense::ieee_f16_from_float(value); }
};

struct Bfloat16 {
  using Bits = std::uint16_t;
  using Accumulator = float;
  static float load(Bits bits) { return compress::dense::float_from_bf16(bits); }
  static Bits store(float value) { return compress::dense::ieee_bf16_from_float(value); }
};

/// Integers wrap, so they are combined unsigned: the low bits of sums and products do not depend on the sign.
template <typename T>
T wrapped(T a, T b, auto&& combine) {
  if constexpr (std::is_integral_v<T>) {
    using Wide = std::uint64_t;
    return static_cast<T>(combine(static_cast<Wide>(a), static_cast<Wide>(b)));
  } else {
    return combine(a, b);
  }
}

template <ReduceOp op, typename T>
T combined(T a, T b) {
  if constexpr (op == ReduceOp::kProduct) {
    return wrapped(a, b, [](auto x, auto y) { return x * y; });
  } else if constexpr (op == ReduceOp::kMin || op == ReduceOp::kMax) {
    if constexpr (std::is_floating_point_v<T>) {
      // A comparison with a NaN is false, so whether min and max keep one would depend on its rank.
      if (std::isnan(a)) return a;
      if (std::isnan(b)) return b;
    }
    // Strictly: of equals, such as -0 and +0, the lower rank's stays.
    return (op == ReduceOp::kMin ? b < a : a < b) ? b : a;
  } else {
    return wrapped(a, b, [](auto x, auto y) { return x + y; });
  }
}

template <typename Element>
typename Element::Accumulator load_at(std::span<const std::byte> part, std::size_t index) {
  typename Element::Bits bits;
  std::memcpy(&bits, part.data() + index * sizeof(bits), sizeof(bits));
  return Element::load(bits);
}

/// A block at a time: what is written has been read from every part, so out may be one of them.
template <typename Element, ReduceOp op>
void reduce_as(std::span<const std::span<const std::byte>> parts, std::span<std::byte> out) {
  using Accumulator = typename Element::Accumulator;
  constexpr std::size_t kBlock = 1024;
  std::array<Accumulator, kBlock> sums;
  const std::size_t elements = out.size() / sizeof(typename Element::Bits);
  for (std::size_t first = 0; first < elements; first += kBlock) {
    const std::size_t count = std::min(kBlock, elements - first);
    for (std::size_t i = 0; i < count; ++i) sums[i] = load_at<Element>(parts[0], first + i);
    for (const auto part : parts.subspan(1)) {
      for (std::size_t i = 0; i < count; ++i)
        sums[i] = combined<op>(sums[i], load_at<Element>(part, first + i));
    }
    for (std::size_t i = 0; i < count; ++i) {
      if constexpr (op == ReduceOp::kAverage) sums[i] /= static_cast<Accumulator>(parts.size());
      // One rounding, at the end: rounding in between would depend on the number of ranks.
      const auto bits = Element::store(sums[i]);
      std::memcpy(out.data() + (first + i) * sizeof(bits), &bits, sizeof(bits));
    }
  }
}

template <typename Element>
void reduce_by(std::span<const std::span<const std::byte>> parts, ReduceOp op, std::span<std::byte> out) {
  switch (op) {
    case ReduceOp::kSum:
      return reduce_as<Element, ReduceOp::kSum>(parts, out);
    case ReduceOp::kMin:
      return reduce_as<Element, ReduceOp::kMin>(parts, out);
    case ReduceOp::kMax:
      return reduce_as<Element, ReduceOp::kMax>(parts, out);
    case ReduceOp::kProduct:
      return reduce_as<Element, ReduceOp::kProduct>(parts, out);
    case ReduceOp::kAverage:
      // Of integers require_defined() has refused it.
      if constexpr (std::is_floating_point_v<typename Element::Accumulator>)
        return reduce_as<Element, ReduceOp::kAverage>(parts, out);
  }
}

}  // namespace

std::string_view name_of(ReduceOp op) { return name_in(kOps, op); }
std::string_view name_of(DataType type) { return name_in(kTypes, type); }
ReduceOp parse_reduce_op(std::string_view name) { return value_in(kOps, "op", name); }
DataType parse_data_type(std::string_view name) { return value_in(kTypes, "dtype", name); }

std::size_t bytes_of(DataType type) {
  switch (type) {
    case DataType::kUint8:
    case DataType::kInt8:
      return 1;
    case DataType::kFloat16:
    case DataType::kBfloat16:
      return 2;
    case DataType::kInt32:
    case DataType::kFloat32:
      return 4;
    case DataType::kInt64:
    case DataType::kFloat64:
      return 8;
  }
  throw std::invalid_argument(fmt::format("data type {} is not known", static_cast<int>(type)));
}

void require_defined(ReduceOp op, DataType type) {
  // Floats are the last types of the enumeration.
  const bool is_float = type >= DataType::kFloat16;
  if (op != ReduceOp::kAverage || is_float) return;
  throw std::invalid_argument(
      fmt::format("op 'average' of {} is not defined, for it would have to be rounded; take the sum and "
                  "divide, or give floats",
                  name_of(type)));
}

void reduce(std::span<const std::span<const std::byte>> parts, DataType type, ReduceOp op,
            std::span<std::byte> out) {
  // Otherwise an average of integers would leave `out` as it was.
  require_defined(op, type);
  switch (type) {
    case DataType::kUint8:
      return reduce_by<Plain<std::uint8_t>>(parts, op, out);
    case DataType::kInt8:
      return reduce_by<Plain<std::int8_t>>(parts, op, out);
    case DataType::kInt32:
      return reduce_by<Plain<std::int32_t>>(parts, op, out);
    case DataType::kInt64:
      return reduce_by<Plain<std::int64_t>>(parts, op, out);
    case DataType::kFloat16:
      return reduce_by<Float16>(parts, op, out);
    case DataType::kBfloat16:
      return reduce_by<Bfloat16>(parts, op, out);
    case DataType::kFloat32:
      return reduce_by<Plain<float>>(parts, op, out);
    case DataType::kFloat64:
      return reduce_by<Plain<double>>(parts, op, out);
  }
}

}  // namespace gradwire::kvstore
