// BlobStore is a Server's store of blobs: runs of bytes that one worker posts and others fetch. All
// collectives except the sums of gradients are made of them. No thread, no socket, no clock.
//
// A blob is named by (sequence, phase, offset, poster) and names its readers. A fetch that comes before its
// blob waits here. A blob is dropped, and its poster notified, once every reader has acknowledged it. Every
// request may be repeated.
//
// Threading: one owner. Lifetime: a blob's Buffer is held until its last reader has it.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "kvstore/collectives/blob.h"
#include "kvstore/leavers.h"
#include "kvstore/wire/answer.h"
#include "transport/frame.h"

namespace gradwire::kvstore {

class BlobStore {
 public:
  /// The most that one worker may have here at a time: blobs, and fetches of blobs that are not here yet.
  /// Far above what a collective needs, it bounds what a mistaken or hostile worker can pile up.
  static constexpr std::size_t kMostPerWorker = std::size_t{1} << 16;

  explicit BlobStore(std::uint32_t workers, std::size_t most_per_worker = kMostPerWorker);

  /// Takes one frame from a worker and appends the answers and their receivers. Never throws for what a peer
  /// sent: bad requests are answered with kError and change nothing.
  void handle(std::uint32_t worker, transport::Frame frame, std::vector<Answer>& answers);

  /// From now on holds copies of what the worker has posted, whose memory may go.
  void copy_bytes_of(std::uint32_t worker);

  /// Notes that a worker has left. Workers that wait for its blobs, or for it to read theirs, fail. error:
  /// the error that has ended it, if one has.
  void forget_worker(std::uint32_t worker, std::vector<Answer>& answers, const std::string& error = {});

 private:
  struct Blob {
    transport::FrameHeader header;  ///< of the post
    transport::Buffer bytes;
    std::set<std::uint32_t> readers;  ///< those that have not acknowledged it
    std::set<std::uint32_t> sent_to;  ///< of those, the ones that it was sent to
  };
  using Blobs = std::map<BlobId, Blob>;
  using Waiting = std::map<std::uint32_t, transport::FrameHeader>;  ///< fetches by worker

  void on_post(std::uint32_t worker, transport::Frame frame, std::vector<Answer>& answers);
  std::string left_text(std::uint32_t worker, const BlobId& id) const;
  void refuse_if_gone(const BlobId& id, const Blob& blob, std::vector<Answer>& answers) const;
  void on_fetch(std::uint32_t worker, const transport::FrameHeader& header, std::vector<Answer>& answers);
  void on_receipt(std::uint32_t worker, const transport::FrameHeader& header, std::vector<Answer>& answers);
  Blobs::iterator acknowledge(std::uint32_t reader, Blobs::iterator at, std::vector<Answer>& answers);
  void wait(std::uint32_t worker, const BlobId& id, const transport::FrameHeader& header);
  void deliver(Blob& blob, std::uint32_t reader, const transport::FrameHeader& fetch,
               std::vector<Answer>& answers);
  void answer_waiting(const BlobId& id, Blob& blob, std::vector<Answer>& answers);
  void drop_older(std::uint32_t poster, std::uint64_t sequence);
  std::set<std::uint32_t> readers_of(std::uint32_t poster, const transport::FrameHeader& header) const;

  std::uint32_t workers_;
  std::size_t most_per_worker_;
  Leavers gone_;
  Blobs blobs_;
  std::map<BlobId, Waiting> waiting_;
  std::set<BlobId> delivered_;              ///< of each poster's newest sequence: for repeated posts
  std::vector<std::uint64_t> newest_;       ///< sequence, by poster
  std::vector<std::size_t> held_;           ///< blobs and remembered names, by poster
  std::vector<std::size_t> waiting_count_;  ///< by the worker that waits
};

}  // namespace gradwire::kvstore
