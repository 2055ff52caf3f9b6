// RowAggregator between rounds: workers read what is kept of a table's rows, piece by piece, and put it back
// into a job that begins.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "kvstore/rows/row_aggregator.h"
#include "kvstore/rows/row_table.h"
#include "kvstore/wire/answer.h"

namespace gradwire::kvstore {
namespace {

using transport::Frame;
using transport::FrameHeader;
using transport::Kind;

/// Floats that a piece has, about.
constexpr std::size_t kPieceElements = std::size_t{1} << 20;

void append(Rows& rows, std::uint64_t id, std::span<const float> values) {
  rows.ids.push_back(id);
  rows.values.insert(rows.values.end(), values.begin(), values.end());
}

void put(const Rows& rows, StoredRows& into) {
  for (std::size_t i = 0; i < rows.ids.size(); ++i)
    std::ranges::copy(rows.row(i, into.row_elements()), into.at(rows.ids[i]).begin());
}

}  // namespace

void RowAggregator::on_read_state(std::uint32_t worker, const Frame& frame, std::vector<Answer>& answers) {
  const OpenedRows opened = open_rows(frame.payload.bytes(), frame.header.count);
  require_row_bytes(opened.body, 0, 0);
  Frame answer = answer_to(frame.header, Kind::kRowState);
  answer.header.step = opened.shape.rows;  // nothing follows
  RowState state;                          // what is not held yet has one, too
  if (Table* const table = find_table(frame.header.key); table != nullptr) {
    require_shape(*table, opened.shape);
    if (!table->rounds.empty()) {
      throw Refused{Refusal::kRows,
                    fmt::format("state of table {}: step {} is under way; end the rounds on all ranks before",
                                table->key, table->rounds.begin()->first)};
    }
    state = state_from(*table, frame.header.step, answer.header.step);
  }
  answer.payload = encode_state(state, opened.shape);
  answer.payload.seal();
  answers.push_back({worker, std::move(answer)});
}

/// Rows from `first` on, as many as a piece has; sets next to where to go on.
RowState RowAggregator::state_from(Table& table, std::uint64_t first, std::uint64_t& next) const {
  const std::size_t moments = moments_kept(table);
  // Sorted once, and used for all pieces of this state. What changes rows resets it.
  if (!table.kept) {
    auto& kept = table.kept.emplace(table.values.ids());
    std::ranges::move(table.residual.ids(), std::back_inserter(kept));
    for (const auto& [id, state] : table.states) kept.push_back(id);
    std::ranges::sort(kept);
    kept.erase(std::ranges::unique(kept).begin(), kept.end());
  }
  RowState state{table.next_step,
                 // An optimizer that was set since the last round begins anew with the next one.
                 table.optimizer == updater_.name ? table.optimizer_steps : 0,
                 table.has_values,
                 {},
                 {},
                 {}};
  std::size_t elements = 0;
  auto at = std::ranges::lower_bound(*table.kept, first);
  for (; at != table.kept->end() && elements < kPieceElements; ++at) {
    const auto value = table.values.find(*at);
    const auto residual = table.residual.find(*at);
    const auto its = table.states.find(*at);
    if (!value.empty()) append(state.values, *at, value);
    if (!residual.empty()) append(state.residuals, *at, residual);
    if (moments > 0 && its != table.states.end() && its->second.moments.size() == moments)
      append(state.moments, *at, its->second.moments);
    elements += value.size() + residual.size() + moments;
  }
  if (at != table.kept->end()) next = *at;
  return state;
}

/// Floats of a row that the optimizer in force keeps; those of another would mean something else.
std::size_t RowAggregator::moments_kept(const Table& table) const {
  if (!updater_.is_set() || table.optimizer != updater_.name) return 0;
  return updater_.updater->moment_kinds() * table.shape.row_elements;
}

/// Every piece stands for itself, so that they may come from several workers, in any order and more than
/// once: the first one of a load makes place for all.
void RowAggregator::on_write_state(std::uint32_t worker, const Frame& frame, std::vector<Answer>& answers) {
  const FrameHeader& header = frame.header;
  const RowShape shape = shape_of_state(frame.payload.bytes());
  RowState state = decode_row_state(frame.payload.bytes(), shape);
  Table& table = table_of(header, shape);
  require_own_moments(state, table);
  const bool is_first = header.step > table.loads;
  if ((is_first && table.has_gone_on) || !table.rounds.empty()) {
    throw Refused{
        Refusal::kRows,
        fmt::format("state of table {}: it has rounds here, up to step {}; load a checkpoint into a "
                    "job that has not pushed yet",
                    header.key, table.next_step)};
  }
  if (is_first) {
    const std::uint64_t key = table.key;
    // Which first values came is remembered over the load, so that a late copy of one does not undo it.
    auto inits = std::move(table.inits);
    table = Table(key, shape);
    table.inits = std::move(inits);
    table.loads = header.step;
    table.next_step = state.next_step;
    table.optimizer = updater_.name;
    table.optimizer_steps = state.optimizer_steps;
    table.has_values = state.has_values;
  }
  if (header.step == table.loads && !table.has_gone_on) {  // else it came late
    put(state.values, table.values);
    put(state.residuals, table.residual);
    const std::size_t moments = moments_kept(table);
    for (std::size_t i = 0; i < state.moments.ids.size(); ++i) {
      const auto row = state.moments.row(i, moments);
      table.states[state.moments.ids[i]].moments.assign(row.begin(), row.end());
    }
    table.kept.reset();
  }
  answers.push_back({worker, answer_to(header, Kind::kRowAck)});
}

/// An optimizer that met another's moments would read what is not there.
void RowAggregator::require_own_moments(const RowState& state, const Table& table) const {
  if (state.moments.ids.empty()) return;
  const std::size_t given = state.moments.values.size() / state.moments.ids.size();
  const std::size_t kept =
      updater_.is_set() ? updater_.updater->moment_kinds() * table.shape.row_elements : 0;
  if (given == kept) return;
  throw Refused{Refusal::kRows,
                fmt::format("state of table {}: {} moments an element given, but {}; set the optimizer that "
                            "they are of first",
                            table.key, given / table.shape.row_elements,
                            updater_.is_set()
                                ? fmt::format("{} keeps {}", updater_.name, updater_.updater->moment_kinds())
                                : std::string("no optimizer is set"))};
}

}  // namespace gradwire::kvstore
