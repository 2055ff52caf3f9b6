#include "kvstore/rows/sparse_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "compress/codecs.h"
#include "compress/payload/little_endian.h"
#include "kvstore/leftover.h"
#include "kvstore/rows/sparse_table.h"
#include "kvstore/runtime/pieces.h"
#include "kvstore/wire/agreement.h"

namespace gradwire::kvstore {

using compress::DecodeError;
using compress::ReplyKind;
using transport::Buffer;
using transport::FrameHeader;
using transport::Kind;

namespace {

/// First values travel in pieces of about so many elements.
constexpr std::size_t kInitElements = std::size_t{1} << 20;

/// Adds the nanoseconds of its life.
class Timer {
 public:
  explicit Timer(std::atomic<std::uint64_t>& nanoseconds) : nanoseconds_(nanoseconds) {}
  ~Timer() {
    nanoseconds_ += static_cast<std::uint64_t>(
        std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin_).count());
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  std::atomic<std::uint64_t>& nanoseconds_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace

SparseRows::SparseRows(transport::Messenger& messenger, RowClient& client, const EngineOptions& options,
                       std::vector<std::uint64_t>& load, Meet meet, RequireOptimizer require_optimizer,
                       std::shared_ptr<Callers> callers)
    : messenger_(messenger),
      client_(client),
      options_(options),
      load_(load),
      meet_(std::move(meet)),
      require_optimizer_(std::move(require_optimizer)),
      callers_(std::move(callers)),
      plain_(std::make_shared<Compression>(Compression{compress::make({}), ReplyKind::kSame})) {
  compression_ = plain_;
}

SparseRows::~SparseRows() = default;

SparseRows::Table& SparseRows::table_at(TableId table) const {
  const std::shared_lock lock(tables_mutex_);
  if (table < tables_.size()) return *tables_[table];
  throw std::invalid_argument(fmt::format("table {} was not declared; {} are", table, tables_.size()));
}

// A call makes requests, one or more for each server of its table, under the table's mutex: the mutex orders
// them, and the numbers that header() gives them. Then RowClient sends them from the loop, and the caller
// waits on a ticket. Encoding and decoding are done in the caller's thread, so a table needs no jobs in the
// pool.

// ------------------------------------------------------------------------------------- collectives

std::vector<TableId> SparseRows::declare(std::span<const KeySpec> tables) {
  const std::string text = write_keys(tables);
  agree_on_keys(messenger_, meet_("declare rows", text));
  const auto sorted = read_keys(text);
  std::vector<RowShape> shapes;
  // Before anything is added: a table without rows throws on all ranks alike, and none of them has changed.
  for (const KeySpec& spec : sorted) shapes.push_back(row_shape(spec));
  const std::unique_lock lock(tables_mutex_);
  const TableId first = tables_.size();
  std::unordered_map<std::string, TableId> added;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (numbers_.contains(sorted[i].name) || !added.emplace(sorted[i].name, first + i).second) {
      throw std::invalid_argument(
          fmt::format("init: table '{}' was declared before; declare each table once", sorted[i].name));
    }
  }
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    tables_.push_back(std::make_unique<Table>(first + i, sorted[i], shapes[i],
                                              place_rows(shapes[i], options_.shard_bound_elements, load_)));
  }
  numbers_.merge(added);
  std::vector<TableId> ids;
  for (const KeySpec& spec : tables) ids.push_back(numbers_.at(spec.name));
  return ids;
}

/// Every server hears that the table has first values, be it of no row.
std::vector<RowRequest> SparseRows::init_requests(Table& table, const Rows& rows) {
  const std::size_t width = table.shape.row_elements;
  const std::size_t most = std::max<std::size_t>(1, kInitElements / width);
  std::vector<RowRequest> requests;
  for (std::size_t owner = 0; owner < table.homes.servers.size(); ++owner) {
    std::vector<std::size_t> own;
    for (std::size_t i = 0; i < rows.ids.size(); ++i) {
      if (table.homes.owner(rows.ids[i]) == owner) own.push_back(i);
    }
    std::size_t at = 0;
    // Once at least, also where this server has no row: a table with first values holds values there, and not
    // sums.
    do {
      const auto chosen = std::span(own).subspan(at, std::min(most, own.size() - at));
      requests.push_back(push_to(table, owner, rows, chosen, *plain_, 0));
      requests.back().header.kind = Kind::kRowInit;
      at += chosen.size();
    } while (at < own.size());
  }
  return requests;
}

void SparseRows::init(TableId id, std::span<const std::int64_t> ids, std::span<const float> values,
                      std::uint32_t root) {
  const FirstRows first{id, ids, values};
  init({&first, 1}, root);
}

void SparseRows::init(std::span<const FirstRows> tables, std::uint32_t root) {
  const std::uint32_t workers = messenger_.world().workers;
  if (root >= workers) {
    throw std::invalid_argument(
        fmt::format("init: root={} is not a worker rank; expected 0 to {}", root, workers - 1));
  }
  std::vector<Rows> rows;
  for (const FirstRows& first : tables)
    rows.push_back(sum_duplicates(first.ids, first.values, table_at(first.table).shape));
  const auto bytes_of = [](const FirstRows& first) {
    return first.ids.size_bytes() + first.values.size_bytes() + transport::kHeaderBytes;
  };
  auto next = rows.begin();
  for (const auto piece : in_pieces(tables, bytes_of)) {
    std::vector<Ticket> stored;
    for (const FirstRows& first : piece) {
      Table& table = table_at(first.table);
      if (const Rows& given = *next++; messenger_.self().rank == root) {
        const std::lock_guard lock(table.mutex);
        stored.push_back(submit(table, init_requests(table, given)).done);
      }
    }
    // One piece after the other: what queues for longer than retry_timeout would be sent again (pieces.h).
    wait_all(stored);
  }
  // Nobody pulls or pushes before the servers have the root's rows.
  meet_("init rows", "");
}

void SparseRows::set_compression(std::shared_ptr<const Compression> compression) {
  const std::lock_guard lock(compression_mutex_);
  compression_ = std::move(compression);
}

void SparseRows::set_compression_of(TableId id, std::shared_ptr<const Compression> compression) {
  Table& table = table_at(id);
  const std::lock_guard lock(table.mutex);
  table.own_compression = std::move(compression);
}

// ------------------------------------------------------------------------------------- rounds

std::shared_ptr<const Compression> SparseRows::compression_of(const Table& table) const {
  if (table.own_compression) return table.own_compression;
  const std::lock_guard lock(compression_mutex_);
  return compression_;
}

/// Where the codec cannot send rows, they travel as they are.
std::shared_ptr<const Compression> SparseRows::compression_for(Table& table) {
  auto chosen = compression_of(table);
  if (can_send_rows(*chosen->codec)) return chosen;
  if (!std::exchange(table.has_told_of_codec, true)) {
    notices_.add(
        fmt::format("{} travel as float32: codec {} agrees scales from round to round, which rows that come "
                    "and go cannot; "
                    "give the table a codec of its own, such as fp16",
                    table.what(), compress::canonical_spec(chosen->codec->spec())));
  }
  return plain_;
}

/// Encodes the chosen rows, all of one server.
RowRequest SparseRows::push_to(Table& table, std::size_t owner, const Rows& rows,
                               std::span<const std::size_t> chosen, const Compression& compression,
                               std::int32_t priority) {
  const auto& codec = *compression.codec;
  const std::uint32_t width = table.shape.row_elements;
  const std::uint32_t rank = messenger_.self().rank;
  const std::size_t row_bytes = codec.max_encoded_size(width);
  std::vector<std::uint64_t> ids;
  for (const std::size_t i : chosen) ids.push_back(table.homes.local(rows.ids[i]));
  Buffer payload = buffers_.take(max_row_head_bytes(ids.size()) + ids.size() * row_bytes);
  std::size_t end = write_row_head(table.homes.share(table.shape, owner), ids, payload.bytes());
  const bool is_measured = codec.lossy() && compress::measures_share(table.step);
  RowRequest request{table.homes.servers[owner], table.header(Kind::kRowPush, priority), {}};
  for (const std::size_t i : chosen) {
    const std::uint64_t id = rows.ids[i];
    const auto residual = codec.lossy() ? table.residual.at(id) : std::span<float>();
    // Row by row, because encode() changes the residual, and a round has only some of the rows.
    if (keeps_rollback_ && codec.lossy()) table.before[id].assign(residual.begin(), residual.end());
    const auto out = payload.bytes().subspan(end, row_bytes);
    if (is_measured) table.share.given_squares += compress::squares_of(rows.row(i, width), residual);
    const auto encoded = codec.encode(rows.row(i, width), residual, {}, out,
                                      row_position(table.id, rank, table.step, id, width));
    if (is_measured) table.share.kept_squares += compress::squares_of({}, residual);
    if (encoded.nonfinite) request.header.flags |= transport::kFlagNonfinite;
    end += row_bytes;
  }
  // The head is shorter than its bound, because ids of neighbours take a byte each.
  payload.truncate(end);
  if (codec.lossy() || messenger_.seals_payloads()) payload.seal();
  request.payload = std::move(payload);
  request.header.count = ids.size();
  request.header.codec = static_cast<std::uint8_t>(codec.wire_id());
  request.header.codec_parameters = codec.wire_parameters();
  request.header.reply = static_cast<std::uint8_t>(compression.reply);
  return request;
}

/// The rows, and those of which a lossy codec before this one, which is none, has left something: with that,
/// of which nothing is left then.
Rows SparseRows::take_leftover(Table& table, const Rows& given) {
  const std::uint32_t width = table.shape.row_elements;
  StoredRows left = std::exchange(table.residual, StoredRows(width));
  StoredRows sums(width);
  for (std::size_t i = 0; i < given.ids.size(); ++i)
    std::ranges::copy(given.row(i, width), sums.at(given.ids[i]).begin());
  for (const std::uint64_t id : left.ids()) {
    const auto residual = left.at(id);
    if (is_all_sent(residual)) continue;
    if (keeps_rollback_) table.before[id].assign(residual.begin(), residual.end());
    add_leftover<float>(sums.at(id), residual);
    // An element whose value is not finite goes as it is, and what was left of it waits for a later push.
    if (!is_all_sent(residual)) std::ranges::copy(residual, table.residual.at(id).begin());
  }
  Rows rows{sums.ids(), {}};
  for (const std::uint64_t id : rows.ids) {
    const auto sum = sums.find(id);
    rows.values.insert(rows.values.end(), sum.begin(), sum.end());
  }
  return rows;
}

/// One for each of the table's servers, the first of them not the same on all ranks.
std::vector<RowRequest> SparseRows::push_requests(Table& table, const char* verb, const Rows& given,
                                                  std::int32_t priority, std::size_t answered_row_bytes) {
  const auto compression = compression_for(table);
  const bool has_leftover = !compression->codec->lossy() && table.residual.size() > 0;
  const std::size_t sent_row_bytes = compression->codec->max_encoded_size(table.shape.row_elements);
  // Before anything is encoded, which changes residuals.
  require_room({verb, table.spec.name, std::max(sent_row_bytes, answered_row_bytes), options_.message_bytes},
               table.homes, given.ids, has_leftover ? table.residual.ids() : std::vector<std::uint64_t>());
  const Timer timer(codec_nanoseconds_);
  // A rollback goes back by one round.
  table.before.clear();
  const Rows with_leftover = has_leftover ? take_leftover(table, given) : Rows();
  const Rows& rows = has_leftover ? with_leftover : given;
  if (compression->codec->lossy() && compress::measures_share(table.step)) table.share = {0, 0, true};
  const std::size_t owners = table.homes.servers.size();
  std::vector<std::vector<std::size_t>> chosen(owners);
  for (std::size_t i = 0; i < rows.ids.size(); ++i) chosen[table.homes.owner(rows.ids[i])].push_back(i);
  std::vector<RowRequest> requests;
  for (std::size_t turn = 0; turn < owners; ++turn) {
    const std::size_t owner = (messenger_.self().rank + 1 + turn) % owners;
    requests.push_back(push_to(table, owner, rows, chosen[owner], *compression, priority));
    encoded_bytes_ += requests.back().payload.size_bytes();
  }
  raw_bytes_ += given.values.size() * sizeof(float);
  // After push_to(), whose headers have the step of this round.
  ++table.step;
  settle_ahead(table);
  for (const RowRequest& request : requests) {
    const std::uint64_t bytes = request.payload.size_bytes() + kAheadBytes;
    table.ahead_bytes += bytes;
    ahead_bytes_ += bytes;
  }
  return requests;
}

/// Gives back what is over.
void SparseRows::settle_ahead(Table& table) {
  if (!table.end || !table.end->done.done()) return;
  ahead_bytes_ -= table.end->bytes;
  table.ahead_bytes -= table.end->bytes;
  table.end.reset();
}

std::optional<Ticket> SparseRows::room(TableId id) {
  Table& table = table_at(id);
  const std::lock_guard lock(table.mutex);
  settle_ahead(table);
  // A table that has nothing on its way is never held up. It could only wait for rounds of other tables, and
  // workers that wait for each other in that way would not be found (standstill.h).
  if (table.ahead_bytes == 0 || ahead_bytes_ <= options_.push_ahead_bytes) return std::nullopt;
  if (!table.end)  // whom nobody has asked, a pull of no row does
    table.end = {submit_round(table, "push", pull_requests(table, {}, 0)).done, table.ahead_bytes};
  return table.end->done;
}

PulledRows SparseRows::submit_round(Table& table, const char* call, std::vector<RowRequest> requests) {
  callers_->note_call();
  PulledRows pulled = submit(table, std::move(requests));
  // Before the first push a pull waits for no other worker.
  if (table.step > 0)
    pulled.done.concern(callers_, {Callers::Wait::For::kTable, call, table.id, table.step - 1});
  return pulled;
}

PulledRows SparseRows::submit(Table& table, std::vector<RowRequest> requests) {
  RowOperation operation;
  operation.what = table.what();
  for (const RowRequest& request :
       requests) {  // at once no other rank has a part in the round, or hears of it
    if (options_.async && (request.header.flags & transport::kFlagNonfinite) != 0)
      operation.done.note_nonfinite();
  }
  operation.requests = std::move(requests);
  PulledRows pulled{table.id, operation.done, operation.answers};
  client_.submit(std::move(operation));
  return pulled;
}

Ticket SparseRows::push(TableId id, std::span<const std::int64_t> ids, std::span<const float> values,
                        std::int32_t priority) {
  require_optimizer_("push");
  Table& table = table_at(id);
  // Without the table's mutex: it may take as long as the slowest worker.
  if (const auto free = room(id)) free->wait();
  const Rows rows = sum_duplicates(ids, values, table.shape);
  const std::lock_guard lock(table.mutex);
  callers_->note_call();
  table.last_push = submit(table, push_requests(table, "push", rows, priority)).done;  // acknowledged at once
  // At once an acknowledgement says that the push is applied. Otherwise only the end of its round gives its
  // bytes back.
  if (options_.async) table.end = {*table.last_push, table.ahead_bytes};
  return *table.last_push;
}

PulledRows SparseRows::push_pull(TableId id, std::span<const std::int64_t> ids, std::span<const float> values,
                                 std::int32_t priority, std::uint32_t program_step) {
  require_optimizer_("push_pull");
  Table& table = table_at(id);
  const Rows rows = sum_duplicates(ids, values, table.shape);
  const std::lock_guard lock(table.mutex);
  const std::size_t row_bytes = table.shape.row_elements * sizeof(float);
  auto requests = push_requests(table, "push_pull", rows, priority, row_bytes);
  for (RowRequest& request : requests) request.header.program_step = program_step;
  if (options_.async) {
    // There is no round whose rows could be meant, so the pull names them.
    std::ranges::move(pull_requests(table, rows.ids, priority), std::back_inserter(requests));
  } else {
    // Without a payload it asks for all rows of the round, whoever sent them.
    for (const std::uint32_t server : table.homes.servers)
      requests.push_back({server, table.header(Kind::kRowPull, priority), {}});
  }
  PulledRows pulled = submit_round(table, "push_pull", std::move(requests));
  table.last_push = pulled.done;
  // The answer comes when all rounds up to this one are over, so it gives back the bytes of all pushes so
  // far.
  table.end = {pulled.done, table.ahead_bytes};
  return pulled;
}

PulledRows SparseRows::pull(TableId id, std::span<const std::int64_t> ids, std::int32_t priority) {
  Table& table = table_at(id);
  const auto rows = distinct_ids(ids, table.shape);
  const std::lock_guard lock(table.mutex);
  const std::size_t row_bytes = table.shape.row_elements * sizeof(float);
  require_room({"pull", table.spec.name, row_bytes, options_.message_bytes}, table.homes, rows);
  settle_ahead(table);
  PulledRows pulled = submit_round(table, "pull", pull_requests(table, rows, priority));
  table.end = {pulled.done, table.ahead_bytes};
  return pulled;
}

/// Asks each of the table's servers for those of the rows that it has; ids ascend.
std::vector<RowRequest> SparseRows::pull_requests(Table& table, std::span<const std::uint64_t> ids,
                                                  std::int32_t priority) {
  std::vector<std::vector<std::uint64_t>> chosen(table.homes.servers.size());
  for (const std::uint64_t row : ids) chosen[table.homes.owner(row)].push_back(table.homes.local(row));
  std::vector<RowRequest> requests;
  // Also servers with none of the rows: a list of no ids asks for no row. Only a request without a payload
  // asks for all.
  for (std::size_t owner = 0; owner < chosen.size(); ++owner) {
    Buffer payload = Buffer::allocate(max_row_head_bytes(chosen[owner].size()));
    payload.truncate(write_row_head(table.homes.share(table.shape, owner), chosen[owner], payload.bytes()));
    if (messenger_.seals_payloads()) payload.seal();
    RowRequest request{table.homes.servers[owner], table.header(Kind::kRowPull, priority),
                       std::move(payload)};
    request.header.count = chosen[owner].size();
    requests.push_back(std::move(request));
  }
  return requests;
}

// ------------------------------------------------------------------------------------- answers

namespace {

/// What one server answered, opened; and which of its rows are next.
class ReplyReader {
 public:
  ReplyReader(const RowAnswer& answer, const RowShape& expected, std::uint32_t workers)
      : header_(answer.frame.header),
        opened_(open_rows(answer.frame.payload.bytes(), header_.count)),
        codec_(compress::from_wire(static_cast<compress::WireId>(header_.codec), header_.codec_parameters)),
        kind_(static_cast<ReplyKind>(header_.reply)),
        workers_(workers) {
    if (opened_.shape != expected) throw DecodeError("rows: the reply is of a table of another shape");
    if (codec_->agrees_scales() || kind_ > ReplyKind::kSame)
      throw DecodeError("rows: the reply's codec is none of rows");
    if (!tells_ways(*codec_, kind_)) return;
    const std::size_t sender_bytes = opened_.ids.size() * sizeof(std::uint16_t);
    if (opened_.body.size() < sender_bytes)
      throw DecodeError("rows: the reply does not say who sent each row");
    ways_ = opened_.body.first(sender_bytes);
    opened_.body = opened_.body.subspan(sender_bytes);
  }

  const std::vector<std::uint64_t>& ids() const { return opened_.ids; }

  /// Writes the next row's sum to out.
  void read(std::span<float> out) {
    const std::size_t index = next_++;
    const std::size_t ways =
        ways_.empty() ? workers_
                      : compress::load<std::uint16_t>(ways_.data() + index * sizeof(std::uint16_t));
    // It sizes what is read of the payload, and comes from a peer.
    if (ways == 0 || ways > workers_)
      throw DecodeError(fmt::format("rows: a row of {} of {} workers", ways, workers_));
    const std::size_t bytes = codec_->max_reply_size(out.size(), ways, kind_);
    if (opened_.body.size() < bytes) throw DecodeError("rows: the reply ends within a row");
    codec_->decode_reply(opened_.body.first(bytes), ways, kind_, out, {});
    opened_.body = opened_.body.subspan(bytes);
  }

  void require_end() const {
    if (!opened_.body.empty())
      throw DecodeError(fmt::format("rows: {} bytes are left behind the rows", opened_.body.size()));
  }

 private:
  const FrameHeader& header_;
  OpenedRows opened_;
  std::unique_ptr<compress::Codec> codec_;
  ReplyKind kind_;
  std::uint32_t workers_;
  compress::Payload ways_;
  std::size_t next_ = 0;
};

}  // namespace

Rows SparseRows::rows_of(const PulledRows& pulled) {
  const Timer timer(codec_nanoseconds_);
  const Table& table = table_at(pulled.table);
  const auto& servers = table.homes.servers;
  std::vector<ReplyReader> readers;
  std::vector<std::pair<std::uint64_t, std::size_t>> order;  // of rows: id, and whose answer has it
  for (const RowAnswer& answer : *pulled.answers) {
    const auto owner = static_cast<std::size_t>(std::ranges::find(servers, answer.server) - servers.begin());
    readers.emplace_back(answer, table.homes.share(table.shape, owner), messenger_.world().workers);
    for (const std::uint64_t local : readers.back().ids())
      order.emplace_back(table.homes.global(local, owner), readers.size() - 1);
  }
  // Each server has its rows in order, but a table's rows are dealt out to the servers in turns.
  std::ranges::sort(order);
  Rows rows;
  rows.values.resize(order.size() * table.shape.row_elements);
  auto out = std::span(rows.values);
  for (const auto& [id, reader] : order) {
    rows.ids.push_back(id);
    readers[reader].read(out.first(table.shape.row_elements));
    out = out.subspan(table.shape.row_elements);
  }
  for (const ReplyReader& reader : readers) reader.require_end();
  return rows;
}

// ------------------------------------------------------------------------------------- residuals

Rows SparseRows::residual(TableId id) {
  Table& table = table_at(id);
  const std::lock_guard lock(table.mutex);
  Rows rows{table.residual.ids(), {}};
  for (const std::uint64_t row : rows.ids) {
    const auto values = table.residual.find(row);
    rows.values.insert(rows.values.end(), values.begin(), values.end());
  }
  return rows;
}

double SparseRows::residual_squares() const {
  const std::shared_lock tables_lock(tables_mutex_);
  double squares = 0;
  for (const auto& table : tables_) {
    const std::lock_guard lock(table->mutex);
    for (const std::uint64_t row : table->residual.ids())
      squares += compress::squares_of({}, table->residual.find(row));
  }
  return squares;
}

compress::ShareSent SparseRows::share_sent() const {
  const std::shared_lock tables_lock(tables_mutex_);
  compress::ShareSent share;
  for (const auto& table : tables_) {
    const std::lock_guard lock(table->mutex);
    const auto compression = compression_of(*table);
    if (compression->codec->lossy() && can_send_rows(*compression->codec)) share += table->share;
  }
  return share;
}

void SparseRows::set_residual(TableId id, std::span<const std::int64_t> ids, std::span<const float> values) {
  Table& table = table_at(id);
  const Rows rows = sum_duplicates(ids, values, table.shape);
  const std::lock_guard lock(table.mutex);
  table.residual.clear();
  table.before.clear();
  for (std::size_t i = 0; i < rows.ids.size(); ++i)
    std::ranges::copy(rows.row(i, table.shape.row_elements), table.residual.at(rows.ids[i]).begin());
}

void SparseRows::roll_back(std::span<const TableId> tables) {
  for (const TableId id : tables) {
    Table& table = table_at(id);
    const std::lock_guard lock(table.mutex);
    for (const auto& [row, values] : std::exchange(table.before, {}))
      std::ranges::copy(values, table.residual.at(row).begin());
  }
}

// ------------------------------------------------------------------------------------- what else

bool SparseRows::has_tables() const {
  const std::shared_lock lock(tables_mutex_);
  return !tables_.empty();
}

void SparseRows::settle(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  const std::shared_lock tables_lock(tables_mutex_);
  for (const auto& table : tables_) {
    const std::lock_guard lock(table->mutex);
    if (!table->last_push || table->last_push->failed()) continue;
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    try {
      table->last_push->wait_for(std::max(left, std::chrono::milliseconds(0)));
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): whoever waits for that push is told
    }
  }
}

}  // namespace gradwire::kvstore
