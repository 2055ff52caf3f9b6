// RowAggregator where every push is a round of its own: its rows go into the table when it arrives, and a
// pull is answered with the rows as they are then.
//
// What the workers' clocks hold back is pulls. A push is acknowledged as soon as it is in: if it waited, it
// would come again, with all its rows.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kvstore/rows/row_aggregator.h"
#include "kvstore/rows/row_table.h"
#include "kvstore/wire/answer.h"

namespace gradwire::kvstore {

using transport::Frame;
using transport::FrameHeader;
using transport::Kind;

PushClocks& RowAggregator::clocks_of(Table& table) const {
  return async_workers_.clocks_of(table.clocks, table.next_step);
}

void RowAggregator::push_async(std::uint32_t worker, Table& table, const FrameHeader& header,
                               Contribution contribution, std::vector<Answer>& answers) {
  gate_.require_optimizer(header, updater_.is_set());
  PushClocks& clocks = clocks_of(table);
  gate_.require_next(worker, header, clocks);
  if (header.step >=
      clocks.next_step_of(worker)) {  // else repeated: it is in, and its acknowledgement was lost
    Round round;
    round.first = header;
    // A round of one push: rows without others' are summed and applied by the same code.
    round.contributions.emplace_back(std::move(contribution));
    carry_out(table, round);
    clocks.count(worker, header.step);
    // For checkpoints, which save the step of the worker that is furthest.
    table.next_step = std::max(table.next_step, header.step + 1);
  }
  Frame acknowledgement = answer_to(header, Kind::kRowAck);
  set_staleness(acknowledgement.header, clocks.staleness_of(worker));
  answers.push_back({worker, std::move(acknowledgement)});
  answer_held(table, answers);
}

void RowAggregator::pull_async(std::uint32_t worker, Table& table, Pull pull, std::vector<Answer>& answers) {
  const FrameHeader header = pull.header;
  if (!pull.asked) {
    throw Refused{Refusal::kRows,
                  fmt::format("pull of table {}: it does not say which rows, and where pushes "
                              "are applied at once there is no round that has some",
                              header.key)};
  }
  if (header.step < clocks_of(table).next_step_of(worker)) return;  // repeated: it has pushed since
  const bool is_repeated = !table.waiting.insert_or_assign(worker, std::move(pull)).second;
  answer_held(table, answers);
  if (is_repeated && table.waiting.contains(worker))  // it would like to know
    answers.push_back(
        {worker, held(header, async_workers_.awaited_by(worker, clocks_of(table)), Kind::kRowHeld)});
}

/// Answers those whose own pushes are in, and who need not wait for others, with the rows as they are now.
void RowAggregator::answer_held(Table& table, std::vector<Answer>& answers) {
  std::erase_if(table.waiting, [&](const auto& entry) {
    const auto& [worker, pull] = entry;
    PushClocks& clocks = clocks_of(table);
    // The pull overtook its worker's own push, or others are more than the bound behind.
    if (pull.header.step > clocks.next_step_of(worker) || !async_workers_.awaited_by(worker, clocks).empty())
      return false;
    clocks.show(worker);
    answers.push_back({worker, answer(table, pull)});
    return true;
  });
}

void RowAggregator::on_meet(std::uint32_t worker, std::vector<Answer>& answers) {
  async_workers_.meet(worker);
  for (auto& [key, table] : tables_) answer_held(*table, answers);
}

void RowAggregator::forget_async(std::uint32_t worker, Table& table, std::vector<Answer>& answers) {
  // Nobody reads the answer any more.
  table.waiting.erase(worker);
  answer_held(table, answers);
}

}  // namespace gradwire::kvstore
