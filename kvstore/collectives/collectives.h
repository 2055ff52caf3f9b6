// Collectives are operations of all workers on arrays that are not gradients: exact, of many types, on every
// placement that has servers. They are made of blobs (blob_store.h): one worker posts a blob, others fetch
// it. Every collective begins with an exchange in which the workers agree on what it is.
//
// Bytes that a worker sends, for P bytes of array and N workers, without headers; in placement peers:
//   all_reduce 2 P (N-1)/N; reduce_scatter P (N-1)/N; all_gather (N-1) times its own block; all_to_all what
//   is for others; broadcast P by the root, P (N-2)/(N-1) by the others (above one piece; else (N-1) P by
//   the
//   root). With dedicated servers a worker sends its blobs once, and servers pass them on.
//
// Threading: one collective at a time, in the same order on every worker. Calls block, at most slow_abort
// between two answers.
// Lifetime: arrays stay alive and unchanged until the call returns, or, when it failed with anything but
// std::invalid_argument, until Engine::close().
// Failure: what differs between workers is std::invalid_argument, with one text on all; the store stays
// usable. Anything else (TransportError, TimeoutError) names the rank at fault and ends the Engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvstore/collectives/blob_client.h"
#include "kvstore/collectives/reduction.h"
#include "kvstore/wire/agreement.h"
#include "transport/buffer.h"
#include "transport/messenger.h"

namespace gradwire::kvstore {

/// A run of elements, or of bytes.
struct Run {
  std::uint64_t offset = 0;
  std::uint64_t count = 0;
  bool operator==(const Run&) const = default;
};

/// The index-th of `parts` near-equal runs of `total`; the first total % parts are one longer.
Run near_equal_share(std::uint64_t total, std::uint32_t parts, std::uint32_t index);

/// One block from each worker, one after the other in rank order.
struct Blocks {
  std::vector<std::uint64_t> elements;  ///< by rank
  transport::Buffer bytes;
};

class Collectives {
 public:
  /// Blobs are cut at piece_bytes, which all workers share; a multiple of 8. meet blocks, at most
  /// slow_abort.
  Collectives(transport::Messenger& messenger, BlobClient& blobs, std::uint64_t piece_bytes, Meet meet);

  // `agreed` holds further "name=value" lines that must be equal on all workers: a front end's shapes.

  /// Writes root's values to everybody's.
  void broadcast(std::span<std::byte> values, DataType type, std::uint32_t root,
                 std::string_view agreed = {});
  /// Combines all workers' `in` elementwise, in rank order, into everybody's out. in and out have one size
  /// and may be the same memory.
  void all_reduce(std::span<const std::byte> in, std::span<std::byte> out, DataType type, ReduceOp op,
                  std::string_view agreed = {});
  /// Likewise, but a worker gets only its near_equal_share of the rows of row_elements elements each.
  void reduce_scatter(std::span<const std::byte> in, std::span<std::byte> out, DataType type, ReduceOp op,
                      std::uint64_t row_elements = 1, std::string_view agreed = {});
  /// Gives every worker all blocks; they may differ in length.
  Blocks all_gather(std::span<const std::byte> block, DataType type, std::string_view agreed = {});
  /// Gives worker d blocks[d] of every worker; they may differ in length.
  Blocks all_to_all(std::span<const std::span<const std::byte>> blocks, DataType type,
                    std::string_view agreed = {});

 private:
  class Blobs;
  std::vector<std::vector<std::uint64_t>> agree(const char* what, const std::string& settings,
                                                std::span<const std::uint64_t> counts = {});
  std::uint64_t piece_bytes_for(std::uint64_t total_bytes) const;
  std::vector<std::uint32_t> others() const;
  void post_shares(Blobs& blobs, std::span<const std::byte> in, std::span<const Run> shares) const;
  template <typename Reduced>
  void reduce_share(Blobs& blobs, std::span<const std::byte> in, const Run& share, std::span<std::byte> out,
                    DataType type, ReduceOp op, const Reduced& reduced) const;
  void scatter_and_gather(Blobs& blobs, std::span<std::byte> values, std::uint32_t root) const;

  transport::Messenger& messenger_;
  BlobClient& blobs_;
  const std::uint64_t piece_bytes_;
  const Meet meet_;
  const std::uint32_t rank_;
  const std::uint32_t workers_;
  const bool hosts_server_;
  std::uint64_t sequence_ = 0;
};

}  // namespace gradwire::kvstore
