#include "kvstore/residual.h"

#include <algorithm>
#include <array>

#include "compress/dense/halves.h"
#include "kvstore/leftover.h"

namespace gradwire::kvstore {

std::vector<float> Residual::floats() const {
  std::vector<float> widened(view().size());
  copy_as_floats(view(), widened);
  return widened;
}

void Residual::visit(const std::function<void(std::span<const float>)>& visit) const {
  const ConstArrayView all = view();
  if (all.is_float32()) return visit(all.floats());
  std::array<float, 4096> widened;
  for (std::size_t at = 0; at < all.size(); at += widened.size()) {
    const auto run = std::span(widened).first(std::min(widened.size(), all.size() - at));
    copy_as_floats(all.subspan(at, run.size()), run);
    visit(run);
  }
}

bool Residual::is_all_sent() const {
  bool is_all = true;
  visit([&](std::span<const float> run) { is_all = is_all && kvstore::is_all_sent(run); });
  return is_all;
}

void Residual::assign(std::span<const float> values) {
  if (type_ == ElementType::kFloat32) {
    const auto bytes = std::as_bytes(values);
    bytes_.assign(bytes.begin(), bytes.end());
  } else {
    assign_zeros(values.size());
    round_residual(values, view());
  }
}

void round_residual(std::span<const float> values, ArrayView run) {
  if (run.is_float32()) {
    std::ranges::copy(values, run.floats().begin());
  } else {
    compress::dense::bf16_from_residuals(values, run.bytes());
  }
}

}  // namespace gradwire::kvstore
