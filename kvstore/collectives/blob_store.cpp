#include "kvstore/collectives/blob_store.h"

#include <fmt/format.h>

#include <cstring>
#include <string_view>
#include <utility>

#include "kvstore/wire/answer.h"
#include "kvstore/wire/protocol.h"

namespace gradwire::kvstore {
namespace {

using transport::Buffer;
using transport::Frame;
using transport::FrameHeader;
using transport::Kind;

std::string name_of(const BlobId& id) {
  return fmt::format("blob {}/{}/{} of worker {}", id.sequence, id.phase, id.offset, id.poster);
}

}  // namespace

// A blob is in `blobs_` from its post until its last reader has acknowledged it. Then its bytes are let
// go, and its name goes to `delivered_`, for posts and fetches that come again. Names are forgotten when
// their poster begins another collective. A fetch that comes before its blob is in `waiting_`.

BlobStore::BlobStore(std::uint32_t workers, std::size_t most_per_worker)
    : workers_(workers),
      most_per_worker_(most_per_worker),
      newest_(workers),
      held_(workers),
      waiting_count_(workers) {}

void BlobStore::handle(std::uint32_t worker, Frame frame, std::vector<Answer>& answers) {
  if (!frame.payload.is_intact()) return;  // as if it were lost: it will come again
  const FrameHeader header = frame.header;
  try {
    if (worker >= workers_)
      throw Refused{Refusal::kBlob, fmt::format("worker {} is not one of {}", worker, workers_)};
    switch (header.kind) {
      case Kind::kPost:
        return on_post(worker, std::move(frame), answers);
      case Kind::kFetch:
        return on_fetch(worker, header, answers);
      case Kind::kReceipt:
        return on_receipt(worker, header, answers);
      default:
        throw Refused{Refusal::kBlob,
                      fmt::format("frame kind {} is not of a blob", static_cast<int>(header.kind))};
    }
  } catch (const Refused& refused) {
    answers.push_back({worker, refusal_of(header, refused)});
  } catch (const std::exception& error) {  // an allocation that failed for what it holds
    answers.push_back({worker, refusal_of(header, {Refusal::kBlob, error.what()})});
  }
}

// ------------------------------------------------------------------------------------- posts

void BlobStore::on_post(std::uint32_t worker, Frame frame, std::vector<Answer>& answers) {
  const FrameHeader header = frame.header;
  const BlobId id = blob_id_of(header);
  // Nobody may post in another worker's name: readers could not notice.
  if (id.poster != worker)
    throw Refused{Refusal::kBlob, fmt::format("worker {} posted the {}", worker, name_of(id))};
  if (header.count == 0 || header.count != frame.payload.size_bytes()) {
    throw Refused{Refusal::kBlob,
                  fmt::format("post of {}: {} bytes given, {} announced; a blob has at least one",
                              name_of(id), frame.payload.size_bytes(), header.count)};
  }
  if (id.sequence < newest_[worker]) return;  // repeated, and its poster has gone on since
  if (delivered_.contains(id)) return answers.push_back({worker, answer_to(header, Kind::kDelivered)});
  if (const auto known = blobs_.find(id); known != blobs_.end()) {  // a blob or receipt may be lost
    Blob& blob = known->second;
    for (const std::uint32_t reader : std::exchange(blob.sent_to, {}))
      deliver(blob, reader, blob.header, answers);
    return refuse_if_gone(id, blob, answers);  // that may have been lost too
  }
  auto readers = readers_of(worker, header);
  // A worker begins a collective when its blobs of the one before are delivered. Only their names are left
  // here.
  drop_older(worker, id.sequence);
  // After drop_older(): what an earlier collective left does not count.
  if (held_[worker] >= most_per_worker_) {
    throw Refused{Refusal::kBlob, fmt::format("post of {}: worker {} has {} blobs here, at most {} are held",
                                              name_of(id), worker, held_[worker], most_per_worker_)};
  }
  ++held_[worker];
  Blob& blob = blobs_[id];
  blob = {header, std::move(frame.payload), std::move(readers), {}};
  answer_waiting(id, blob, answers);
  refuse_if_gone(id, blob, answers);
}

/// Tells the poster of a reader that has left before it fetched.
void BlobStore::refuse_if_gone(const BlobId& id, const Blob& blob, std::vector<Answer>& answers) const {
  for (const std::uint32_t reader : blob.readers) {
    // One refusal ends the poster's collective, so the first reader that is gone is enough.
    if (!gone_.contains(reader)) continue;
    return answers.push_back({id.poster, refusal_of(blob.header, {Refusal::kBlob, left_text(reader, id)})});
  }
}

/// Whom a post is for. Refuses what nobody could ever read.
std::set<std::uint32_t> BlobStore::readers_of(std::uint32_t poster, const FrameHeader& header) const {
  const Readers asked = kvstore::readers_of(header);
  std::set<std::uint32_t> readers;
  for (std::uint32_t rank = 0; rank < workers_; ++rank) {
    const bool is_asked = asked.only == kNobody ? rank != asked.except : rank == asked.only;
    if (is_asked && rank != poster) readers.insert(rank);
  }
  if (readers.empty()) {
    throw Refused{Refusal::kBlob, fmt::format("post of {}: none of the other {} workers may read it",
                                              name_of(blob_id_of(header)), workers_ - 1)};
  }
  return readers;
}

void BlobStore::answer_waiting(const BlobId& id, Blob& blob, std::vector<Answer>& answers) {
  const auto found = waiting_.find(id);
  if (found == waiting_.end()) return;
  for (const auto& [reader, fetch] : found->second) {
    --waiting_count_[reader];
    try {
      // A fetch is noted before anybody knows the blob's readers and length. They are compared here.
      deliver(blob, reader, fetch, answers);
    } catch (const Refused& refused) {
      answers.push_back({reader, refusal_of(fetch, refused)});
    }
  }
  waiting_.erase(found);
}

void BlobStore::copy_bytes_of(std::uint32_t worker) {
  for (auto& [id, blob] : blobs_) {
    if (id.poster == worker) blob.bytes = blob.bytes.copy();
  }
}

void BlobStore::drop_older(std::uint32_t poster, std::uint64_t sequence) {
  if (sequence <= newest_[poster]) return;
  newest_[poster] = sequence;
  const BlobId first{poster, 0, 0, 0};
  const BlobId end{poster, sequence, 0, 0};
  blobs_.erase(blobs_.lower_bound(first), blobs_.lower_bound(end));
  delivered_.erase(delivered_.lower_bound(first), delivered_.lower_bound(end));
  held_[poster] = 0;
}

// ------------------------------------------------------------------------------------- fetches and receipts

void BlobStore::on_fetch(std::uint32_t worker, const FrameHeader& header, std::vector<Answer>& answers) {
  const BlobId id = blob_id_of(header);
  if (id.poster >= workers_ || id.poster == worker) {
    throw Refused{Refusal::kBlob, fmt::format("fetch of {} by worker {}: expected another worker's, of {}",
                                              name_of(id), worker, workers_)};
  }
  if (const auto found = blobs_.find(id); found != blobs_.end())
    return deliver(found->second, worker, header, answers);
  if (delivered_.contains(id) || id.sequence < newest_[id.poster]) return;  // repeated
  if (gone_.contains(id.poster)) throw Refused{Refusal::kBlob, left_text(id.poster, id)};
  wait(worker, id, header);
}

void BlobStore::wait(std::uint32_t worker, const BlobId& id, const FrameHeader& header) {
  if (waiting_count_[worker] >= most_per_worker_) {
    throw Refused{Refusal::kBlob,
                  fmt::format("fetch of {}: worker {} waits for {} blobs already, at most {} are noted",
                              name_of(id), worker, waiting_count_[worker], most_per_worker_)};
  }
  // A repeated fetch waits once.
  if (waiting_[id].insert_or_assign(worker, header).second) ++waiting_count_[worker];
}

void BlobStore::deliver(Blob& blob, std::uint32_t reader, const FrameHeader& fetch,
                        std::vector<Answer>& answers) {
  if (!blob.readers.contains(reader)) {
    throw Refused{Refusal::kBlob, fmt::format("fetch of {}: it is not for worker {}, or has been received",
                                              name_of(blob_id_of(fetch)), reader)};
  }
  if (fetch.count != blob.header.count) {
    throw Refused{Refusal::kBlob, fmt::format("fetch of {}: {} bytes asked for, it has {}",
                                              name_of(blob_id_of(fetch)), fetch.count, blob.header.count)};
  }
  // Only a reader that was sent the blob may acknowledge it, or counts as having it when it leaves.
  blob.sent_to.insert(reader);
  answers.push_back({reader, answer_to(blob.header, Kind::kBlob, blob.bytes.share())});
}

void BlobStore::on_receipt(std::uint32_t worker, const FrameHeader& header, std::vector<Answer>& answers) {
  const BlobId id = blob_id_of(header);
  const auto found = blobs_.find(id);
  if (found == blobs_.end()) return;  // repeated
  Blob& blob = found->second;
  if (!blob.sent_to.contains(worker)) {
    throw Refused{
        Refusal::kBlob,
        fmt::format("receipt for {}: it was not sent to worker {}, or is acknowledged", name_of(id), worker)};
  }
  acknowledge(worker, found, answers);
}

/// Returns the blob after that one.
BlobStore::Blobs::iterator BlobStore::acknowledge(std::uint32_t reader, Blobs::iterator at,
                                                  std::vector<Answer>& answers) {
  auto& [id, blob] = *at;
  blob.sent_to.erase(reader);
  blob.readers.erase(reader);
  if (!blob.readers.empty()) return std::next(at);
  answers.push_back({id.poster, answer_to(blob.header, Kind::kDelivered)});
  // The name still counts in held_, which therefore bounds both.
  delivered_.insert(id);
  return blobs_.erase(at);
}

// ------------------------------------------------------------------------------------- the end

std::string BlobStore::left_text(std::uint32_t worker, const BlobId& id) const {
  return gone_.describe(worker,
                        fmt::format("it {} {}", worker == id.poster ? "posted" : "fetched", name_of(id)));
}

void BlobStore::forget_worker(std::uint32_t worker, std::vector<Answer>& answers, const std::string& error) {
  gone_.add(worker, error);
  for (auto& [id, waiting] : waiting_) {
    waiting_count_[worker] -= waiting.erase(worker);
    // What others posted may still come. Nothing more comes of the worker that has left.
    if (id.poster != worker) continue;
    for (const auto& [reader, fetch] : waiting) {
      --waiting_count_[reader];
      answers.push_back({reader, refusal_of(fetch, {Refusal::kBlob, left_text(worker, id)})});
    }
    waiting.clear();
  }
  std::erase_if(waiting_, [](const auto& entry) { return entry.second.empty(); });
  for (auto at = blobs_.begin(); at != blobs_.end();) {
    const auto& [id, blob] = *at;
    if (blob.sent_to.contains(worker)) {  // it has not asked again: the receipt was lost
      at = acknowledge(worker, at, answers);
      continue;
    }
    if (id.poster != worker && blob.readers.contains(worker))
      answers.push_back({id.poster, refusal_of(blob.header, {Refusal::kBlob, left_text(worker, id)})});
    ++at;
  }
}

}  // namespace gradwire::kvstore
