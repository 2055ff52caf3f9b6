#include "kvstore/checkpoint/optimizer_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "compress/codec.h"
#include "kvstore/aggregate/partition_state.h"

namespace gradwire::kvstore {
namespace {

using Record = CheckpointReader::Record;

constexpr std::string_view kStates = "states 2", kWithParameters = "states and parameters 2";
/// Of version 1, whose sgd with a momentum is what is called mxnet_sgd now.
constexpr std::string_view kStates1 = "states", kWithParameters1 = "states and parameters";

Layout layout_of(std::vector<KeySpec> keys) {
  Layout layout(keys.size());
  for (std::uint64_t number = 0; number < keys.size(); ++number)
    layout[number] = {std::move(keys[number]), {}, {number, 0}};
  return layout;
}

/// "states 2 LF", the number of keys, a line each (write_keys), and the optimizer.
std::string text_of(const OptimizerHead& head) {
  std::vector<KeySpec> keys;
  for (const LayoutTensor& key : head.keys) keys.push_back(key.spec);
  return fmt::format("{}\n{}\n{}{}", head.dump == Dump::kStates ? kStates : kWithParameters, keys.size(),
                     write_keys(keys), head.optimizer);
}

/// Throws whatever, for text that is none.
OptimizerHead parse_head(const std::string& text) {
  std::istringstream lines(text);
  std::string dump, number, keys;
  std::getline(lines, dump);
  std::getline(lines, number);
  const bool has_parameters = dump == kWithParameters || dump == kWithParameters1;
  if (dump != kStates && dump != kStates1 && !has_parameters) throw std::invalid_argument(dump);
  for (std::uint64_t left = std::stoull(number); left > 0; --left) {
    std::string key;
    if (!std::getline(lines, key)) throw std::invalid_argument(number);
    keys += key + "\n";
  }
  OptimizerHead head{has_parameters ? Dump::kStatesAndParameters : Dump::kStates, {}, {}};
  head.keys = layout_of(read_keys(keys));
  head.optimizer.assign(std::istreambuf_iterator<char>(lines), {});
  // Throws for an optimizer that this program does not know, or cannot make.
  make_updater(parse_optimizer(head.optimizer));
  return head;
}

}  // namespace

OptimizerHead optimizer_head(Dump dump, const std::string& optimizer, const Layout& here) {
  std::vector<KeySpec> keys;
  for (const LayoutTensor& tensor : here) {
    if (tensor.members.empty()) keys.push_back(tensor.spec);
  }
  const std::string name = parse_optimizer(optimizer).name;
  // Written and read once, which sorts the keys as a file has them: records number them so.
  return {dump, dump == Dump::kStates ? name : optimizer, layout_of(read_keys(write_keys(keys)))};
}

void add_head(CheckpointWriter& file, const OptimizerHead& head) {
  const std::string text = text_of(head);
  file.add({RecordKind::kOptimizer}, std::as_bytes(std::span(text)));
}

OptimizerFile::OptimizerFile(std::filesystem::path path) : path_(std::move(path)), file_(path_) {
  read_head();
  read_index();
}

void OptimizerFile::refuse(const std::string& why) const {
  throw compress::DecodeError(fmt::format(
      "{} {}; give a file that save_optimizer_states has written, or a copy of it", path_.string(), why));
}

void OptimizerFile::read_head() {
  const auto& records = file_.records();
  // A checkpoint is made of records too, but begins with others.
  if (records.empty() || records.front().name.kind != RecordKind::kOptimizer)
    refuse("holds no optimizer's states");
  const auto bytes = file_.read(records.front());
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::string_view dump = std::string_view(text).substr(0, text.find('\n'));
  is_version_1_ = dump == kStates1 || dump == kWithParameters1;
  try {
    head_ = parse_head(text);
  } catch (const std::exception&) {  // of a number, a key or an optimizer
    refuse("does not say of which keys and optimizer its states are");
  }
}

void OptimizerFile::read_index() {
  const std::size_t kept = make_updater(parse_optimizer(head_.optimizer))->moment_kinds();
  records_.resize(head_.keys.size());
  for (const Record& record : std::span(file_.records()).subspan(1)) {
    const RecordName& name = record.name;
    const std::uint64_t elements =
        name.tensor < head_.keys.size() ? head_.keys[name.tensor].spec.elements() : 0;
    if (name.kind != RecordKind::kOptimizerState || name.count == 0 || name.count > elements ||
        name.offset > elements - name.count)
      refuse("holds what its head does not know");
    records_[name.tensor].push_back(&record);
  }
  for (std::uint64_t key = 0; key < records_.size(); ++key) {
    std::ranges::sort(records_[key], {}, [](const Record* record) { return record->name.offset; });
    require_whole(key, kept);
  }
  const auto has_moments = [this](const std::vector<const Record*>& records) {
    return std::ranges::any_of(records, [this](const Record* one) { return !read(*one).moments.empty(); });
  };
  // A version 1 file does not say whether its sgd had a momentum. Only moments show it.
  if (is_version_1_ && std::ranges::any_of(records_, has_moments))
    head_.optimizer = renamed_since_version_1(head_.optimizer);
}

void OptimizerFile::require_whole(std::uint64_t key, std::size_t kept) const {
  const KeySpec& spec = head_.keys[key].spec;
  std::uint64_t end = 0;
  for (const Record* record : records_[key]) {
    const std::size_t here = read(*record).moments.size() / record->name.count;
    if (here != 0 && here != kept) {  // none where a part has not been updated yet
      refuse(fmt::format("has {} moments an element of key '{}', and {} keeps {}", here, spec.name,
                         parse_optimizer(head_.optimizer).name, kept));
    }
    // Records are sorted, so behind a gap nothing matches, and the end is not reached.
    if (record->name.offset == end) end += record->name.count;
  }
  if (end != spec.elements()) refuse(fmt::format("lacks elements of key '{}'", spec.name));
}

OptimizerState OptimizerFile::read(const Record& record) const {
  const auto bytes = file_.read(record);
  try {
    return decode_optimizer_state(bytes, record.name.count);
  } catch (const compress::DecodeError& error) {
    refuse(fmt::format("holds what is no state ({})", error.what()));
  }
}

OptimizerState OptimizerFile::state(std::uint64_t key, std::uint64_t offset, std::uint64_t count) const {
  OptimizerState state;
  for (const Record* record : records_[key]) {
    const auto common = overlap(record->name, offset, count);
    if (common) take_over(state, count, *common, read(*record), record->name.count);
  }
  return state;
}

}  // namespace gradwire::kvstore
