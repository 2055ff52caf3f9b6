#include "transport/membership/control.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>

namespace gradwire::transport {
namespace {

constexpr std::size_t kLongestText = 1 << 20;  // bytes; a roster of thousands of servers fits

// The lines of a text; a key may come several times.
class Fields {
 public:
  explicit Fields(std::string_view text) {
    // Checked before the map below grows: any process that can connect to the scheduler may send a hello.
    if (text.size() > kLongestText)
      throw FrameError("text: it has " + std::to_string(text.size()) + " bytes");
    while (!text.empty()) {
      const std::string_view line = text.substr(0, text.find('\n'));
      const std::size_t equals = line.find('=');
      if (equals == std::string_view::npos) {
        throw FrameError("text: line '" + std::string(line.substr(0, 80)) + "' is no key=value");
      }
      values_[std::string(line.substr(0, equals))].emplace_back(line.substr(equals + 1));
      // The last line may lack its newline, since a node that was written from PROTOCOL.md may forget it.
      text.remove_prefix(std::min(text.size(), line.size() + 1));
    }
  }

  // Of a key that comes several times the first counts. Keys that nobody asks for are ignored, so that a
  // later version may add some.
  const std::string& text(const std::string& key) const {
    const auto found = values_.find(key);
    if (found == values_.end()) throw FrameError("text: field '" + key + "' is missing");
    return found->second.front();
  }

  template <typename T>
  T number(const std::string& key) const {
    const std::string& value = text(key);
    T parsed{};
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), parsed);
    // from_chars stops at the first other character: without the second condition "2 servers" would read as
    // 2.
    if (error != std::errc{} || end != value.data() + value.size()) {
      throw FrameError("text: " + key + " is '" + value.substr(0, 80) + "', expected a whole number");
    }
    return parsed;
  }

  template <typename T>
  T number_or(const std::string& key, T otherwise) const {
    return values_.contains(key) ? number<T>(key) : otherwise;
  }

  Role role() const {
    const std::string& value = text("role");
    // The scheduler sends no hello and no goodbye about itself, so "scheduler" is refused like any other
    // word.
    if (value == "worker") return Role::kWorker;
    if (value == "server") return Role::kServer;
    throw FrameError("text: role is '" + value.substr(0, 80) + "', expected worker or server");
  }

  std::vector<std::string> all(const std::string& key) const {
    const auto found = values_.find(key);
    return found == values_.end() ? std::vector<std::string>() : found->second;
  }

 private:
  std::map<std::string, std::vector<std::string>> values_;
};

std::string line(const char* key, const std::string& value) { return std::string(key) + "=" + value + "\n"; }
std::string line(const char* key, std::uint64_t value) { return line(key, std::to_string(value)); }
const char* role_word(Role role) { return role == Role::kServer ? "server" : "worker"; }

template <typename T>
void append(std::string& to, T value) {
  // Little endian as on the wire: frame.cpp does not compile on a machine of another byte order.
  to.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
T take(std::string_view& from) {
  if (from.size() < sizeof(T)) throw FrameError("exchange result: it ends within a number");
  T value;
  std::memcpy(&value, from.data(), sizeof(value));
  from.remove_prefix(sizeof(value));
  return value;
}

}  // namespace

std::string to_text(const Hello& hello) {
  std::string settings;
  for (const std::string& setting : hello.settings) settings += line("setting", setting);
  // Optional fields are left out where the feature is off, as PROTOCOL.md allows to every node.
  return line("role", role_word(hello.role)) +
         line("rank", hello.rank ? std::to_string(*hello.rank) : std::string("any")) +
         line("workers", hello.workers) + line("servers", hello.servers) +
         (hello.replicas == 0 ? std::string() : line("replicas", hello.replicas)) +
         line("endpoint", hello.endpoint) +
         (hello.local.empty() ? std::string() : line("local", hello.local)) +
         (hello.pair.empty() ? std::string() : line("pair", hello.pair)) + line("version", hello.version) +
         line("host", hello.host) + line("pid", hello.pid) +
         (hello.member.empty() ? std::string() : line("member", hello.member)) + settings;
}

Hello parse_hello(std::string_view text) {
  const Fields fields(text);
  Hello hello;
  hello.role = fields.role();
  if (fields.text("rank") != "any") hello.rank = fields.number<std::uint32_t>("rank");
  hello.workers = fields.number<std::uint32_t>("workers");
  hello.servers = fields.number<std::uint32_t>("servers");
  hello.replicas = fields.number_or<std::uint32_t>("replicas", 0);
  hello.endpoint = fields.text("endpoint");
  if (const auto local = fields.all("local"); !local.empty()) hello.local = local.front();
  if (const auto pair = fields.all("pair"); !pair.empty()) hello.pair = pair.front();
  hello.version = fields.number<std::uint32_t>("version");
  hello.host = fields.text("host");
  hello.pid = fields.number<std::uint64_t>("pid");
  if (const auto member = fields.all("member"); !member.empty()) hello.member = member.front();
  hello.settings = fields.all("setting");
  return hello;
}

std::string to_text(const Roster& roster) {
  std::string text = line("rank", roster.rank) + line("epoch", roster.epoch) +
                     line("workers", roster.workers) + line("servers", roster.servers);
  if (roster.replicas != 0) text += line("replicas", roster.replicas);
  for (const std::string& endpoint : roster.endpoints) text += line("server", endpoint);
  for (const std::string& local : roster.locals) text += line("local", local);
  if (roster.generation > 1) text += line("generation", roster.generation);
  return text;
}

Roster parse_roster(std::string_view text) {
  const Fields fields(text);
  Roster roster{fields.number<std::uint32_t>("rank"),
                fields.number<std::uint64_t>("epoch"),
                fields.number<std::uint32_t>("workers"),
                fields.number<std::uint32_t>("servers"),
                fields.all("server"),
                fields.all("local"),
                fields.number_or<std::uint32_t>("replicas", 0),
                fields.number_or<std::uint32_t>("generation", 1)};
  // Endpoints and locals are indexed by rank without another check, so their numbers are checked here once.
  if (roster.generation == 0) throw FrameError("roster: generation is 0, expected 1 or more");
  if (roster.endpoints.size() != roster.servers) {
    throw FrameError("roster: it lists " + std::to_string(roster.endpoints.size()) + " endpoints for " +
                     std::to_string(roster.servers) + " servers");
  }
  if (!roster.locals.empty() && roster.locals.size() != roster.servers) {
    throw FrameError("roster: it lists " + std::to_string(roster.locals.size()) + " local endpoints for " +
                     std::to_string(roster.servers) + " servers");
  }
  return roster;
}

std::string to_text(const StreamHello& hello) {
  return line("stream", hello.stream) + line("streams", hello.streams);
}

StreamHello parse_stream_hello(std::string_view text) {
  const Fields fields(text);
  const StreamHello hello{fields.number<std::uint32_t>("stream"), fields.number<std::uint32_t>("streams")};
  // A server makes room for that many streams before it knows more of the peer. 64 is what zmq_options.cpp
  // allows a node to ask for.
  if (hello.streams == 0 || hello.streams > 64 || hello.stream >= hello.streams) {
    throw FrameError("hello: stream " + std::to_string(hello.stream) + " of " +
                     std::to_string(hello.streams) + ", expected a stream below a number of streams in 1-64");
  }
  return hello;
}

std::string goodbye_text(Node node) { return line("role", role_word(node.role)) + line("rank", node.rank); }

Node parse_goodbye(std::string_view text) {
  const Fields fields(text);
  return {fields.role(), fields.number<std::uint32_t>("rank")};
}

std::string error_text(std::string_view error) {
  constexpr std::size_t kLongest = 400;
  if (error.empty()) return {};
  std::string kept(error);
  if (error.size() > kLongest) {  // not within a character of UTF-8
    std::size_t end = kLongest;
    // Python decodes the text strictly, and would raise another exception at half a character.
    while (end > 0 && (static_cast<unsigned char>(error[end]) & 0xC0U) == 0x80U) --end;
    kept = std::string(error.substr(0, end)) + " ...";
  }
  // A newline would begin another field of the text.
  std::ranges::replace_if(
      kept, [](char letter) { return static_cast<unsigned char>(letter) < ' '; }, ' ');
  return line("error", kept);
}

std::string parse_error(std::string_view text) {
  const std::vector<std::string> errors = Fields(text).all("error");
  return errors.empty() ? std::string() : errors.front();
}

std::string to_text(const Departure& departure) {
  return line("server", departure.server) + line("mirror", departure.mirror);
}

Departure parse_departure(std::string_view text) {
  const Fields fields(text);
  return {fields.number<std::uint32_t>("server"), fields.number<std::uint32_t>("mirror")};
}

std::string pack_blobs(const std::vector<std::string>& blobs) {
  std::string bytes;
  for (const std::string& blob : blobs) {
    append(bytes, std::uint64_t{blob.size()});
    bytes += blob;
  }
  return bytes;
}

std::vector<std::string> parse_blobs(std::string_view bytes) {
  std::vector<std::string> blobs;
  while (!bytes.empty()) {
    const auto size = take<std::uint64_t>(bytes);
    // Compared with what is left, not added to a position: a hostile size near 2^64 cannot wrap around.
    if (size > bytes.size()) {
      throw FrameError("exchange result: a blob of " + std::to_string(size) + " bytes where " +
                       std::to_string(bytes.size()) + " are left");
    }
    blobs.emplace_back(bytes.substr(0, size));
    bytes.remove_prefix(size);
  }
  return blobs;
}

std::string pack_ranks(const std::vector<std::uint32_t>& ranks) {
  std::string bytes;
  for (const std::uint32_t rank : ranks) append(bytes, rank);
  return bytes;
}

std::vector<std::uint32_t> parse_ranks(std::string_view bytes) {
  std::vector<std::uint32_t> ranks;
  while (!bytes.empty()) ranks.push_back(take<std::uint32_t>(bytes));
  return ranks;
}

void AwaitedExchange::take(ExchangeAnswer answer, std::string_view payload) {
  // No default: an answer that this version does not know leaves the caller waiting, until its deadline.
  switch (answer) {
    case ExchangeAnswer::kComplete:
      blobs = parse_blobs(payload);
      break;
    case ExchangeAnswer::kWaiting:
      missing = parse_ranks(payload);
      break;
    case ExchangeAnswer::kDeserted:
      deserted = payload;
      break;
  }
}

}  // namespace gradwire::transport
