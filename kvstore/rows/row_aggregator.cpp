#include "kvstore/rows/row_aggregator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "compress/codecs.h"
#include "compress/payload/little_endian.h"
#include "kvstore/leftover.h"
#include "kvstore/rows/row_table.h"
#include "kvstore/wire/answer.h"
#include "kvstore/wire/protocol.h"

namespace gradwire::kvstore {
namespace {

using compress::ReplyKind;
using transport::Buffer;
using transport::Frame;
using transport::FrameHeader;
using transport::Kind;
using Ids = std::vector<std::uint64_t>;

}  // namespace

// A push is acknowledged when it is here, a pull is answered when its round is complete. So a worker may push
// several rounds ahead of the others, and `rounds` holds those that lack a push. complete() carries them out
// in order of steps, and `waiting` has the one pull that each worker may have open.
//
// A round that fails counts as over, and its table has failed for good: all pulls get the error of `failure`.

RowAggregator::RowAggregator(std::uint32_t workers, Sealing sealing)
    : workers_(workers), sealing_(sealing), async_workers_(workers) {}
RowAggregator::~RowAggregator() = default;

void RowAggregator::handle(std::uint32_t worker, Frame frame, std::vector<Answer>& answers) {
  const FrameHeader header = frame.header;
  try {
    if (worker >= workers_)
      throw Refused{Refusal::kRows, fmt::format("worker {} is not one of {}", worker, workers_)};
    // Not refused: the worker sends the request again, and its number keeps it from being applied twice.
    if (!frame.payload.is_intact()) return answers.push_back({worker, answer_to(header, Kind::kRowMissing)});
    switch (header.kind) {
      case Kind::kRowInit:
        return on_init(worker, frame, answers);
      case Kind::kRowPush:
        return on_push(worker, frame, answers);
      case Kind::kRowPull:
        return on_pull(worker, frame, answers);
      case Kind::kRowReadState:
        return on_read_state(worker, frame, answers);
      case Kind::kRowWriteState:
        return on_write_state(worker, frame, answers);
      default:
        throw Refused{Refusal::kRows,
                      fmt::format("frame kind {} is no request for rows", static_cast<int>(header.kind))};
    }
  } catch (const Refused& refused) {
    answers.push_back({worker, refusal_of(header, refused)});
  } catch (const std::exception& error) {  // what it holds, or an allocation that failed for it
    answers.push_back({worker, refusal_of(header, {Refusal::kRows, error.what()})});
  }
}

RowAggregator::Table& RowAggregator::table_of(const FrameHeader& header, const RowShape& shape) {
  Table* table = find_table(header.key);
  if (table == nullptr) {
    table = tables_.emplace(header.key, std::make_unique<Table>(header.key, shape)).first->second.get();
  }
  require_shape(*table, shape);
  return *table;
}

RowAggregator::Table* RowAggregator::find_table(std::uint64_t key) const {
  const auto found = tables_.find(key);
  return found == tables_.end() ? nullptr : found->second.get();
}

void RowAggregator::require_shape(const Table& table, const RowShape& shape) {
  if (table.shape == shape) return;
  throw Refused{Refusal::kRows,
                fmt::format("table {} has {} rows of {} elements here, {} of {} given", table.key,
                            table.shape.rows, table.shape.row_elements, shape.rows, shape.row_elements)};
}

// ------------------------------------------------------------------------------------- first values

void RowAggregator::on_init(std::uint32_t worker, const Frame& frame, std::vector<Answer>& answers) {
  const OpenedRows opened = open_rows(frame.payload.bytes(), frame.header.count);
  require_row_bytes(opened.body, opened.ids.size(), opened.shape.row_bytes());
  Table& table = table_of(frame.header, opened.shape);
  // A repeated request must undo neither pushes nor later first values.
  if (table.next_step == 0 && table.rounds.empty() &&
      table.inits[worker].insert(frame.header.offset).second) {
    table.has_values = true;
    table.kept.reset();
    for (std::size_t i = 0; i < opened.ids.size(); ++i) {
      const auto row = row_at(opened.body, i, opened.shape.row_bytes());
      std::memcpy(table.values.at(opened.ids[i]).data(), row.data(), row.size());
    }
  }
  // Also where nothing was stored: the first acknowledgement may have been lost.
  answers.push_back({worker, answer_to(frame.header, Kind::kRowAck)});
}

// ------------------------------------------------------------------------------------- rounds

RowAggregator::Contribution RowAggregator::checked(const Frame& frame, const compress::Codec& codec) {
  OpenedRows opened = open_rows(frame.payload.bytes(), frame.header.count);
  const std::size_t row_bytes = codec.max_encoded_size(opened.shape.row_elements);
  require_row_bytes(opened.body, opened.ids.size(), row_bytes);
  for (std::size_t i = 0; i < opened.ids.size(); ++i)
    codec.validate(row_at(opened.body, i, row_bytes), opened.shape.row_elements);
  const std::size_t head = frame.payload.size_bytes() - opened.body.size();
  return {opened.shape, std::move(opened.ids), frame.payload.share(head, opened.body.size())};
}

void RowAggregator::on_push(std::uint32_t worker, const Frame& frame, std::vector<Answer>& answers) {
  const FrameHeader& header = frame.header;
  const auto& codec = codecs_.of(header);
  if (!can_send_rows(codec)) {
    throw Refused{Refusal::kRows, fmt::format("push of table {}: codec {} agrees scales from round to round, "
                                              "which rows that come and go cannot",
                                              header.key, codec.name())};
  }
  if (header.reply > static_cast<std::uint8_t>(ReplyKind::kSame) ||
      (static_cast<ReplyKind>(header.reply) == ReplyKind::kExact && !codec.has_exact_reply())) {
    throw Refused{Refusal::kRows, fmt::format("push of table {}: codec {} has no reply kind {}", header.key,
                                              codec.name(), header.reply)};
  }
  // Before the table is made, so that a bad push takes no memory.
  Contribution contribution = checked(frame, codec);
  Table& table = table_of(header, contribution.shape);
  if (updater_.is_set() && !table.has_values) {
    throw Refused{
        Refusal::kRows,
        fmt::format("push of table {}: the optimizer has no weights yet; init the table first", header.key)};
  }
  if (async_workers_.has_policy()) return push_async(worker, table, header, std::move(contribution), answers);
  if (RoundGate::is_too_far_ahead(header.step, table.next_step)) {
    // Held and not refused: pushes of rows are acknowledged at once, so a worker may get this far ahead
    // without a mistake.
    return hold(worker, table, header, answers);  // and keeps nothing of it: the worker will ask again
  }
  if (header.step >= table.next_step)  // else repeated: its round is complete
    accept(worker, table, header, std::move(contribution));
  // A repeated push is acknowledged too: the first acknowledgement may have been lost.
  answers.push_back({worker, answer_to(header, Kind::kRowAck)});
  complete(table);
  answer_waiting(table, answers);
  // This push may have completed the round before one that needs a worker that has left.
  fail_lost(table, answers);
}

void RowAggregator::accept(std::uint32_t worker, Table& table, const FrameHeader& header,
                           Contribution contribution) {
  auto [found, opened] = table.rounds.try_emplace(header.step);
  Round& round = found->second;
  if (opened) {
    round.first = header;
    round.contributions.resize(workers_);
  }
  gate_.require_alike(worker, header, round.first);
  if (round.contributions[worker]) return;  // repeated
  round.flags |= header.flags & transport::kFlagNonfinite;
  round.program_steps.add(worker, header.program_step);
  round.contributions[worker] = std::move(contribution);
  ++round.arrived;
}

void RowAggregator::complete(Table& table) {
  for (auto next = table.rounds.begin();
       next != table.rounds.end() && next->first == table.next_step && next->second.arrived == workers_;
       next = table.rounds.begin()) {
    const Round round = std::move(next->second);
    table.rounds.erase(next);
    ++table.next_step;
    carry_out(table, round);
  }
}

/// Updates the rows of a round, or sums them.
void RowAggregator::carry_out(Table& table, const Round& round) {
  table.has_gone_on = true;
  table.kept.reset();
  table.whole.reset();
  // Also if the round fails. Then pulls get the failure, and nothing of the round before.
  table.last.clear();
  try {
    round.program_steps.require_alike();
    updater_.is_set() ? update(table, round) : sum(table, round);
  } catch (const std::exception& error) {  // rows fine one by one, but not together
    table.failure = fmt::format("table {} step {}: {}", table.key, round.first.step, error.what());
  }
}

namespace {

/// Calls visit(id, payloads) for every row that anybody sent, and for those that are `left` (ascending), in
/// ascending order; its payloads are in rank order, none where nobody sent it.
template <typename Contributions, typename Visit>
void for_each_row(const Contributions& contributions, std::size_t row_bytes, const Ids& left,
                  const Visit& visit) {
  constexpr auto kNone = std::numeric_limits<std::uint64_t>::max();
  std::vector<std::size_t> at(contributions.size());
  std::vector<compress::Payload> payloads;
  const auto id_at = [&](std::size_t rank) {
    return at[rank] < contributions[rank]->ids.size() ? contributions[rank]->ids[at[rank]] : kNone;
  };
  for (auto at_left = left.begin();;) {
    std::uint64_t next = at_left == left.end() ? kNone : *at_left;
    for (std::size_t rank = 0; rank < at.size(); ++rank) next = std::min(next, id_at(rank));
    if (next == kNone) return;
    if (at_left != left.end() && *at_left == next) ++at_left;
    payloads.clear();
    // In rank order, so that a row's sum has the bits of a dense key's.
    for (std::size_t rank = 0; rank < at.size(); ++rank) {
      if (id_at(rank) != next) continue;
      payloads.push_back(row_at(contributions[rank]->rows.bytes(), at[rank]++, row_bytes));
    }
    visit(next, payloads);
  }
}

}  // namespace

void RowAggregator::sum(Table& table, const Round& round) {
  const auto& codec = codecs_.of(round.first);
  const std::size_t width = table.shape.row_elements;
  const auto kind = static_cast<ReplyKind>(round.first.reply);
  const bool keeps_residual = kind == ReplyKind::kSame && codec.lossy();
  table.has_values = false;  // from now on the sums are what a pull gets
  table.values.clear();
  table.has_sums = true;
  if (!keeps_residual && table.residual.size() > 0) return sum_with_leftover(table, round);
  Table::Sums sums{round.first, {}, {0}, {}};
  sums.header.flags = round.flags;
  for_each_row(
      round.contributions, codec.max_encoded_size(width), {}, [&](std::uint64_t id, const auto& payloads) {
        const std::size_t begin = sums.bytes.size();
        sums.bytes.resize(begin + codec.max_reply_size(width, payloads.size(), kind));
        const auto residual = keeps_residual ? table.residual.at(id) : std::span<float>();
        const auto encoded =
            codec.encode_reply(payloads, width, kind, residual, std::span(sums.bytes).subspan(begin));
        if (encoded.nonfinite) sums.header.flags |= transport::kFlagNonfinite;
        table.last.push_back(id);
        sums.ways.push_back(static_cast<std::uint16_t>(payloads.size()));
        sums.begins.push_back(sums.bytes.size());
      });
  table.sums = std::move(sums);
}

/// As float32: the sums of a round's rows, and what replies of another kind have left of these and of other
/// rows, which this kind, being without loss, could not carry.
void RowAggregator::sum_with_leftover(Table& table, const Round& round) {
  const auto floats = compress::make({});
  Table::Sums sums{round.first, {}, {0}, {}};
  sums.header.flags = round.flags;
  sums.header.codec = static_cast<std::uint8_t>(floats->wire_id());
  sums.header.codec_parameters = floats->wire_parameters();
  sums.header.reply = static_cast<std::uint8_t>(ReplyKind::kFp32);
  for_each_sum(table, round, [&](std::uint64_t id, std::span<const float> sum) {
    const auto bytes = std::as_bytes(sum);
    sums.bytes.insert(sums.bytes.end(), bytes.begin(), bytes.end());
    sums.begins.push_back(sums.bytes.size());
    // Float32 decodes alike for any number of workers, so the number does not travel.
    sums.ways.push_back(1);
    if (!std::ranges::all_of(sum, [](float value) { return std::isfinite(value); }))
      sums.header.flags |= transport::kFlagNonfinite;
    table.last.push_back(id);
  });
  table.sums = std::move(sums);
}

/// Calls visit(id, sum) for the rows of a round, and for those of which replies before have left something;
/// nothing is left of them then.
void RowAggregator::for_each_sum(Table& table, const Round& round,
                                 const std::function<void(std::uint64_t, std::span<const float>)>& visit) {
  const auto& codec = codecs_.of(round.first);
  StoredRows left = std::exchange(table.residual, StoredRows(table.shape.row_elements));
  Ids left_ids = left.ids();
  std::erase_if(left_ids, [&](std::uint64_t id) { return is_all_sent(left.find(id)); });
  std::vector<float> sum(table.shape.row_elements);
  for_each_row(round.contributions, codec.max_encoded_size(sum.size()), left_ids,
               [&](std::uint64_t id, const auto& payloads) {
                 std::ranges::fill(sum, 0.0F);
                 if (!payloads.empty()) codec.decode_sum(payloads, sum);
                 if (!left.find(id).empty()) {
                   add_leftover<float>(sum, left.at(id));
                   if (!is_all_sent(left.find(id)))
                     std::ranges::copy(left.find(id), table.residual.at(id).begin());
                 }
                 visit(id, sum);
               });
}

/// Where a job has summed so far, what a pull brings is what an optimizer goes on from: the last round's
/// sums, and zeros elsewhere.
void RowAggregator::begin_with_sums(Table& table) {
  if (table.has_values || !table.has_sums) return;
  const Table::Sums& sums = table.sums;
  const auto& codec = codecs_.of(sums.header);
  for (std::size_t i = 0; i < table.last.size(); ++i) {
    const auto row = std::span(sums.bytes).subspan(sums.begins[i], sums.begins[i + 1] - sums.begins[i]);
    codec.decode_reply(row, sums.ways[i], static_cast<ReplyKind>(sums.header.reply),
                       table.values.at(table.last[i]), {});
  }
  table.has_values = true;
  table.kept.reset();
  // It has the sums, and answers are weights from now on.
  table.whole.reset();
}

void RowAggregator::update(Table& table, const Round& round) {
  // Moments of another optimizer mean something else.
  if (std::exchange(table.optimizer, updater_.name) != updater_.name) {
    table.states.clear();
    table.optimizer_steps = 0;
  }
  // Weights take the place of sums. Of the round itself only the flags go on, into answers.
  table.sums = {};
  table.sums.header.flags = round.flags;
  for_each_sum(table, round, [&](std::uint64_t id, std::span<const float> gradient) {
    OptimizerState& state = table.states[id];
    // Rounds count for the whole table, while moments of a row stand still when nobody pushes it.
    state.steps = table.optimizer_steps;
    updater_.updater->update(table.values.at(id), gradient, state);
    table.last.push_back(id);
  });
  ++table.optimizer_steps;
}

// ------------------------------------------------------------------------------------- answers

void RowAggregator::on_pull(std::uint32_t worker, const Frame& frame, std::vector<Answer>& answers) {
  const FrameHeader& header = frame.header;
  Pull pull{header, std::nullopt};
  // Not table_of(): a pull must not make a table, since its shape would be what the peer says.
  Table* table = find_table(header.key);
  if (table == nullptr) {
    if (header.step > 0) return await_first_push(worker, header, answers);
    throw Refused{Refusal::kRows,
                  fmt::format("pull of table {}: nobody has initialised it or pushed to it; do that first",
                              header.key)};
  }
  if (frame.payload.size_bytes() > 0) {
    OpenedRows opened = open_rows(frame.payload.bytes(), header.count);
    require_row_bytes(opened.body, 0, 0);
    require_shape(*table, opened.shape);
    pull.asked = std::move(opened.ids);
  }
  if (async_workers_.has_policy()) return pull_async(worker, *table, std::move(pull), answers);
  if (header.step < table->next_step) return;  // repeated: its answer is on its way
  if (header.step == table->next_step) {
    return answers.push_back({worker, answer(*table, pull)});
  }
  if (header.step > table->next_step + RoundGate::kMaxStepsAhead) {
    throw Refused{Refusal::kRows,
                  fmt::format("pull of table {} is for step {}, more than {} ahead of step {}", header.key,
                              header.step, RoundGate::kMaxStepsAhead, table->next_step)};
  }
  // A round that needs a worker that has left never ends. The pull is refused now, and not noted.
  require_missing_workers(*table);
  if (!table->waiting.insert_or_assign(worker, std::move(pull)).second)  // repeated: it would like to know
    hold(worker, *table, header, answers);
}

/// Who asks for a round has pushed to it: that was lost on the way, and comes again, as does the question.
void RowAggregator::await_first_push(std::uint32_t worker, const FrameHeader& request,
                                     std::vector<Answer>& answers) const {
  std::vector<std::uint32_t> all(workers_);
  std::iota(all.begin(), all.end(), 0U);
  answers.push_back({worker, held(request, all, Kind::kRowHeld)});
}

/// Of the round that comes next.
void RowAggregator::require_missing_workers(const Table& table) const {
  for (const std::uint32_t rank : missing(table)) {
    if (gate_.gone().contains(rank))
      throw Refused{Refusal::kRows, gate_.describe(rank, table.next_step, table.key)};
  }
}

void RowAggregator::hold(std::uint32_t worker, const Table& table, const FrameHeader& request,
                         std::vector<Answer>& answers) const {
  require_missing_workers(table);
  answers.push_back({worker, held(request, missing(table), Kind::kRowHeld)});
}

/// Whose pushes the next round lacks.
std::vector<std::uint32_t> RowAggregator::missing(const Table& table) const {
  const auto round = table.rounds.find(table.next_step);
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t rank = 0; rank < workers_; ++rank) {
    if (round == table.rounds.end() || !round->second.contributions[rank]) ranks.push_back(rank);
  }
  return ranks;
}

void RowAggregator::answer_waiting(Table& table, std::vector<Answer>& answers) {
  for (auto at = table.waiting.begin(); at != table.waiting.end();) {
    const auto& [worker, pull] = *at;
    if (pull.header.step > table.next_step) {
      ++at;
      continue;
    }
    // A pull of an earlier step was answered: its worker pushes again only after that (row_client.h).
    if (pull.header.step == table.next_step) answers.push_back({worker, answer(table, pull)});
    at = table.waiting.erase(at);
  }
}

Frame RowAggregator::answer(Table& table, const Pull& pull) {
  if (!table.failure.empty()) return refusal_of(pull.header, {Refusal::kRows, table.failure});
  // Also a table that a checkpoint of sums has brought, before its next round.
  if (!table.has_values && !table.has_sums) {
    return refusal_of(
        pull.header,
        {Refusal::kRows, fmt::format("pull of table {}: nobody has initialised it, and no round of it is "
                                     "complete here; init it, or pull after a push of your own",
                                     table.key)});
  }
  const auto make = [&] { return table.has_values ? weights(table, pull) : sums(table, pull); };
  if (pull.asked) return make();
  // All workers get the same bytes. What differs is what identifies the request, which is set below.
  if (!table.whole) table.whole = make();
  Frame frame{table.whole->header, table.whole->payload.share()};
  frame.header.offset = pull.header.offset;
  frame.header.priority = pull.header.priority;
  return frame;
}

Frame RowAggregator::weights(const Table& table, const Pull& pull) {
  Ids ids;
  for (const std::uint64_t id : pull.asked ? *pull.asked : table.last) {
    // Rows that were never written are zero, and are left out.
    if (!table.values.find(id).empty()) ids.push_back(id);
  }
  Buffer out = pool_.take(max_row_head_bytes(ids.size()) + ids.size() * table.shape.row_bytes());
  std::size_t end = write_row_head(table.shape, ids, out.bytes());
  for (const std::uint64_t id : ids) {
    const auto row = table.values.find(id);
    std::memcpy(out.bytes().data() + end, row.data(), row.size_bytes());
    end += row.size_bytes();
  }
  out.truncate(end);
  if (sealing_ == Sealing::kAll) out.seal();
  Frame frame = answer_to(pull.header, Kind::kRowReply, std::move(out));
  frame.header.count = ids.size();
  frame.header.content = static_cast<std::uint8_t>(Content::kWeight);
  frame.header.flags = table.sums.header.flags;
  return frame;
}

Frame RowAggregator::sums(const Table& table, const Pull& pull) {
  std::vector<std::size_t> found;  // of the last round's rows
  Ids ids;
  for (std::size_t i = 0, asked = 0; i < table.last.size(); ++i) {
    if (pull.asked) {
      // Both lists ascend, so one pass finds what they have in common.
      while (asked < pull.asked->size() && (*pull.asked)[asked] < table.last[i]) ++asked;
      if (asked == pull.asked->size()) break;
      if ((*pull.asked)[asked] != table.last[i]) continue;
    }
    found.push_back(i);
    ids.push_back(table.last[i]);
  }
  const auto& sums = table.sums;
  std::size_t bytes = max_row_head_bytes(ids.size());
  for (const std::size_t i : found) bytes += sizeof(std::uint16_t) + sums.begins[i + 1] - sums.begins[i];
  Buffer out = pool_.take(bytes);
  std::size_t end = write_row_head(table.shape, ids, out.bytes());
  const FrameHeader& header = sums.header;
  const auto& codec = codecs_.of(header);
  if (tells_ways(codec, static_cast<ReplyKind>(header.reply))) {
    for (const std::size_t i : found) {
      compress::store(sums.ways[i], out.bytes().data() + end);
      end += sizeof(std::uint16_t);
    }
  }
  for (const std::size_t i : found) {
    const auto row = std::span(sums.bytes).subspan(sums.begins[i], sums.begins[i + 1] - sums.begins[i]);
    std::memcpy(out.bytes().data() + end, row.data(), row.size());
    end += row.size();
  }
  out.truncate(end);
  if (seals(sealing_, codec)) out.seal();
  Frame frame = answer_to(pull.header, Kind::kRowReply, std::move(out));
  frame.header.count = ids.size();
  frame.header.codec = header.codec;
  frame.header.codec_parameters = header.codec_parameters;
  frame.header.reply = header.reply;
  frame.header.flags = header.flags;
  frame.header.content = static_cast<std::uint8_t>(Content::kSum);
  return frame;
}

// ------------------------------------------------------------------------------------- what else it hears

void RowAggregator::heed(std::uint32_t worker, const Frame& command, std::vector<Answer>& answers) {
  const std::string text = transport::payload_text(command);
  constexpr std::string_view kOptimizer = "optimizer ";
  constexpr std::string_view kRounds = "rounds ";
  if (text.starts_with(kOptimizer)) {
    const OptimizerSpec spec = parse_optimizer(text.substr(kOptimizer.size()));
    updater_ = {make_updater(spec), spec.name};
    // Now, because the next push is refused if the table has no values to update.
    for (auto& [key, table] : tables_) begin_with_sums(*table);
  } else if (text.starts_with(kRounds)) {
    async_workers_.set_policy(parse_async_policy(std::string_view(text).substr(kRounds.size())));
  } else if (text == "meet") {
    on_meet(worker, answers);
  } else if (text == "back") {
    async_workers_.come_back(worker);
  }
}

void RowAggregator::forget_worker(std::uint32_t worker, std::vector<Answer>& answers,
                                  const std::string& error) {
  gate_.forget_worker(worker, error);
  async_workers_.forget(worker);
  for (auto& [key, table] : tables_)
    async_workers_.has_policy() ? forget_async(worker, *table, answers) : fail_lost(*table, answers);
}

/// Fails those who wait for a round that will never be complete.
void RowAggregator::fail_lost(Table& table, std::vector<Answer>& answers) {
  if (table.waiting.empty() || gate_.gone().empty()) return;
  // Of the next round only. The rounds behind it cannot complete before it does.
  const auto awaited = missing(table);
  const auto lost = std::ranges::find_if(awaited, [this](auto rank) { return gate_.gone().contains(rank); });
  if (lost == awaited.end()) return;
  for (const auto& [rank, pull] : std::exchange(table.waiting, {})) {
    if (gate_.gone().contains(rank)) continue;
    answers.push_back(
        {rank, refusal_of(pull.header, {Refusal::kRows, gate_.describe(*lost, table.next_step, table.key)})});
  }
}

}  // namespace gradwire::kvstore
