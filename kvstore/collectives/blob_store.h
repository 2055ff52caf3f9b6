// BlobStore is what a Server knows of letters: runs of bytes that one worker posts and others fetch. All
// collectives but the sums of gradients are made of them. No thread, no socket, no clock.
//
// A letter is named by (sequence, phase, offset, poster) and says who may read it. A fetch that comes before
// its letter waits here. A letter is dropped, and its poster told, once every reader has acknowledged it.
// Every request may be repeated.
//
// Threading: one owner. Lifetime: a letter's Buffer is held until its last reader has it.
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
  /// What one worker may have here at a time: letters, and fetches of letters that are not here yet. Far
  /// above what a collective needs, it bounds what a mistaken or hostile one piles up.
  static constexpr std::size_t kMostPerWorker = std::size_t{1} << 16;

  explicit BlobStore(std::uint32_t workers, std::size_t most_per_worker = kMostPerWorker);

  /// Whether a frame is for a BlobStore.
  static bool takes(transport::Kind kind);

  /// Takes one frame from a worker and appends what is to be answered, to whom. Never throws for what a peer
  /// sent: bad requests are answered with kError and change nothing.
  void handle(std::uint32_t worker, transport::Frame frame, std::vector<Answer>& answers);

  /// Notes that a worker has left: whoever waits for what it has not posted, or for it to read, fails.
  /// error: what has ended it, if an error has.
  void forget_worker(std::uint32_t worker, std::vector<Answer>& answers, const std::string& error = {});

 private:
  struct Letter {
    transport::FrameHeader header;  ///< of the post
    transport::Buffer bytes;
    std::set<std::uint32_t> readers;  ///< who have not acknowledged it
    std::set<std::uint32_t> sent_to;  ///< of those, who were sent it
  };
  using Letters = std::map<BlobId, Letter>;
  using Waiting = std::map<std::uint32_t, transport::FrameHeader>;  ///< fetches by worker

  void on_post(std::uint32_t worker, transport::Frame frame, std::vector<Answer>& answers);
  std::string left_text(std::uint32_t worker, const BlobId& id) const;
  void refuse_if_gone(const BlobId& id, const Letter& letter, std::vector<Answer>& answers) const;
  void on_fetch(std::uint32_t worker, const transport::FrameHeader& header, std::vector<Answer>& answers);
  void on_receipt(std::uint32_t worker, const transport::FrameHeader& header, std::vector<Answer>& answers);
  Letters::iterator acknowledge(std::uint32_t reader, Letters::iterator at, std::vector<Answer>& answers);
  void wait(std::uint32_t worker, const BlobId& id, const transport::FrameHeader& header);
  void deliver(Letter& letter, std::uint32_t reader, const transport::FrameHeader& fetch,
               std::vector<Answer>& answers);
  void answer_waiting(const BlobId& id, Letter& letter, std::vector<Answer>& answers);
  void drop_older(std::uint32_t poster, std::uint64_t sequence);
  std::set<std::uint32_t> readers_of(std::uint32_t poster, const transport::FrameHeader& header) const;

  std::uint32_t workers_;
  std::size_t most_per_worker_;
  Leavers gone_;
  Letters letters_;
  std::map<BlobId, Waiting> waiting_;
  std::set<BlobId> delivered_;              ///< of each poster's newest sequence: for repeated posts
  std::vector<std::uint64_t> newest_;       ///< sequence, by poster
  std::vector<std::size_t> held_;           ///< letters and remembered names, by poster
  std::vector<std::size_t> waiting_count_;  ///< by the worker that waits
};

}  // namespace gradwire::kvstore
