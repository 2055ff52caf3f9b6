#include "transport/membership/wait_graph.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "transport/frame.h"
#include "transport/nodes.h"

namespace gradwire::transport {
namespace {

constexpr std::size_t kLongestGraph = 1 << 16;  // bytes

/// Calls visit(name, value) for each line "name=value".
void for_each_line(std::string_view text,
                   const std::function<void(std::string_view name, std::string value)>& visit) {
  // Reports come from workers, but are read as hostile. 64 KiB hold the waits of about a hundred threads.
  if (text.size() > kLongestGraph)
    throw FrameError("wait: its text has " + std::to_string(text.size()) + " bytes");
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    const std::size_t equals = line.find('=');
    if (equals == std::string_view::npos)
      throw FrameError("wait: line '" + std::string(line.substr(0, 80)) + "' is no name=value");
    visit(line.substr(0, equals), std::string(line.substr(equals + 1)));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
  }
}

/// A line's value: of what has a line break or is long, a piece in one line.
std::string in_one_line(std::string text) {
  constexpr std::size_t kLongest = 400;
  // Names of keys are the user's, of any length and with any character; the words of rounds are shorter than
  // this.
  if (text.size() > kLongest) text.resize(kLongest);
  std::ranges::replace(text, '\n', ' ');
  return text;
}

std::string lines(const char* name, const auto& values) {
  std::string text;
  for (const std::string& value : values) text += std::string(name) + "=" + in_one_line(value) + "\n";
  return text;
}

std::uint64_t number(const std::string& value) {
  std::uint64_t parsed = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), parsed);
  if (error != std::errc() || end != value.data() + value.size())
    throw FrameError("wait: '" + value.substr(0, 80) + "' is no whole number");
  return parsed;
}

std::string words_of(const WaitReport& report) {
  std::string words;
  for (const Wait& wait : report.waits) words += (words.empty() ? "" : " and in ") + wait.what;
  return words;
}

}  // namespace

std::string to_text(const WaitReport& report) {
  std::string text = "calls=" + std::to_string(report.calls) + "\n";
  for (const Wait& wait : report.waits) {
    text += "in=" + in_one_line(wait.what) + "\n" + lines("needs", wait.needs);
    if (wait.exchange) text += "exchange=" + std::to_string(*wait.exchange) + "\n";
  }
  return text + lines("begun", report.begun) + lines("not_begun", report.not_begun);
}

WaitReport parse_wait_report(std::string_view text) {
  WaitReport report;
  for_each_line(text, [&](std::string_view name, std::string value) {
    const bool is_of_wait = name == "needs" || name == "exchange";
    // A line that belongs to a wait must not come before one: back() below would be of an empty list.
    if (is_of_wait && report.waits.empty())
      throw FrameError("wait: '" + std::string(name) + "' comes before what it is of");
    if (name == "calls") report.calls = number(value);
    // Every need becomes a question to every other waiting worker, so a report may not have any number of
    // them.
    if (name == "needs" && report.waits.back().needs.size() == kMostNeeds)
      throw FrameError("wait: it needs more than " + std::to_string(kMostNeeds) + " rounds");
    // Names that are none of these are skipped: a later version may add lines.
    if (name == "in")
      report.waits.push_back({std::move(value), {}, {}});
    else if (name == "needs")
      report.waits.back().needs.push_back(std::move(value));
    else if (name == "exchange")
      report.waits.back().exchange = number(value);
    else if (name == "begun")
      report.begun.push_back(std::move(value));
    else if (name == "not_begun")
      report.not_begun.push_back(std::move(value));
  });
  return report;
}

std::string wait_question(const std::set<std::string>& rounds) { return lines("round", rounds); }

std::set<std::string> parse_wait_question(std::string_view text) {
  std::set<std::string> rounds;
  for_each_line(text, [&](std::string_view name, std::string value) {
    if (name == "round") rounds.insert(std::move(value));
  });
  return rounds;
}

bool WaitGraph::take(std::uint32_t worker, WaitReport report) {
  // The worker goes on. Everything that it said was about a moment that is over.
  if (report.waits.empty()) {
    forget(worker);
    return false;
  }
  Worker& known = workers_[worker];
  // With a call it may have begun a round that it denied before. `asked` is cleared, too, so it is asked
  // again.
  if (known.report.calls != report.calls) known = {};
  // One of its threads went on between the reports: it was not stuck, and the count begins again.
  if (known.report.waits != report.waits) known.times = 0;
  // An answer is sent at once. Counted as a repetition, questions would shorten the three seconds of a
  // report.
  const bool is_answer = !report.begun.empty() || !report.not_begun.empty();
  if (!is_answer) ++known.times;
  // `begun` is not kept: a round that nobody denies counts as begun, which can hide a deadlock but invent
  // none.
  known.not_begun.insert(report.not_begun.begin(), report.not_begun.end());
  known.report = std::move(report);
  // At the first time its needs are new, and others can be asked early. At the last it begins to count
  // itself.
  return is_answer || known.times == 1 || known.times == kTimes;
}

std::map<std::uint32_t, std::set<std::string>> WaitGraph::take_questions() {
  // Also of workers whose reports do not count yet: by the time they do, the answers are there.
  std::map<std::string, std::set<std::uint32_t>> needed;  // with who needs it
  for (const auto& [rank, worker] : workers_) {
    for (const Wait& wait : worker.report.waits) {
      for (const std::string& round : wait.needs) needed[round].insert(rank);
    }
  }
  std::map<std::uint32_t, std::set<std::string>> questions;
  for (const auto& [round, needing] : needed) {
    for (auto& [rank, worker] : workers_) {
      // A worker that needs the round itself has begun it. A worker that does not wait is not asked, since it
      // may still begin anything.
      if (!needing.contains(rank) && worker.asked.insert(round).second) questions[rank].insert(round);
    }
  }
  return questions;
}

bool WaitGraph::Worker::is_in(std::uint64_t exchange) const {
  return std::ranges::any_of(report.waits, [&](const Wait& wait) { return wait.exchange == exchange; });
}

/// Of workers that wait: how many of them a round or an exchange lacks.
class WaitGraph::Lacking {
 public:
  Lacking(const std::map<std::uint32_t, const Worker*>& workers, const ExchangeTable& exchanges)
      : exchanges_(exchanges) {
    for (const auto& [rank, worker] : workers) {
      // Counts, and not sets of workers: leave_out() then costs what one worker needs, however many others
      // there are.
      for (const std::string& round : worker->not_begun) ++rounds_[round];
      for (const Wait& wait : worker->report.waits) {
        if (wait.exchange) absent_[*wait.exchange] = 0;
      }
    }
    // After all exchanges are known: a worker can be absent from one that only a later worker is in.
    for (const auto& [rank, worker] : workers) change_absent(rank, *worker, 1);
  }

  void leave_out(std::uint32_t rank, const Worker& worker) {
    for (const std::string& round : worker.not_begun) --rounds_.at(round);
    change_absent(rank, worker, -1);
  }

  /// Whether any thread of one of them may get what it needs: the others of them have begun it.
  bool lets_go_on(const Worker& worker) const {
    return std::ranges::any_of(worker.report.waits, [&](const Wait& wait) {
      // Workers that are not stuck do not count as absent: they may come yet.
      if (wait.exchange) return absent_.at(*wait.exchange) == 0;
      // A wait without needs, such as for a blob, may end at any time as far as is known, and so frees its
      // worker.
      return std::ranges::none_of(wait.needs, [&](const std::string& round) {
        const auto found = rounds_.find(round);
        // The worker's own denial is not held against it, because a wait needs the others only.
        return found != rounds_.end() && found->second > (worker.not_begun.contains(round) ? 1 : 0);
      });
    });
  }

 private:
  void change_absent(std::uint32_t rank, const Worker& worker, int by) {
    for (auto& [exchange, count] : absent_) {
      const bool is_there = exchanges_.has_come(exchange, rank) || worker.is_in(exchange);  // or on its way
      if (!is_there) count += by;
    }
  }

  const ExchangeTable& exchanges_;
  std::map<std::string, int> rounds_;
  std::map<std::uint64_t, int> absent_;
};

Deadlock WaitGraph::deadlock(const ExchangeTable& exchanges) const {
  std::map<std::uint32_t, const Worker*> stuck;
  for (const auto& [rank, worker] : workers_) {
    // A worker without a counted report is taken for running. It may do anything, so it frees what needs it.
    if (worker.times >= kTimes) stuck.emplace(rank, &worker);
  }
  Lacking lacking(stuck, exchanges);
  const auto is_freed = [&](const auto& each) {
    const bool goes_on = lacking.lets_go_on(*each.second);
    // At once: what it would begin next may free workers that were looked at before, hence the outer loop.
    if (goes_on) lacking.leave_out(each.first, *each.second);
    return goes_on;
  };
  // What is left needs, each, something that another one of them has not begun. That is the deadlock.
  while (std::erase_if(stuck, is_freed) > 0) {
  }
  if (stuck.empty()) return {};
  // In a job of many ranks most wait in the same call: they are named once, together.
  std::map<std::string, std::vector<std::uint32_t>> by_words;
  for (const auto& [rank, worker] : stuck) by_words[words_of(worker->report)].push_back(rank);
  std::map<std::uint32_t, std::string> texts;  // in the order of ranks
  for (const auto& [words, ranks] : by_words) texts[ranks.front()] = list_workers(ranks) + " in " + words;
  Deadlock found{{}, "calls that wait for one another: "};
  for (const auto& [rank, worker] : stuck) found.workers.push_back(rank);
  for (const auto& [rank, text] : texts) found.text += (rank == texts.begin()->first ? "" : "; ") + text;
  found.text += "; every worker must make the same calls in the same order";
  return found;
}

}  // namespace gradwire::transport
