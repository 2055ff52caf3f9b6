// SparseRows are tables of which a round touches some rows: gradients of embeddings. Traffic grows with
// those rows. The codec encodes each row on its own; what it has not sent of a row is kept for the next
// round that has the row.
//
// Rows live on the servers of every placement that has servers. Where a host's workers sum first, rows do
// not: each worker pushes them to the job's servers itself.
//
// Threading: collectives (declare, init, set_compression) by one thread at a time and in the same order on
// every worker; the rest from any thread.
// Lifetime: spans are read until the call returns.
// Failure: misuse is std::invalid_argument, and nothing has been sent; anything else names the rank at fault
// and ends the Engine.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "compress/share_sent.h"
#include "kvstore/options.h"
#include "kvstore/rows/row_client.h"
#include "kvstore/rows/row_state.h"
#include "kvstore/runtime/notices.h"
#include "kvstore/runtime/ticket.h"
#include "kvstore/wire/agreement.h"
#include "kvstore/wire/compression.h"
#include "kvstore/wire/key.h"
#include "kvstore/wire/rows.h"
#include "transport/messenger.h"

namespace gradwire::kvstore {

/// Index of a table in the order in which tables were agreed; also the key on the wire.
using TableId = std::uint64_t;

/// Rows on their way; rows_of() reads them once done.
struct PulledRows {
  TableId table = 0;
  Ticket done;
  std::shared_ptr<RowAnswers> answers;  // owners: this and the operation
};

/// The rows that a table begins with; its others are zero.
struct FirstRows {
  TableId table = 0;
  std::span<const std::int64_t> ids;
  std::span<const float> values;
};

class SparseRows {
 public:
  /// Throws std::invalid_argument where a push could not be applied; verb is the caller's.
  using RequireOptimizer = std::function<void(const char* verb)>;

  /// load carries the bytes placed on each server so far, and is updated: it is the Engine's.
  SparseRows(transport::Messenger& messenger, RowClient& client, const EngineOptions& options,
             std::vector<std::uint64_t>& load, Meet meet, RequireOptimizer require_optimizer,
             std::shared_ptr<Callers> callers);
  ~SparseRows();

  /// Agrees on new tables: the first dimension is rows. Throws std::invalid_argument naming the first
  /// difference between ranks, or a table without rows.
  std::vector<TableId> declare(std::span<const KeySpec> tables);
  /// Stores root's rows (others' are ignored) as the first values of tables, of which all ranks give the same
  /// in the same order. One exchange, and one wait for servers for every 4 MiB, however many they are.
  void init(std::span<const FirstRows> tables, std::uint32_t root);
  /// The same of one table.
  void init(TableId table, std::span<const std::int64_t> ids, std::span<const float> values,
            std::uint32_t root);
  /// Sets the codec of all tables that have none of their own. No exchange: the Engine has made one.
  void set_compression(std::shared_ptr<const Compression> compression);
  /// Sets a table's own. Likewise.
  void set_compression_of(TableId table, std::shared_ptr<const Compression> compression);

  // Ids in any order; rows of one id are summed in the order given. Every worker takes part in every round of
  // a table, be it with no row. Where pushes are applied at once (push_clocks.h), each is a round of its own.

  /// Adds rows to this round's sum, once room() is done. Done when the servers have them.
  Ticket push(TableId table, std::span<const std::int64_t> ids, std::span<const float> values,
              std::int32_t priority);
  /// What a push to the table waits for while push_ahead_bytes are on their way, or with servers that cannot
  /// sum them yet: for the rounds of the table that this worker has begun or, at once, for servers to have
  /// its pushes. None: there is room.
  std::optional<Ticket> room(TableId table);
  /// Asks for rows as this worker's last round left them: those of its sum, the weights, or the first values;
  /// at once as they are when the servers answer, which a staleness bound may put off. Rows that are zero may
  /// be left out.
  PulledRows pull(TableId table, std::span<const std::int64_t> ids, std::int32_t priority);
  /// Both in one: what the round made of all rows that any worker sent; at once, of those given.
  /// program_step: as Engine::push_pull()'s.
  PulledRows push_pull(TableId table, std::span<const std::int64_t> ids, std::span<const float> values,
                       std::int32_t priority, std::uint32_t program_step = 0);

  /// Reads what was pulled. Requires done. Throws compress::DecodeError for what no server would send.
  Rows rows_of(const PulledRows& pulled);

  // Residuals: what a table's codec has not sent yet of the rows that were ever pushed.

  Rows residual(TableId table);
  /// Replaces it. Throws as push().
  void set_residual(TableId table, std::span<const std::int64_t> ids, std::span<const float> values);
  /// Keeps, from the next round on, what roll_back() needs.
  void keep_rollback(bool keep) { keeps_rollback_ = keep; }
  /// Puts residuals back to what they were before their table's last round, whose result nobody uses on any
  /// rank.
  void roll_back(std::span<const TableId> tables);

  /// Rounds in words that are the same on all workers, and whether this one has begun one (standstill.h). Any
  /// thread.
  static std::string round_of_table(TableId table, std::uint64_t step);
  bool has_begun(const std::string& round) const;

  // Checkpoints (sparse_rows_state.cpp). Between rounds, on all ranks.

  /// All tables, by number.
  std::vector<KeySpec> tables() const;
  /// Whether this worker has pushed to any table.
  bool has_begun() const;
  /// What this worker keeps of a table: its residuals and how many rounds it has begun.
  RowState worker_state(TableId table);
  std::uint64_t rounds_begun(TableId table);
  void set_worker_state(TableId table, const RowState& state);
  /// On how many servers a table lives.
  std::size_t owners(TableId table) const;
  /// Reads what the owner-th of them keeps, and gives it to `take` piece by piece, at least one. Throws
  /// std::invalid_argument where a round is under way.
  void read_server_state(TableId table, std::size_t owner, const std::function<void(const RowState&)>& take);
  /// Gives a table's servers a piece of what they go on with. Several pieces, of several workers, make up
  /// load number `load`, which grows. Throws std::invalid_argument where rounds have been there already.
  void write_server_state(TableId table, std::uint64_t load, const RowState& piece);

  /// Bytes pushed: as float32, and what went on the wire with ids.
  PushedBytes pushed() const { return {raw_bytes_.load(), encoded_bytes_.load()}; }
  /// Of push_ahead_bytes, what is taken; what is over is given back with the table's next call.
  std::uint64_t ahead_bytes() const { return ahead_bytes_; }
  /// The sum of the squares of all residuals.
  double residual_squares() const;
  /// How much of what codecs were given they have sent, in the last round that was measured of each
  /// table that is compressed now.
  compress::ShareSent share_sent() const;
  /// Spent on encoding and decoding, in callers' threads.
  double codec_seconds() const { return static_cast<double>(codec_nanoseconds_.load()) * 1e-9; }
  std::vector<std::string> take_notices() { return notices_.take(); }
  bool has_tables() const;
  /// Waits until what was pushed is with the servers, for at most timeout.
  void settle(std::chrono::milliseconds timeout);

 private:
  struct Table;

  Table& table_at(TableId table) const;
  std::shared_ptr<const Compression> compression_of(const Table& table) const;
  std::shared_ptr<const Compression> compression_for(Table& table);
  RowRequest push_to(Table& table, std::size_t owner, const Rows& rows, std::span<const std::size_t> chosen,
                     const Compression& compression, std::int32_t priority);
  Rows take_leftover(Table& table, const Rows& given);
  std::vector<RowRequest> push_requests(Table& table, const char* verb, const Rows& given,
                                        std::int32_t priority, std::size_t answered_row_bytes = 0);
  std::vector<RowRequest> pull_requests(Table& table, std::span<const std::uint64_t> ids,
                                        std::int32_t priority);
  std::vector<RowRequest> init_requests(Table& table, const Rows& rows);
  PulledRows submit(Table& table, std::vector<RowRequest> requests);
  /// The same for requests of a round, or behind one: a caller that waits for them waits for other workers
  /// (callers.h).
  PulledRows submit_round(Table& table, const char* call, std::vector<RowRequest> requests);
  void settle_ahead(Table& table);

  transport::Messenger& messenger_;
  RowClient& client_;
  const EngineOptions options_;
  std::vector<std::uint64_t>& load_;
  const Meet meet_;
  const RequireOptimizer require_optimizer_;
  const std::shared_ptr<Callers> callers_;  // owners: the Engine, this and tickets
  mutable std::shared_mutex tables_mutex_;
  std::vector<std::unique_ptr<Table>> tables_;
  std::unordered_map<std::string, TableId> numbers_;  ///< of tables_, by name
  mutable std::mutex compression_mutex_;
  std::shared_ptr<const Compression> compression_;  // owners: this, RoundThread and calls in progress
  std::shared_ptr<const Compression> plain_;        ///< of tables whose rows cannot travel by that
  std::atomic<bool> keeps_rollback_{false};
  std::atomic<std::uint64_t> raw_bytes_{0}, encoded_bytes_{0}, codec_nanoseconds_{0};
  std::atomic<std::uint64_t> ahead_bytes_{0};  ///< of all tables
  Notices notices_;
  transport::BufferPool buffers_;
};

}  // namespace gradwire::kvstore
