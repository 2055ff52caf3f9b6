// SparseRows between rounds: what a worker keeps of a table, and what its servers do, read and put back.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "kvstore/rows/sparse_rows.h"
#include "kvstore/rows/sparse_table.h"

namespace gradwire::kvstore {

using transport::Buffer;
using transport::Kind;

namespace {

/// Those of the rows that live at one of a table's servers, by their ids there.
Rows of_owner(const Rows& rows, const RowHomes& homes, std::size_t owner) {
  // Values and moments have rows of different widths.
  const std::size_t width = rows.ids.empty() ? 0 : rows.values.size() / rows.ids.size();
  Rows own;
  for (std::size_t i = 0; i < rows.ids.size(); ++i) {
    if (homes.owner(rows.ids[i]) != owner) continue;
    own.ids.push_back(homes.local(rows.ids[i]));
    const auto row = rows.row(i, width);
    own.values.insert(own.values.end(), row.begin(), row.end());
  }
  return own;
}

}  // namespace

std::vector<KeySpec> SparseRows::tables() const {
  const std::shared_lock lock(tables_mutex_);
  std::vector<KeySpec> specs;
  for (const auto& table : tables_) specs.push_back(table->spec);
  return specs;
}

std::string SparseRows::round_of_table(TableId table, std::uint64_t step) {
  return fmt::format("table {} round {}", table, step);
}

bool SparseRows::has_begun(const std::string& round) const {
  unsigned long long id = 0, step = 0;
  const std::shared_lock lock(tables_mutex_);
  // The words come from other workers. What is no round of a table here counts as not begun.
  return std::sscanf(round.c_str(), "table %llu round %llu", &id, &step) == 2 && id < tables_.size() &&
         step < tables_[id]->step;
}

bool SparseRows::has_begun() const {
  const std::shared_lock lock(tables_mutex_);
  return std::ranges::any_of(tables_, [](const auto& table) {
    const std::lock_guard own(table->mutex);
    // Not the number of rounds, which a checkpoint may have brought.
    return table->last_push.has_value();
  });
}

std::uint64_t SparseRows::rounds_begun(TableId id) {
  Table& table = table_at(id);
  const std::lock_guard lock(table.mutex);
  return table.step;
}

RowState SparseRows::worker_state(TableId id) {
  RowState state;
  state.residuals = residual(id);
  state.next_step = rounds_begun(id);
  return state;
}

void SparseRows::set_worker_state(TableId id, const RowState& state) {
  const std::vector<std::int64_t> ids(state.residuals.ids.begin(), state.residuals.ids.end());
  set_residual(id, ids, state.residuals.values);
  Table& table = table_at(id);
  const std::lock_guard lock(table.mutex);
  table.step = state.next_step;
}

std::size_t SparseRows::owners(TableId table) const { return table_at(table).homes.servers.size(); }

void SparseRows::read_server_state(TableId id, std::size_t owner,
                                   const std::function<void(const RowState&)>& take) {
  Table& table = table_at(id);
  const RowShape share = table.homes.share(table.shape, owner);
  std::uint64_t next = 0;
  do {
    Buffer payload = Buffer::allocate(max_row_head_bytes(0));
    payload.truncate(write_row_head(share, {}, payload.bytes()));
    if (messenger_.seals_payloads()) payload.seal();
    PulledRows pulled;
    {
      const std::lock_guard lock(table.mutex);
      std::vector<RowRequest> requests;
      requests.push_back(
          {table.homes.servers[owner], table.header(Kind::kRowReadState, 0), std::move(payload)});
      requests.back().header.step = next;
      pulled = submit(table, std::move(requests));
    }
    // Without the mutex, so that other calls of the table do not wait for this server.
    pulled.done.wait();
    const transport::Frame& answer = pulled.answers->front().frame;
    // Otherwise a server that does not advance would keep this loop for ever.
    if (answer.header.step <= std::exchange(next, answer.header.step))
      throw compress::DecodeError("row state: a piece does not say where the next one begins");
    RowState piece = decode_row_state(answer.payload.bytes(), share);
    for (Rows* const rows : {&piece.values, &piece.residuals, &piece.moments}) {
      // A checkpoint knows rows by their ids in the table: another job may place them otherwise.
      for (std::uint64_t& row : rows->ids) row = table.homes.global(row, owner);
    }
    take(piece);
  } while (next < share.rows);
}

void SparseRows::write_server_state(TableId id, std::uint64_t load, const RowState& piece) {
  Table& table = table_at(id);
  Ticket done;
  {
    const std::lock_guard lock(table.mutex);
    std::vector<RowRequest> requests;
    // Also servers with no row of the piece: the first piece of a load replaces all that a table had.
    for (std::size_t owner = 0; owner < table.homes.servers.size(); ++owner) {
      RowState own = piece;
      own.values = of_owner(piece.values, table.homes, owner);
      own.residuals = of_owner(piece.residuals, table.homes, owner);
      own.moments = of_owner(piece.moments, table.homes, owner);
      Buffer payload = encode_state(own, table.homes.share(table.shape, owner));
      if (messenger_.seals_payloads()) payload.seal();
      requests.push_back(
          {table.homes.servers[owner], table.header(Kind::kRowWriteState, 0), std::move(payload)});
      requests.back().header.step = load;
    }
    done = submit(table, std::move(requests)).done;
  }
  done.wait();
}

}  // namespace gradwire::kvstore
