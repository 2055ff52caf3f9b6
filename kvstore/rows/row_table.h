// What RowAggregator keeps of one table, of its rounds, and of the workers that wait for them.
//
// Threading: RowAggregator's owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "kvstore/aggregate/program_steps.h"
#include "kvstore/aggregate/push_clocks.h"
#include "kvstore/rows/row_aggregator.h"
#include "kvstore/rows/stored_rows.h"
#include "transport/frame.h"

namespace gradwire::kvstore {

struct RowAggregator::Contribution {
  RowShape shape;
  std::vector<std::uint64_t> ids;
  transport::Buffer rows;  ///< their payloads, one behind the other
};

struct RowAggregator::Round {
  transport::FrameHeader first;                            ///< the header all others must match
  std::vector<std::optional<Contribution>> contributions;  ///< by rank
  std::uint32_t arrived = 0;
  std::uint32_t flags = 0;
  ProgramSteps program_steps;
};

/// A worker that waits for the result of a round.
struct RowAggregator::Pull {
  transport::FrameHeader header;
  std::optional<std::vector<std::uint64_t>> asked;  ///< none: every row of the last round
};

struct RowAggregator::Table {
  /// What the last round made, where it is no weight.
  struct Sums {
    transport::FrameHeader header;    ///< codec, reply and flags
    std::vector<std::uint16_t> ways;  ///< by row: who sent it
    std::vector<std::size_t> begins;  ///< by row, in bytes; and the end
    std::vector<std::byte> bytes;
  };

  Table(std::uint64_t number, const RowShape& given)
      : key(number), shape(given), values(given.row_elements), residual(given.row_elements) {}

  std::uint64_t key;
  RowShape shape;
  bool has_values = false;  ///< first values or weights; else sums
  bool has_sums = false;    ///< of a round here; a checkpoint has none
  StoredRows values;
  StoredRows residual;  ///< what replies of a lossy codec have not sent yet
  std::unordered_map<std::uint64_t, OptimizerState> states;
  std::string optimizer;              ///< whose states those are
  std::uint64_t optimizer_steps = 0;  ///< rounds, whatever rows they had
  std::map<std::uint64_t, Round> rounds;
  std::uint64_t next_step = 0;       ///< first step not yet complete; at once: of the worker that is furthest
  std::optional<PushClocks> clocks;  ///< at once: of pushes to what of the table is here
  std::string failure;               ///< of a round, which nobody gets over
  std::vector<std::uint64_t> last;   ///< the rows of the last round
  Sums sums;
  std::optional<transport::Frame> whole;  ///< the answer with all of those, made once for all workers
  std::map<std::uint32_t, Pull> waiting;
  std::map<std::uint32_t, std::set<std::uint64_t>> inits;  ///< by worker: requests whose first values are in
  std::uint64_t loads = 0;                                 ///< number of the last checkpoint that was loaded
  bool has_gone_on = false;                                ///< rounds were completed since
  std::optional<std::vector<std::uint64_t>>
      kept;  ///< rows of which anything is kept, ascending, for reads of the state piece by piece
};

}  // namespace gradwire::kvstore
