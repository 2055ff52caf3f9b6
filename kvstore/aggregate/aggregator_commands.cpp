// Aggregator: what worker 0 tells a server in words.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "kvstore/aggregate/aggregator.h"
#include "kvstore/release_memory.h"
#include "kvstore/wire/answer.h"

namespace gradwire::kvstore {

using transport::Frame;
using transport::FrameHeader;
using transport::Kind;

namespace {

/// "0,2,5"
std::vector<std::uint32_t> parse_ranks(std::string_view text) {
  std::vector<std::uint32_t> ranks;
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at < end;) {
    const auto [next, error] = std::from_chars(at, end, ranks.emplace_back());
    if (error != std::errc() || (next != end && *next != ','))
      throw std::invalid_argument(fmt::format("'{}' is no list of ranks such as 0,2", text.substr(0, 80)));
    at = next == end ? end : next + 1;
  }
  return ranks;
}

}  // namespace

void Aggregator::set_contributors(std::vector<std::uint32_t> ranks) {
  const bool ascends = std::ranges::adjacent_find(ranks, std::greater_equal()) == ranks.end();
  if (ranks.empty() || !ascends || ranks.back() >= workers_) {
    throw std::invalid_argument(
        fmt::format("contributors {} given, expected some of the {} workers, ascending",
                    fmt::join(ranks, ","), workers_));
  }
  require_no_round("contributors");
  contributors_ = std::move(ranks);
}

void Aggregator::set_async(const AsyncPolicy& policy) {
  if (upstream_)
    throw std::invalid_argument("rounds: pushes whose sums go upstream cannot be applied here at once");
  require_no_round("rounds");
  async_workers_.set_policy(policy);
}

void Aggregator::require_no_round(const char* what) const {
  // Rounds that are open were counted, or answered, by other rules than those that are set now.
  for (const auto& [id, partition] : partitions_) {
    if (partition.next_step > 0 || !partition.rounds.empty())
      throw std::invalid_argument(fmt::format("{} given after the first push; give them before", what));
  }
}

/// The same optimizer with other parameters, such as a learning rate, goes on from its state.
void Aggregator::set_optimizer(const std::string& text) {
  const OptimizerSpec spec = parse_optimizer(text);
  // Throws for a bad optimizer before anything has changed.
  updater_.updater = make_updater(spec);
  for (auto& [id, partition] : partitions_) {
    sums_.begin_with_sum(partition, contributors_.size());
    release_memory(partition.first64);  // weights are of float32
  }
  if (std::exchange(updater_.name, spec.name) == spec.name) return;
  for (auto& [id, partition] : partitions_) partition.optimizer_state = {};
}

void Aggregator::on_command(std::uint32_t worker, const Frame& frame, std::vector<Answer>& answers) {
  const std::string text = transport::payload_text(frame);
  constexpr std::string_view kOptimizer = "optimizer ";
  constexpr std::string_view kContributors = "contributors ";
  constexpr std::string_view kRounds = "rounds ";
  constexpr std::string_view kWeights = "weights ";
  if (text.starts_with(kOptimizer)) {
    set_optimizer(text.substr(kOptimizer.size()));
  } else if (text.starts_with(kContributors)) {
    set_contributors(parse_ranks(text.substr(kContributors.size())));
  } else if (text.starts_with(kRounds)) {
    set_async(parse_async_policy(std::string_view(text).substr(kRounds.size())));
  } else if (text.starts_with(kWeights)) {
    weights_.set_replies(std::string_view(text).substr(kWeights.size()), partitions_);
  } else if (text == "join") {
    return on_join(worker, frame.header, answers);
  } else if (text == "meet") {
    async_workers_.meet(worker);
    answers.push_back({worker, answer_to(frame.header, Kind::kAck)});
    // Workers that were held back only for this one may continue now.
    return async_.answer_held(answers);
  } else if (text == "back") {
    async_workers_.come_back(worker);
  } else if (text == "waited for") {
    // Each thread of a server says the same: they share one count.
    Frame counts = answer_to(frame.header, Kind::kAck);
    counts.payload = text_payload(fmt::format("{}", fmt::join(stragglers_->counts(), ",")));
    answers.push_back({worker, std::move(counts)});
    return;
  } else {
    throw Refused{Refusal::kFinal,
                  fmt::format("command '{}' is not known; expected 'optimizer NAME ...', 'contributors "
                              "RANK,RANK,...', 'rounds at_once ...', 'weights ...', 'join', 'meet', 'back', "
                              "'mirrored' or 'waited for'",
                              text.substr(0, 80))};
  }
  answers.push_back({worker, answer_to(frame.header, Kind::kAck)});
}

/// A worker joins once it has the answers to all its pushes, so what it lacks in is what it will not push.
void Aggregator::on_join(std::uint32_t worker, const FrameHeader& header, std::vector<Answer>& answers) {
  Frame acknowledgement = answer_to(header, Kind::kAck);
  acknowledgement.header.step = joined_.come(worker);
  answers.push_back({worker, std::move(acknowledgement)});
  // Rounds that lacked only its push are whole without it.
  for (auto& [id, partition] : partitions_) complete_next(partition, answers);
}

}  // namespace gradwire::kvstore
