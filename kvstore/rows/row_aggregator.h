// RowAggregator decides what a Server does with tables of rows: contributions of some rows in, sums or
// weights of some rows out. The cost of a round grows with its rows, not with the table. No thread, no
// socket, no clock.
//
// A round is one (table, step), complete when every worker's push is here, even of no row. For each row of
// the union, the rows of the workers that sent it are summed in rank order. Without an optimizer the table
// holds those sums until the next round. With one, only the rows of the union are updated ("lazily", as
// MXNet's lazy_update and torch.optim.SparseAdam do). Momentum, moments and weight decay of other rows stand
// still; an optimizer's count of steps continues for all. Rows that were never written are zero.
//
// Every request may be repeated. Workers ask for the result of a round; a request that comes before the
// round is complete waits here. Where pushes are applied at once (push_clocks.h), each is a round of its
// own, and a pull is answered with the current rows (row_aggregator_async.cpp).
//
// Threading: one owner. Lifetime: payload Buffers are held until their round is complete.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kvstore/aggregate/push_clocks.h"
#include "kvstore/aggregate/round_gate.h"
#include "kvstore/aggregate/sealing.h"
#include "kvstore/aggregate/servers_updater.h"
#include "kvstore/rows/row_state.h"
#include "kvstore/wire/answer.h"
#include "kvstore/wire/codec_cache.h"
#include "kvstore/wire/row_payload.h"
#include "transport/frame.h"

namespace gradwire::kvstore {

class RowAggregator {
 public:
  /// Requires workers >= 1.
  explicit RowAggregator(std::uint32_t workers, Sealing sealing = Sealing::kLossy);
  ~RowAggregator();

  /// Takes one frame from a worker and appends the answers and their receivers. Never throws for what a peer
  /// sent: bad requests are answered with kError and change nothing.
  void handle(std::uint32_t worker, transport::Frame frame, std::vector<Answer>& answers);

  /// Applies a worker's command that Aggregator has executed: "optimizer ...", "rounds at_once ..." or
  /// "meet". Others change nothing.
  void heed(std::uint32_t worker, const transport::Frame& command, std::vector<Answer>& answers);

  /// Notes that a worker will push no more. Workers that wait for rounds that need it fail, now and later;
  /// at once nobody waits for it. error: the error that has ended it, if one has.
  void forget_worker(std::uint32_t worker, std::vector<Answer>& answers, const std::string& error = {});

 private:
  struct Contribution;
  struct Round;
  struct Pull;
  struct Table;

  void on_init(std::uint32_t worker, const transport::Frame& frame, std::vector<Answer>& answers);
  void on_push(std::uint32_t worker, const transport::Frame& frame, std::vector<Answer>& answers);
  void on_pull(std::uint32_t worker, const transport::Frame& frame, std::vector<Answer>& answers);
  // row_aggregator_state.cpp
  void on_read_state(std::uint32_t worker, const transport::Frame& frame, std::vector<Answer>& answers);
  void on_write_state(std::uint32_t worker, const transport::Frame& frame, std::vector<Answer>& answers);
  RowState state_from(Table& table, std::uint64_t first, std::uint64_t& next) const;
  std::size_t moments_kept(const Table& table) const;
  void require_own_moments(const RowState& state, const Table& table) const;

  Table& table_of(const transport::FrameHeader& header, const RowShape& shape);
  Table* find_table(std::uint64_t key) const;
  static void require_shape(const Table& table, const RowShape& shape);
  static Contribution checked(const transport::Frame& frame, const compress::Codec& codec);
  void accept(std::uint32_t worker, Table& table, const transport::FrameHeader& header,
              Contribution contribution);
  void complete(Table& table);
  void carry_out(Table& table, const Round& round);
  void sum(Table& table, const Round& round);
  void sum_with_leftover(Table& table, const Round& round);
  void for_each_sum(Table& table, const Round& round,
                    const std::function<void(std::uint64_t id, std::span<const float> sum)>& visit);
  void begin_with_sums(Table& table);
  void update(Table& table, const Round& round);
  void answer_waiting(Table& table, std::vector<Answer>& answers);
  void fail_lost(Table& table, std::vector<Answer>& answers);
  transport::Frame answer(Table& table, const Pull& pull);
  transport::Frame weights(const Table& table, const Pull& pull);
  transport::Frame sums(const Table& table, const Pull& pull);
  void await_first_push(std::uint32_t worker, const transport::FrameHeader& request,
                        std::vector<Answer>& answers) const;
  std::vector<std::uint32_t> missing(const Table& table) const;
  void require_missing_workers(const Table& table) const;
  void hold(std::uint32_t worker, const Table& table, const transport::FrameHeader& request,
            std::vector<Answer>& answers) const;
  // row_aggregator_async.cpp
  PushClocks& clocks_of(Table& table) const;
  void push_async(std::uint32_t worker, Table& table, const transport::FrameHeader& header,
                  Contribution contribution, std::vector<Answer>& answers);
  void pull_async(std::uint32_t worker, Table& table, Pull pull, std::vector<Answer>& answers);
  void answer_held(Table& table, std::vector<Answer>& answers);
  void on_meet(std::uint32_t worker, std::vector<Answer>& answers);
  void forget_async(std::uint32_t worker, Table& table, std::vector<Answer>& answers);

  const std::uint32_t workers_;
  const Sealing sealing_;
  RoundGate gate_{"table", Refusal::kRows};
  std::map<std::uint64_t, std::unique_ptr<Table>> tables_;  ///< by key
  CodecCache codecs_;
  ServersUpdater updater_;
  AsyncWorkers async_workers_;
  transport::BufferPool pool_;
};

}  // namespace gradwire::kvstore
