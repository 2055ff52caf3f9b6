#include "kvstore/checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "compress/codec.h"
#include "transport/checksum.h"

namespace gradwire::kvstore {
namespace {

constexpr std::string_view kTitle = "gradwire checkpoint 2";
/// The same, but that its sgd with a momentum is what is called mxnet_sgd now.
constexpr std::string_view kTitle1 = "gradwire checkpoint 1";
constexpr std::string_view kExtension = ".state";

bool is_bucket(const LayoutTensor& tensor) { return !tensor.members.empty(); }

std::string describe(const KeySpec& key) {
  return fmt::format("'{}' {} ({})", key.name, key.dtype, fmt::join(key.shape, ", "));
}

std::optional<std::uint64_t> find_key(const Layout& layout, const std::string& name) {
  for (std::uint64_t tensor = 0; tensor < layout.size(); ++tensor) {
    if (!is_bucket(layout[tensor]) && layout[tensor].spec.name == name) return tensor;
  }
  return std::nullopt;
}

std::vector<std::string> member_names(const Layout& layout, const LayoutTensor& bucket) {
  std::vector<std::string> names;
  for (const std::uint64_t member : bucket.members) names.push_back(layout[member].spec.name);
  return names;
}

/// Everywhere that a key's elements lie in a layout, by number of the tensor.
std::vector<Place> places_of(const Layout& layout, const std::string& key) {
  std::vector<Place> places;
  for (std::uint64_t tensor = 0; tensor < layout.size(); ++tensor) {
    if (!is_bucket(layout[tensor])) {
      if (layout[tensor].spec.name == key) places.push_back({tensor, 0});
      continue;
    }
    std::uint64_t offset = 0;
    for (const std::uint64_t member : layout[tensor].members) {
      if (layout[member].spec.name == key) places.push_back({tensor, offset});
      offset += layout[member].spec.elements();
    }
  }
  return places;
}

}  // namespace

// ------------------------------------------------------------------------------------- what goes where

namespace {

std::vector<KeySpec> keys_of(const Layout& layout) {
  std::vector<KeySpec> keys;
  for (const LayoutTensor& tensor : layout) {
    if (!is_bucket(tensor)) keys.push_back(tensor.spec);
  }
  return keys;
}

const KeySpec* find(std::span<const KeySpec> specs, const std::string& name) {
  const auto found = std::ranges::find(specs, name, &KeySpec::name);
  return found == specs.end() ? nullptr : &*found;
}

/// `kind` is what they are to people: "key", "table".
void require_same(const Asker& asker, std::string_view kind, std::span<const KeySpec> saved,
                  std::span<const KeySpec> here) {
  const auto refuse = [&](const std::string& how) {
    throw std::invalid_argument(fmt::format(
        "{}: {}; declare the same {}s before you load, or load into another store", asker.verb, how, kind));
  };
  for (const KeySpec& theirs : saved) {
    const KeySpec* const own = find(here, theirs.name);
    if (own != nullptr && *own == theirs) continue;
    refuse(fmt::format("{} has {} {}, this job {}", asker.file, kind, describe(theirs),
                       own == nullptr ? std::string("does not") : "has " + describe(*own)));
  }
  for (const KeySpec& own : here) {
    if (find(saved, own.name) == nullptr)
      refuse(fmt::format("this job has {} {}, {} does not", kind, describe(own), asker.file));
  }
}

}  // namespace

void require_same_keys(const Asker& asker, const Layout& saved, const Layout& here) {
  require_same(asker, "key", keys_of(saved), keys_of(here));
}

void require_same_tables(const Asker& asker, std::span<const KeySpec> saved, std::span<const KeySpec> here) {
  require_same(asker, "table", saved, here);
}

std::vector<Piece> residual_pieces(const Layout& saved, const Layout& here, std::uint64_t tensor) {
  const LayoutTensor& target = here[tensor];
  // In equal layouts nothing moves, also what a tensor has of a key that travels elsewhere now.
  if (saved == here) return {{tensor, 0, 0, target.spec.elements(), false}};
  std::vector<Piece> pieces;
  std::uint64_t offset = 0;
  const std::vector<std::uint64_t> own{tensor};
  for (const std::uint64_t key : is_bucket(target) ? target.members : own) {
    const std::uint64_t count = here[key].spec.elements();
    // Only where the key travels now. Elsewhere it would come in a second time.
    if (here[key].home == Place{tensor, offset}) {
      // The first piece replaces what is there, and the others are added: an element may have residuals in
      // several places.
      bool adds = false;
      for (const Place& place : places_of(saved, here[key].spec.name)) {
        pieces.push_back({place.tensor, place.offset, offset, count, adds});
        adds = true;
      }
    }
    offset += count;
  }
  return pieces;
}

std::optional<Overlap> overlap(const RecordName& record, std::uint64_t offset, std::uint64_t count) {
  const std::uint64_t begin = std::max(record.offset, offset);
  const std::uint64_t end = std::min(record.offset + record.count, offset + count);
  if (begin >= end) return std::nullopt;
  return Overlap{begin - record.offset, begin - offset, end - begin};
}

void take_over(OptimizerState& into, std::uint64_t elements, const Overlap& common,
               const OptimizerState& from, std::uint64_t from_elements) {
  into.steps = std::max(into.steps, from.steps);
  const std::size_t kinds = from.moments.size() / from_elements;
  if (kinds == 0) return;
  // Parts that were never updated have no moments, and begin with zeros beside those that have some.
  if (into.moments.empty()) into.moments.assign(kinds * elements, 0.0F);
  if (into.moments.size() != kinds * elements) {
    throw compress::DecodeError(fmt::format("optimizer's state: {} and {} moments an element of one key",
                                            into.moments.size() / elements, kinds));
  }
  for (std::size_t kind = 0; kind < kinds; ++kind) {
    const auto source =
        std::span(from.moments).subspan(kind * from_elements + common.in_record, common.count);
    std::ranges::copy(source, std::span(into.moments).subspan(kind * elements + common.in_run).begin());
  }
}

std::optional<std::uint64_t> same_tensor(const Layout& saved, const Layout& here, std::uint64_t tensor) {
  const LayoutTensor& target = here[tensor];
  if (!is_bucket(target)) return find_key(saved, target.spec.name);
  for (std::uint64_t candidate = 0; candidate < saved.size(); ++candidate) {
    // A bucket has no name of its own, and its number depends on the order of bindings.
    if (is_bucket(saved[candidate]) && member_names(saved, saved[candidate]) == member_names(here, target))
      return candidate;
  }
  return std::nullopt;
}

std::vector<std::uint32_t> inherited(std::uint32_t index, std::uint32_t now, std::uint32_t before) {
  std::vector<std::uint32_t> ranks;
  for (std::uint64_t rank = index; rank < before; rank += now)
    ranks.push_back(static_cast<std::uint32_t>(rank));
  return ranks;
}

// ------------------------------------------------------------------------------------- the manifest

namespace {

/// Reads the manifest's words one after the other.
class Words {
 public:
  Words(const std::string& text, const std::filesystem::path& path) : lines_(text), path_(path) {}

  [[noreturn]] void refuse(const std::string& why) const {
    throw compress::DecodeError(fmt::format(
        "checkpoint: {} {}; take another checkpoint, or a copy of this one", path_.string(), why));
  }

  /// Begins the next line, which has this name.
  void line(std::string_view name) {
    std::string text;
    if (!std::getline(lines_, text)) refuse("is cut short");
    words_.clear();
    std::istringstream stream(text);
    for (std::string word; std::getline(stream, word, '\t');) words_.push_back(std::move(word));
    at_ = 0;
    if (words_.empty() || words_[at_++] != name)
      refuse(fmt::format("has '{}' for '{}'", text.substr(0, 40), name));
  }
  std::string word() {
    if (at_ == words_.size()) refuse("lacks a word");
    return words_[at_++];
  }
  /// Whether the next line has this name.
  bool is_next(std::string_view name) {
    const auto at = lines_.tellg();
    std::string text;
    std::getline(lines_, text);
    // Behind the last line the read fails, and seekg() does nothing on a stream that has failed.
    lines_.clear();
    lines_.seekg(at);
    return text.substr(0, text.find('\t')) == name;
  }
  std::string word_or_nothing() { return at_ == words_.size() ? std::string() : words_[at_++]; }

  template <typename Number>
  Number number(int radix = 10) {
    const std::string text = word();
    return parse<Number>(text, radix);
  }
  /// "3,4,5", or nothing
  template <typename Number>
  std::vector<Number> numbers() {
    std::vector<Number> all;
    std::istringstream stream(word_or_nothing());
    for (std::string each; std::getline(stream, each, ',');) all.push_back(parse<Number>(each, 10));
    return all;
  }

 private:
  template <typename Number>
  Number parse(const std::string& text, int radix) const {
    Number value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, radix);
    if (error != std::errc() || end != text.data() + text.size())
      refuse(fmt::format("has '{}' for a number", text.substr(0, 40)));
    return value;
  }

  std::istringstream lines_;
  const std::filesystem::path& path_;
  std::vector<std::string> words_;
  std::size_t at_ = 0;
};

/// Text with its checksum in a line behind it.
std::string sealed(std::string text) {
  const auto checksum = transport::checksum(std::as_bytes(std::span(text)));
  return std::move(text) + fmt::format("checksum\t{:08x}\n", checksum);
}

std::string unsealed(const std::string& text, const Words& words) {
  const auto last = text.rfind("checksum\t");
  const std::string_view title = std::string_view(text).substr(0, text.find('\n'));
  const bool is_known = title == kTitle || title == kTitle1;
  // Before the checksum is compared: a file of another version is not damaged, and the error says so.
  if (!is_known && title.starts_with(kTitle.substr(0, kTitle.rfind(' ')))) {
    words.refuse(fmt::format("is '{}', and this program reads '{}' and before", title.substr(0, 60), kTitle));
  }
  if (!is_known || last == std::string::npos) words.refuse("is no manifest of a checkpoint");
  // The whole text is compared, so bytes behind the checksum are found too.
  if (sealed(text.substr(0, last)) != text) words.refuse("is damaged");
  return text.substr(0, last);
}

LayoutTensor read_tensor(Words& words, std::uint64_t number) {
  words.line("tensor");
  LayoutTensor tensor;
  tensor.spec.name = words.word();
  tensor.spec.dtype = words.word();
  tensor.home.tensor = words.number<std::uint64_t>();
  tensor.home.offset = words.number<std::uint64_t>();
  tensor.spec.shape = words.numbers<std::uint64_t>();
  tensor.members = words.numbers<std::uint64_t>();
  for (const std::uint64_t member : tensor.members) {
    // Members come before their buckets, so that whoever reads a layout may index without a check.
    if (member >= number) words.refuse(fmt::format("has a bucket of tensor {}, which is not there", member));
  }
  return tensor;
}

KeySpec read_table(Words& words) {
  words.line("table");
  KeySpec table;
  table.name = words.word();
  table.dtype = words.word();
  table.shape = words.numbers<std::uint64_t>();
  const bool has_rows = table.shape.size() > 0 && table.elements() > 0;
  if (!has_rows) words.refuse(fmt::format("has a table '{}' without rows", table.name));
  return table;
}

}  // namespace

std::string write_manifest(const Manifest& manifest) {
  std::string text = fmt::format("{}\ngeneration\t{}\nworkers\t{}\ncontributors\t{}\noptimizer\t{}\n", kTitle,
                                 manifest.generation, manifest.workers, fmt::join(manifest.contributors, ","),
                                 manifest.optimizer);
  text += fmt::format("tensors\t{}\n", manifest.layout.size());
  for (const LayoutTensor& tensor : manifest.layout) {
    text += fmt::format("tensor\t{}\t{}\t{}\t{}\t{}\t{}\n", tensor.spec.name, tensor.spec.dtype,
                        tensor.home.tensor, tensor.home.offset, fmt::join(tensor.spec.shape, ","),
                        fmt::join(tensor.members, ","));
  }
  if (!manifest.tables.empty()) text += fmt::format("tables\t{}\n", manifest.tables.size());
  for (const KeySpec& table : manifest.tables)
    text += fmt::format("table\t{}\t{}\t{}\n", table.name, table.dtype, fmt::join(table.shape, ","));
  for (const Manifest::File& file : manifest.files)
    text += fmt::format("file\t{}\t{}\t{:08x}\n", file.name, file.seal.bytes, file.seal.digest);
  return sealed(std::move(text));
}

Manifest read_manifest(const std::string& text, const std::filesystem::path& path) {
  Words words(unsealed(text, Words(text, path)), path);
  Manifest manifest;
  const bool is_version_1 = words.is_next(kTitle1);
  words.line(is_version_1 ? kTitle1 : kTitle);
  words.line("generation");
  manifest.generation = words.number<std::uint64_t>();
  words.line("workers");
  manifest.workers = words.number<std::uint32_t>();
  words.line("contributors");
  manifest.contributors = words.numbers<std::uint32_t>();
  words.line("optimizer");
  // A job of sums has none.
  manifest.optimizer = words.word_or_nothing();
  // Without a momentum both forms of sgd are the same, and keep the name.
  if (is_version_1 && has_momentum(manifest.optimizer))
    manifest.optimizer = renamed_since_version_1(manifest.optimizer);
  words.line("tensors");
  const auto tensors = words.number<std::uint64_t>();
  // One by one, and not by a count that was read: a manifest must not choose how much is allocated.
  for (std::uint64_t number = 0; number < tensors; ++number)
    manifest.layout.push_back(read_tensor(words, number));
  if (words.is_next("tables")) {  // jobs that have none do not write of them
    words.line("tables");
    const auto tables = words.number<std::uint64_t>();
    for (std::uint64_t number = 0; number < tables; ++number) manifest.tables.push_back(read_table(words));
  }
  for (std::uint32_t rank = 0; rank < manifest.workers; ++rank) {
    words.line("file");
    Manifest::File& file = manifest.files.emplace_back();
    file.name = words.word();
    file.seal.bytes = words.number<std::uint64_t>();
    file.seal.digest = words.number<std::uint32_t>(16);
  }
  const bool knows_all =
      std::ranges::all_of(manifest.contributors, [&](std::uint32_t rank) { return rank < manifest.workers; });
  if (manifest.contributors.empty() || !knows_all || manifest.workers == 0)
    words.refuse("names contributors that are no workers");
  return manifest;
}

// ------------------------------------------------------------------------------------- the folder

namespace {

/// The generation that a file of ours is of, finished or not; nothing for others.
std::optional<std::uint64_t> generation_of(const std::string& name) {
  std::uint64_t generation = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), generation);
  const std::string_view rest(end, name.data() + name.size());
  if (error != std::errc() || !rest.starts_with(".worker-") ||
      rest.find(kExtension) == std::string_view::npos)
    return std::nullopt;
  return generation;
}

}  // namespace

std::filesystem::path manifest_path(const std::filesystem::path& folder) {
  return folder / "checkpoint.manifest";
}

std::string file_name(std::uint64_t generation, std::uint32_t rank) {
  return fmt::format("{:06}.worker-{}{}", generation, rank, kExtension);
}

std::uint64_t next_generation(const std::filesystem::path& folder) {
  std::uint64_t newest = 0;
  // Also of files that a broken-off save has left, so that their names are not used again.
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    newest = std::max(newest, generation_of(entry.path().filename().string()).value_or(0));
  return newest + 1;
}

void remove_other_generations(const std::filesystem::path& folder, std::uint64_t generation) {
  std::error_code ignored;
  // Listed first: what a directory iterator shows is unspecified once entries are removed.
  std::vector<std::filesystem::path> old;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const auto its = generation_of(entry.path().filename().string());
    if (its && *its != generation) old.push_back(entry.path());
  }
  for (const auto& path : old) std::filesystem::remove(path, ignored);
}

}  // namespace gradwire::kvstore
