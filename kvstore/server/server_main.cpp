// gradwire-server: the scheduler or one server of a job, without Python.
// Exit status: 0 when every worker left cleanly, 1 when the job failed, 2 for bad arguments.
#include <malloc.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>

#include "kvstore/server/server.h"
#include "kvstore/trace/json_text.h"
#include "kvstore/trace/trace_file.h"
#include "transport/decorators/faulty_messenger.h"
#include "transport/decorators/logged_messenger.h"
#include "transport/zmq/scheduler.h"
#include "transport/zmq/zmq_messenger.h"

namespace {

using gradwire::kvstore::Server;
using gradwire::kvstore::ServerOptions;
using gradwire::kvstore::Trace;
using gradwire::transport::JobKey;
using gradwire::transport::OnFailure;
using gradwire::transport::Role;
using gradwire::transport::ZmqOptions;

struct Arguments {
  std::string role = "server";
  std::string checksum = "auto";
  ZmqOptions zmq;
  ServerOptions server;
  int rank = -1;
  double rendezvous_timeout = 60;
  double liveness_timeout = 20;
  double mirror_patience = 0.5;
  double slow_warning = 60;
  double slow_abort = 1800;
  std::string on_failure = "abort";
  double regroup_timeout = 30;
  double regroup_patience = 1800;
  int announce = -1;
  std::string timeline;
  std::string key_variable;
  std::string faults;
  std::string log_level = "warning";
  std::string log_format = "text";
};

/// A log's text as JSON has it.
class JsonText final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    const std::string text = gradwire::kvstore::json_text({message.payload.data(), message.payload.size()});
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<JsonText>(); }
};

/// Reports on stderr, in a line each.
void set_up_log(const Arguments& a) {
  spdlog::set_default_logger(spdlog::stderr_color_mt("gradwire-" + a.role));
  spdlog::set_level(spdlog::level::from_str(a.log_level));
  if (a.log_format == "text") return spdlog::set_pattern("%n: %v");
  auto formatter = std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::utc);
  formatter->add_flag<JsonText>('*').set_pattern(R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l","role":")" +
                                                 a.role + R"(","pid":%P,"text":%*})");
  spdlog::set_formatter(std::move(formatter));
}

void declare_job(CLI::App& app, Arguments& a) {
  app.add_option("--role", a.role, "scheduler or server")
      ->check(CLI::IsMember({"scheduler", "server"}))
      ->capture_default_str();
  app.add_option("--scheduler", a.zmq.scheduler,
                 "where the scheduler listens: tcp://HOST:PORT (port 0: any free one)")
      ->required();
  app.add_option("--workers", a.zmq.workers, "workers in the job")->required()->check(CLI::PositiveNumber);
  app.add_option("--servers", a.zmq.servers, "servers in the job")->required()->check(CLI::NonNegativeNumber);
  app.add_option("--replicas", a.zmq.replicas,
                 "1: each server is mirrored on the next, and one may die without losing an update; 0: none")
      ->check(CLI::Range(0, 1))
      ->capture_default_str();
  app.add_option("--rank", a.rank, "this server's rank; by order of arrival when absent");
  app.add_option("--rendezvous-timeout", a.rendezvous_timeout, "seconds to wait for all nodes")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option(
         "--liveness-timeout", a.liveness_timeout,
         "seconds of silence after which a node is dead; one whose connection has closed is dead within 2 s")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--on-failure", a.on_failure,
                 "abort: the job ends with its first failure; continue: it goes on without workers that die")
      ->check(CLI::IsMember({"abort", "continue"}))
      ->capture_default_str();
  app.add_option("--host-id", a.zmq.host, "name of this host, where several share one machine");
  app.add_option(
      "--key-variable", a.key_variable,
      "environment variable that holds the job's key, such as GRADWIRE_JOB_KEY: encrypts, and takes "
      "members of the job alone; absent: neither");
}

void declare_scheduler(CLI::App& app, Arguments& a) {
  app.add_flag("--servers-optional", a.zmq.servers_optional,
               "scheduler: workers that host servers of their own may come instead of using the servers");
  app.add_option("--min-workers", a.zmq.min_workers,
                 "scheduler, with --on-failure continue: the job ends when fewer workers are left")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--regroup-timeout", a.regroup_timeout,
                 "scheduler, likewise: seconds to wait for a silent worker when the job forms its next "
                 "generation")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--regroup-patience", a.regroup_patience,
                 "scheduler, likewise: seconds to wait for a worker that is alive but busy")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--announce", a.announce,
                 "file descriptor to write the scheduler's endpoint to, then close");
}

void declare_server(CLI::App& app, Arguments& a) {
  app.add_option("--bind-host", a.zmq.bind_host, "name or address on which a server listens");
  app.add_option("--interface", a.zmq.interface,
                 "network interface whose address a server listens on, e.g. eth0");
  app.add_option("--threads", a.server.threads, "aggregator threads")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--credit-bytes", a.server.credit_bytes,
                 "replies handed to a worker's socket at once; less lets urgent ones overtake more")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--fusion-bytes", a.server.fusion_bytes,
                 "small replies travel together until a message holds this")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--streams", a.zmq.streams_per_peer, "connections between a worker and a server")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--checksum", a.checksum, "payload checksums of what a server sends: auto, always or off")
      ->check(CLI::IsMember({"auto", "always", "off"}))
      ->capture_default_str();
  app.add_option("--mirror-patience", a.mirror_patience,
                 "server, with --replicas 1: seconds after which it sends its mirror again what that has not "
                 "acknowledged")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--slow-warning", a.slow_warning,
                 "server, with --replicas 1: seconds of waiting for its mirror before it warns")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--slow-abort", a.slow_abort,
                 "server, with --replicas 1: seconds of waiting for its mirror before the job fails")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

void declare_what_is_seen(CLI::App& app, Arguments& a) {
  app.add_option("--timeline", a.timeline,
                 "server: folder to which its part of the job's timeline is written");
  app.add_option("--faults", a.faults,
                 "disturb what this process sends, or kill it: seed=7,drop=1%,kill=server:0@push:100 "
                 "(gradwire run --help)");
  app.add_option("--log-level", a.log_level, "debug, info, warning or error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->capture_default_str();
  app.add_option("--log-format", a.log_format, "text for people, or json, an object a line")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
}

void declare(CLI::App& app, Arguments& a) {
  app.description(
      "Runs the scheduler (rendezvous, barriers, liveness) or one parameter server of a gradwire job.\n"
      "Example, a job of 2 workers and 1 server:\n"
      "  gradwire-server --role scheduler --scheduler tcp://10.0.0.1:9091 --workers 2 --servers 1\n"
      "  gradwire-server --role server    --scheduler tcp://10.0.0.1:9091 --workers 2 --servers 1");
  declare_job(app, a);
  declare_scheduler(app, a);
  declare_server(app, a);
  declare_what_is_seen(app, a);
}

/// The one thing that does not come as a flag: everybody on the machine can read a command line.
std::optional<JobKey> job_key(const std::string& variable) {
  if (variable.empty()) return std::nullopt;
  const char* text = std::getenv(variable.c_str());
  if (text == nullptr) {
    constexpr std::size_t kLongestShown = 64;  // a key, or most of one, is longer
    throw std::invalid_argument(
        "--key-variable: " +
        (variable.size() < kLongestShown ? variable + " is not set" : "a text that is no variable's name") +
        "; expected the job's key there, as `gradwire key` prints it");
  }
  return JobKey::parse(text);
}

void announce(int descriptor, const std::string& endpoint) {
  if (descriptor < 0) return;
  const std::string line = endpoint + "\n";
  if (::write(descriptor, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    spdlog::error("could not write the endpoint to file descriptor {}", descriptor);
  }
  ::close(descriptor);
}

using gradwire::transport::Faults;

/// What the process is to be disturbed by; none without --faults. A process that dies before it joins dies
/// here.
std::shared_ptr<Faults> faults_of(const Arguments& a) {
  auto faults =
      Faults::of(a.faults, a.zmq.checksum, [](const std::string& text) { spdlog::critical("{}", text); });
  if (!faults) return nullptr;
  spdlog::warn("runs under faults: {}", a.faults);
  faults->saw({a.zmq.role, a.zmq.rank.value_or(0)}, gradwire::transport::FaultEvent::kStart);
  return faults;
}

std::unique_ptr<gradwire::transport::Messenger> connect(const Arguments& a,
                                                        const std::shared_ptr<Faults>& faults) {
  gradwire::transport::TakeLine take;  // none, so that it costs nothing, where nobody would read it
  if (spdlog::should_log(spdlog::level::debug)) take = [](std::string line) { spdlog::debug("{}", line); };
  return gradwire::transport::logged(
      gradwire::transport::disturbed(gradwire::transport::connect_zmq(a.zmq), faults), take);
}

/// Runs the server to the job's end, however that comes, and leaves its part of the timeline.
void serve_traced(Arguments& a, const std::shared_ptr<Faults>& faults) {
  a.server.trace = std::make_shared<Trace>();
  a.server.trace->start();
  Server server(connect(a, faults), a.server);
  std::exception_ptr failure;
  try {
    server.wait();
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  gradwire::kvstore::leave_trace(a.timeline, *a.server.trace,
                                 {server.self(), server.world(), false, "server"},
                                 [](const std::string& text) { spdlog::warn("{}", text); });
  if (failure) std::rethrow_exception(failure);
}

std::chrono::milliseconds from_seconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

/// Its name in a job that goes on, through all generations of it.
std::string new_member() {
  std::random_device random;
  return std::to_string(std::uint64_t{random()} << 32 | random());
}

/// Serves one generation of the job, to its end.
void serve_generation(Arguments& a, const std::shared_ptr<Faults>& faults) {
  if (!a.timeline.empty()) return serve_traced(a, faults);
  Server server(connect(a, faults), a.server);
  server.wait();
}

/// Serves as what this process is, to the job's end.
void serve(Arguments& a, const std::shared_ptr<Faults>& faults) {
  if (a.zmq.role == Role::kScheduler) {
    a.zmq.witness = gradwire::transport::scheduler_witness(faults);
    gradwire::transport::Scheduler scheduler(a.zmq);
    announce(a.announce, scheduler.endpoint());
    scheduler.wait();
    return;
  }
  if (a.zmq.on_failure == OnFailure::kAbort) return serve_generation(a, faults);
  a.zmq.member = new_member();
  for (;;) {
    try {
      return serve_generation(a, faults);
    } catch (const gradwire::transport::MembershipChanged& changed) {
      spdlog::info("{}; joining again", changed.what());
    }
  }
}

void run(Arguments& a) {
  a.zmq.role = a.role == "scheduler" ? Role::kScheduler : Role::kServer;
  a.zmq.checksum = gradwire::transport::parse_payload_checksum(a.checksum);
  a.zmq.key = job_key(a.key_variable);
  if (a.rank >= 0) a.zmq.rank = static_cast<std::uint32_t>(a.rank);
  a.zmq.rendezvous_timeout = from_seconds(a.rendezvous_timeout);
  a.zmq.liveness_timeout = from_seconds(a.liveness_timeout);
  a.zmq.regroup_timeout = from_seconds(a.regroup_timeout);
  a.zmq.regroup_patience = from_seconds(a.regroup_patience);
  a.server.mirror_patience = from_seconds(a.mirror_patience);
  a.server.slow_warning = from_seconds(a.slow_warning);
  a.server.slow_abort = from_seconds(a.slow_abort);
  a.server.notify = [](const std::string& text) { spdlog::warn("{}", text); };
  if (a.on_failure == "continue") a.zmq.on_failure = OnFailure::kContinue;
  a.zmq.log = [](const std::string& text) { spdlog::info("{}", text); };
  const auto faults = faults_of(a);
  try {
    serve(a, faults);
  } catch (const std::exception&) {
    if (faults) spdlog::warn("faults: {}", to_string(faults->counts()));
    throw;
  }
  if (faults) spdlog::warn("faults: {}", to_string(faults->counts()));
}

}  // namespace

int main(int argc, char** argv) {
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);  // messages come from the heap, not from fresh pages every time (32
                                          // MiB: the most glibc takes)
  ::mallopt(M_TRIM_THRESHOLD, -1);
  CLI::App app;
  Arguments arguments;
  declare(app, arguments);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int status = app.exit(error);
    return status == 0 ? 0 : 2;
  }
  set_up_log(arguments);
  try {
    run(arguments);
    return 0;
  } catch (const std::invalid_argument& error) {
    spdlog::error("{}", error.what());
    return 2;
  } catch (const std::exception& error) {
    spdlog::error("{}", error.what());
    return 1;
  }
}
