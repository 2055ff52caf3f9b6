// Reduction combines the workers' arrays element by element, in rank order, so that the result has the same
// bits wherever it is made.
//
// Threading: values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace gradwire::kvstore {

enum class ReduceOp : std::uint8_t { kSum, kAverage, kMin, kMax, kProduct };
enum class DataType : std::uint8_t { kUint8, kInt8, kInt32, kInt64, kFloat16, kBfloat16, kFloat32, kFloat64 };

/// "sum", "float32" and so on. The parsers throw std::invalid_argument listing the valid names.
std::string_view name_of(ReduceOp op);
std::string_view name_of(DataType type);
ReduceOp parse_reduce_op(std::string_view name);
DataType parse_data_type(std::string_view name);
std::size_t bytes_of(DataType type);

/// Throws std::invalid_argument for the average of integers, which has no one right rounding.
void require_defined(ReduceOp op, DataType type);

/// Writes ((p0 op p1) op p2) ... to out; an average is the sum divided by parts.size(). float16 and bfloat16
/// are combined in float32 and rounded once, to nearest even, at the end. Integers wrap. A NaN wins over
/// every number in min and max; of equals (-0 and +0) the lower rank's stays. out may be one of the parts.
/// Requires at least one part, all of out's size, whole elements, and require_defined(op, type).
void reduce(std::span<const std::span<const std::byte>> parts, DataType type, ReduceOp op,
            std::span<std::byte> out);

}  // namespace gradwire::kvstore
