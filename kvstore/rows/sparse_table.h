// What SparseRows keeps of one table, at a worker.
//
// Threading: `mutex` guards what follows it.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvstore/rows/sparse_rows.h"
#include "kvstore/rows/stored_rows.h"

namespace gradwire::kvstore {

struct SparseRows::Table {
  Table(TableId number, KeySpec given, const RowShape& form, RowHomes at)
      : id(number), spec(std::move(given)), shape(form), homes(std::move(at)), residual(form.row_elements) {}

  std::string what() const { return fmt::format("rows of '{}'", spec.name); }
  transport::FrameHeader header(transport::Kind kind, std::int32_t priority) {
    transport::FrameHeader header;
    header.kind = kind;
    header.key = id;
    header.step = step;
    header.offset = requests++;
    header.priority = priority;
    return header;
  }

  const TableId id;
  const KeySpec spec;
  const RowShape shape;
  const RowHomes homes;
  std::mutex mutex;  ///< guards what follows, and the order of requests
  StoredRows residual;
  std::map<std::uint64_t, std::vector<float>>
      before;                          ///< residuals of the last round's rows, to be rolled back
  std::atomic<std::uint64_t> step{0};  ///< rounds begun; others read it
  std::uint64_t requests = 0;
  std::shared_ptr<const Compression> own_compression;
  bool has_told_of_codec = false;
  compress::ShareSent share;  ///< of the last round that was measured
  std::optional<Ticket> last_push;
  std::uint64_t ahead_bytes = 0;  ///< of pushes of which it is not known that they are over
  /// What tells that some of them are.
  struct End {
    Ticket done;
    std::uint64_t bytes = 0;
  };
  std::optional<End> end;
};

}  // namespace gradwire::kvstore
