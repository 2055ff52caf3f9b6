#include "kvstore/collectives/collectives.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "kvstore/runtime/ticket.h"
#include "kvstore/wire/agreement.h"

namespace gradwire::kvstore {
namespace {

/// Parts of one collective whose blobs must not be taken for each other's.
enum Phase : std::uint64_t { kGiven = 0, kResult = 1 };

/// Pieces of one collective in all: bounds what a server must remember, whatever the size of arrays.
constexpr std::uint64_t kMostPieces = 16'384;
/// What is fetched ahead of the piece that is being reduced.
constexpr std::uint64_t kAheadBytes = std::uint64_t{16} << 20;

template <typename Visit>
void for_each_piece(const Run& run, std::uint64_t piece_bytes, const Visit& visit) {
  for (std::uint64_t at = 0; at < run.count; at += piece_bytes)
    visit(Run{run.offset + at, std::min(piece_bytes, run.count - at)});
}

template <typename Bytes>
auto part_of(Bytes bytes, const Run& run) {
  return bytes.subspan(run.offset, run.count);
}

void copy(std::span<const std::byte> from, std::span<std::byte> to) {
  if (!from.empty() && from.data() != to.data()) std::memcpy(to.data(), from.data(), from.size());
}

/// Runs of elements as runs of bytes.
Run in_bytes(const Run& elements, std::uint64_t width) {
  return {elements.offset * width, elements.count * width};
}

std::vector<Run> shares_in_bytes(std::uint64_t rows, std::uint64_t row_bytes, std::uint32_t parts) {
  std::vector<Run> shares;
  for (std::uint32_t i = 0; i < parts; ++i)
    shares.push_back(in_bytes(near_equal_share(rows, parts, i), row_bytes));
  return shares;
}

void require_size(const char* what, std::uint64_t given, std::uint64_t expected) {
  if (given == expected) return;
  throw std::invalid_argument(fmt::format("{}: out has {} bytes, expected {}", what, given, expected));
}

std::uint64_t elements_of(const char* what, std::span<const std::byte> bytes, DataType type) {
  if (bytes.size() % bytes_of(type) == 0) return bytes.size() / bytes_of(type);
  throw std::invalid_argument(
      fmt::format("{}: {} bytes are no whole number of {}", what, bytes.size(), name_of(type)));
}

}  // namespace

Run near_equal_share(std::uint64_t total, std::uint32_t parts, std::uint32_t index) {
  const std::uint64_t least = total / parts;
  const std::uint64_t longer = total % parts;
  return {index * least + std::min<std::uint64_t>(index, longer), least + (index < longer ? 1 : 0)};
}

// A collective begins with agree(), an exchange that finds differences between the ranks and collects sizes.
// Then it posts blobs, which borrow the caller's memory. It asks for others' blobs early, because a server
// keeps a fetch until its blob comes. Blobs waits for all of them, also where one has failed.

// One collective's blobs. It outlasts none of its tickets: arrays and scratch memory are the caller's again
// when it has gone.
class Collectives::Blobs {
 public:
  Blobs(BlobClient& blobs, const char* what, std::uint64_t sequence, std::uint32_t rank,
        std::uint64_t piece_bytes)
      : blobs_(blobs), what_(what), sequence_(sequence), rank_(rank), piece_bytes_(piece_bytes) {}

  ~Blobs() {
    for (const Ticket& ticket : tickets_) {
      try {
        ticket.wait();
      } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): told by wait(), or by the first
      }
    }
  }
  Blobs(const Blobs&) = delete;
  Blobs& operator=(const Blobs&) = delete;

  std::uint64_t piece_bytes() const { return piece_bytes_; }

  /// Posts a piece of an array of which bytes is the whole.
  void post(Phase phase, const Run& piece, const Readers& readers, std::span<const std::byte> bytes) {
    post_at(phase, piece.offset, readers, part_of(bytes, piece));
  }

  void post_at(Phase phase, std::uint64_t offset, const Readers& readers, std::span<const std::byte> piece) {
    tickets_.push_back(blobs_.post(what_, {rank_, sequence_, phase, offset}, readers, piece));
  }

  Ticket fetch(std::uint32_t poster, Phase phase, std::uint64_t offset, std::span<std::byte> into) {
    tickets_.push_back(blobs_.fetch(what_, {poster, sequence_, phase, offset}, into));
    return tickets_.back();
  }

  /// Fetches a run that poster cut into pieces.
  void fetch_run(std::uint32_t poster, Phase phase, const Run& run, std::span<std::byte> into) {
    for_each_piece(run, piece_bytes_, [&](const Run& piece) {
      fetch(poster, phase, piece.offset, into.subspan(piece.offset - run.offset, piece.count));
    });
  }

  void wait() {
    for (const Ticket& ticket : tickets_) ticket.wait();
    tickets_.clear();
  }

 private:
  BlobClient& blobs_;
  const char* what_;
  std::uint64_t sequence_;
  std::uint32_t rank_;
  std::uint64_t piece_bytes_;
  std::vector<Ticket> tickets_;
};

Collectives::Collectives(transport::Messenger& messenger, BlobClient& blobs, std::uint64_t piece_bytes,
                         Meet meet)
    : messenger_(messenger),
      blobs_(blobs),
      piece_bytes_(piece_bytes),
      meet_(std::move(meet)),
      rank_(messenger.self().rank),
      workers_(messenger.world().workers),
      hosts_server_(messenger.local_peer().has_value()) {
  if (piece_bytes == 0 || piece_bytes % 8 != 0) {
    throw std::invalid_argument(
        fmt::format("Collectives: piece_bytes={}, expected a multiple of 8", piece_bytes));
  }
}

// ------------------------------------------------------------------------------------- agreement

/// Compares settings over the workers and returns everybody's counts, by rank.
std::vector<std::vector<std::uint64_t>> Collectives::agree(const char* what, const std::string& settings,
                                                           std::span<const std::uint64_t> counts) {
  auto texts = meet_(what, fmt::format("{}\n{}", fmt::join(counts, ","), settings));
  std::vector<std::vector<std::uint64_t>> all;
  for (std::string& text : texts) {
    std::istringstream first_line(text.substr(0, text.find('\n')));
    text.erase(0, text.find('\n') + 1);
    auto& row = all.emplace_back();
    for (std::string number; std::getline(first_line, number, ',');) row.push_back(std::stoull(number));
    row.resize(counts.size());
  }
  agree_on_settings(messenger_, what, std::move(texts));
  // Only where all agree: a call that was refused on all ranks takes no number.
  ++sequence_;
  return all;
}

std::uint64_t Collectives::piece_bytes_for(std::uint64_t total_bytes) const {
  const std::uint64_t least = total_bytes / kMostPieces;
  // Whole elements of every type: the largest has 8 bytes.
  return std::max(piece_bytes_, (least / 8 + 1) * 8);
}

/// The other ranks, beginning after one's own, or all would ask one first.
std::vector<std::uint32_t> Collectives::others() const {
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t i = 1; i < workers_; ++i) ranks.push_back((rank_ + i) % workers_);
  return ranks;
}

// ------------------------------------------------------------------------------------- reductions

void Collectives::all_reduce(std::span<const std::byte> in, std::span<std::byte> out, DataType type,
                             ReduceOp op, std::string_view agreed) {
  constexpr auto kWhat = "all_reduce";
  const std::uint64_t elements = elements_of(kWhat, in, type);
  require_size(kWhat, out.size(), in.size());
  agree(kWhat, fmt::format("op={}\ndtype={}\nelements={}\n{}", name_of(op), name_of(type), elements, agreed));
  require_defined(op, type);  // now that it is the same on all
  const auto shares = shares_in_bytes(elements, bytes_of(type), workers_);
  Blobs blobs(blobs_, kWhat, sequence_, rank_, piece_bytes_for(in.size()));
  post_shares(blobs, in, shares);
  // In place, a result overwrites only what its maker has received from here before.
  for (const std::uint32_t rank : others())
    blobs.fetch_run(rank, kResult, shares[rank], part_of(out, shares[rank]));
  reduce_share(blobs, in, shares[rank_], part_of(out, shares[rank_]), type, op, [&](const Run& piece) {
    // A blob needs a reader.
    if (workers_ > 1) blobs.post(kResult, piece, {}, out);
  });
  blobs.wait();
}

void Collectives::reduce_scatter(std::span<const std::byte> in, std::span<std::byte> out, DataType type,
                                 ReduceOp op, std::uint64_t row_elements, std::string_view agreed) {
  constexpr auto kWhat = "reduce_scatter";
  const std::uint64_t elements = elements_of(kWhat, in, type);
  if (row_elements == 0 || elements % row_elements != 0) {
    throw std::invalid_argument(
        fmt::format("{}: {} elements are no whole rows of {}", kWhat, elements, row_elements));
  }
  const auto shares = shares_in_bytes(elements / row_elements, row_elements * bytes_of(type), workers_);
  require_size(kWhat, out.size(), shares[rank_].count);
  agree(kWhat, fmt::format("op={}\ndtype={}\nelements={}\nrow_elements={}\n{}", name_of(op), name_of(type),
                           elements, row_elements, agreed));
  require_defined(op, type);
  Blobs blobs(blobs_, kWhat, sequence_, rank_, piece_bytes_for(in.size()));
  post_shares(blobs, in, shares);
  reduce_share(blobs, in, shares[rank_], out, type, op, [](const Run&) {});
  blobs.wait();
}

/// Gives everybody's share to who reduces it, a piece of each in turn.
void Collectives::post_shares(Blobs& blobs, std::span<const std::byte> in,
                              std::span<const Run> shares) const {
  const std::uint64_t longest = shares.front().count;
  for (std::uint64_t at = 0; at < longest; at += blobs.piece_bytes()) {
    for (const std::uint32_t rank : others()) {
      // Shares differ by one row, so the shorter ones may have a piece less.
      if (at >= shares[rank].count) continue;
      const Run piece{shares[rank].offset + at, std::min(blobs.piece_bytes(), shares[rank].count - at)};
      blobs.post(kGiven, piece, {.only = rank}, in);
    }
  }
}

/// Reduces this worker's share of all workers' arrays, piece by piece as they come; out holds the share.
template <typename Reduced>
void Collectives::reduce_share(Blobs& blobs, std::span<const std::byte> in, const Run& share,
                               std::span<std::byte> out, DataType type, ReduceOp op,
                               const Reduced& reduced) const {
  std::vector<Run> pieces;
  for_each_piece(share, blobs.piece_bytes(), [&](const Run& piece) { pieces.push_back(piece); });
  if (pieces.empty()) return;
  const std::uint64_t slot_bytes = pieces.front().count * (workers_ - 1);
  // Two at least: one piece arrives while the other is reduced.
  const std::size_t slots = std::min<std::size_t>(
      pieces.size(), std::max<std::uint64_t>(2, kAheadBytes / std::max<std::uint64_t>(slot_bytes, 1)));
  auto scratch = transport::Buffer::allocate(slots * slot_bytes);
  const auto theirs = [&](std::size_t piece, std::size_t other) {
    return scratch.bytes().subspan((piece % slots) * slot_bytes + other * pieces.front().count,
                                   pieces[piece].count);
  };
  const auto ranks = others();
  std::vector<std::vector<Ticket>> arrived(pieces.size());
  const auto fetch = [&](std::size_t piece) {
    if (piece >= pieces.size()) return;
    for (std::size_t i = 0; i < ranks.size(); ++i)
      arrived[piece].push_back(blobs.fetch(ranks[i], kGiven, pieces[piece].offset, theirs(piece, i)));
  };
  for (std::size_t piece = 0; piece < slots; ++piece) fetch(piece);
  std::vector<std::span<const std::byte>> parts(workers_);
  for (std::size_t piece = 0; piece < pieces.size(); ++piece) {
    for (const Ticket& ticket : std::exchange(arrived[piece], {})) ticket.wait();
    parts[rank_] = part_of(in, pieces[piece]);
    for (std::size_t i = 0; i < ranks.size(); ++i) parts[ranks[i]] = theirs(piece, i);
    reduce(parts, type, op, out.subspan(pieces[piece].offset - share.offset, pieces[piece].count));
    reduced(pieces[piece]);
    // Only now: its slot has the bytes that were just reduced.
    fetch(piece + slots);
  }
}

// ------------------------------------------------------------------------------------- moves

void Collectives::broadcast(std::span<std::byte> values, DataType type, std::uint32_t root,
                            std::string_view agreed) {
  constexpr auto kWhat = "broadcast";
  agree(kWhat, fmt::format("root={}\ndtype={}\nelements={}\n{}", root, name_of(type),
                           elements_of(kWhat, values, type), agreed));
  // After the exchange, in which root is the same on all: all of them throw.
  if (root >= workers_) {
    throw std::invalid_argument(
        fmt::format("{}: root={} is not a worker rank; expected 0 to {}", kWhat, root, workers_ - 1));
  }
  if (workers_ == 1) return;
  const Run all{0, values.size()};
  Blobs blobs(blobs_, kWhat, sequence_, rank_, piece_bytes_for(values.size()));
  // Dedicated servers get the root's bytes once in any case. Two workers, or one piece, leave nothing to
  // share out.
  if (hosts_server_ && workers_ > 2 && values.size() > blobs.piece_bytes()) {
    scatter_and_gather(blobs, values, root);
  } else if (rank_ == root) {
    for_each_piece(all, blobs.piece_bytes(),
                   [&](const Run& piece) { blobs.post(kGiven, piece, {}, values); });
  } else {
    blobs.fetch_run(root, kGiven, all, values);
  }
  blobs.wait();
}

/// Each but the root gets a share from it, and passes that on to the rest: the root sends everything once,
/// not once to each.
void Collectives::scatter_and_gather(Blobs& blobs, std::span<std::byte> values, std::uint32_t root) const {
  const auto shares = shares_in_bytes(values.size(), 1, workers_ - 1);
  const auto share_of = [&](std::uint32_t rank) { return shares[rank < root ? rank : rank - 1]; };
  if (rank_ == root) {
    for (const std::uint32_t rank : others()) {
      for_each_piece(share_of(rank), blobs.piece_bytes(),
                     [&](const Run& piece) { blobs.post(kGiven, piece, {.only = rank}, values); });
    }
    return;
  }
  std::vector<std::pair<Run, Ticket>> own;
  for_each_piece(share_of(rank_), blobs.piece_bytes(), [&](const Run& piece) {
    own.emplace_back(piece, blobs.fetch(root, kGiven, piece.offset, part_of(values, piece)));
  });
  for (const std::uint32_t rank : others()) {
    if (rank != root) blobs.fetch_run(rank, kResult, share_of(rank), part_of(values, share_of(rank)));
  }
  for (const auto& [piece, arrived] : own) {
    // A blob is the memory of its poster, so a piece is passed on when it is there.
    arrived.wait();
    // The root has the values, and fetches nothing.
    blobs.post(kResult, piece, {.except = root}, values);
  }
}

Blocks Collectives::all_gather(std::span<const std::byte> block, DataType type, std::string_view agreed) {
  constexpr auto kWhat = "all_gather";
  const std::uint64_t width = bytes_of(type);
  const std::uint64_t elements[] = {elements_of(kWhat, block, type)};
  const auto counts = agree(kWhat, fmt::format("dtype={}\n{}", name_of(type), agreed), elements);
  Blocks blocks;
  std::vector<Run> runs;  // of the result
  std::uint64_t total = 0;
  for (const auto& row : counts) {
    blocks.elements.push_back(row[0]);
    runs.push_back({total, row[0] * width});
    total += row[0] * width;
  }
  blocks.bytes = transport::Buffer::allocate(total);
  const auto out = blocks.bytes.bytes();
  Blobs blobs(blobs_, kWhat, sequence_, rank_, piece_bytes_for(total));
  if (workers_ > 1) {
    for_each_piece({0, block.size()}, blobs.piece_bytes(),
                   [&](const Run& piece) { blobs.post(kGiven, piece, {}, block); });
  }
  for (const std::uint32_t rank : others())
    blobs.fetch_run(rank, kGiven, {0, runs[rank].count}, part_of(out, runs[rank]));
  // While the blobs travel.
  copy(block, part_of(out, runs[rank_]));
  blobs.wait();
  return blocks;
}

Blocks Collectives::all_to_all(std::span<const std::span<const std::byte>> given, DataType type,
                               std::string_view agreed) {
  constexpr auto kWhat = "all_to_all";
  const std::uint64_t width = bytes_of(type);
  if (given.size() != workers_) {
    throw std::invalid_argument(fmt::format("{}: {} blocks given, expected one for each of {} workers", kWhat,
                                            given.size(), workers_));
  }
  std::vector<std::uint64_t> elements;
  for (const auto block : given) elements.push_back(elements_of(kWhat, block, type));
  const auto counts = agree(kWhat, fmt::format("dtype={}\n{}", name_of(type), agreed), elements);

  // A blob's offset counts through all that its poster gives.
  const auto offset_at = [&](std::uint32_t poster, std::uint32_t reader) {
    std::uint64_t offset = 0;
    for (std::uint32_t rank = 0; rank < reader; ++rank) offset += counts[poster][rank] * width;
    return offset;
  };
  Blocks blocks;
  std::uint64_t total = 0, grand_total = 0;
  for (const auto& row : counts) {
    blocks.elements.push_back(row[rank_]);
    total += row[rank_] * width;
    for (const std::uint64_t count : row) grand_total += count * width;
  }
  blocks.bytes = transport::Buffer::allocate(total);
  std::vector<std::span<std::byte>> out;
  for (std::uint64_t at = 0; const std::uint64_t count : blocks.elements)
    out.push_back(blocks.bytes.bytes().subspan(std::exchange(at, at + count * width), count * width));

  Blobs blobs(blobs_, kWhat, sequence_, rank_, piece_bytes_for(grand_total));
  for (const std::uint32_t rank : others()) {
    const std::uint64_t begin = offset_at(rank_, rank);
    for_each_piece({0, given[rank].size()}, blobs.piece_bytes(), [&](const Run& piece) {
      blobs.post_at(kGiven, begin + piece.offset, {.only = rank}, part_of(given[rank], piece));
    });
    blobs.fetch_run(rank, kGiven, {offset_at(rank, rank_), out[rank].size()}, out[rank]);
  }
  copy(given[rank_], out[rank_]);
  blobs.wait();
  return blocks;
}

}  // namespace gradwire::kvstore
