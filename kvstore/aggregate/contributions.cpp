#include "kvstore/aggregate/contributions.h"

#include <utility>

namespace gradwire::kvstore {

Contributions::Contributions(std::span<const std::optional<transport::Buffer>> payloads) {
  for (const auto& payload : payloads) {
    if (payload) payloads_.push_back(std::as_const(*payload).bytes());
  }
}

Contributions::Contributions(const IntegerContributions& integers, std::uint32_t workers) {
  const compress::Payload heads = integers.heads.bytes();
  // Zero where payloads of the codec have no head. Then there are no views, either.
  const std::size_t head_bytes = heads.size() / workers;
  for (std::uint32_t worker = 0; worker < workers && head_bytes > 0; ++worker)
    payloads_.push_back(heads.subspan(worker * head_bytes, head_bytes));
  integers_ = {workers, payloads_, integers.sums.bytes(), integers.width};
}

void Contributions::decode_sum(const compress::Codec& codec, std::span<float> out) const {
  integers_ ? codec.integer_sums()->decode_sum(*integers_, out) : codec.decode_sum(payloads_, out);
}

compress::Encoded Contributions::encode_reply(const compress::Codec& codec, std::size_t elements,
                                              compress::ReplyKind kind, std::span<float> residual,
                                              std::span<std::byte> out) const {
  return integers_ ? codec.integer_sums()->encode_reply(*integers_, elements, kind, residual, out)
                   : codec.encode_reply(payloads_, elements, kind, residual, out);
}

}  // namespace gradwire::kvstore
