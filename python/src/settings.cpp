#include "python/src/settings.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <functional>
#include <memory>
#include <utility>

#include "python/src/waiting.h"

namespace gradwire::python {

namespace nb = nanobind;
using std::chrono::milliseconds;

namespace {

/// Keyword arguments that are options of the same names: what is not given leaves its option as it is.
class Given {
 public:
  explicit Given(const nb::kwargs& all) : all_(all) {}

  bool contains(const char* name) const { return all_.contains(name); }
  template <typename Value>
  Value at(const char* name) const {
    return nb::cast<Value>(all_[name]);
  }

  template <typename Value>
  void take(const char* name, Value& option) const {
    if (contains(name)) option = at<Value>(name);
  }
  void take_seconds(const char* name, milliseconds& option) const {
    if (contains(name)) option = from_seconds(at<double>(name));
  }

 private:
  const nb::kwargs& all_;
};

// Off until somebody starts it. clock_offset: seconds that this process's clock is to be wrong by, for tests.
std::shared_ptr<kvstore::Trace> trace_of(const Given& given) {
  kvstore::TraceOptions options;
  if (given.contains("clock_offset")) options.clock_offset = from_seconds(given.at<double>("clock_offset"));
  return std::make_shared<kvstore::Trace>(options);
}

// Calls notify(rank, text) of Python's. That is not held by a thread of ours.
std::function<void(transport::Node, const std::string&)> teller(nb::object notify) {
  const auto let_go = [](nb::object* held) {
    const nb::gil_scoped_acquire acquire;
    delete held;
  };
  const std::shared_ptr<nb::object> held(new nb::object(std::move(notify)),
                                         let_go);  // owners: copies of this
  return [held](transport::Node self, const std::string& text) {
    const nb::gil_scoped_acquire acquire;
    (*held)(self.rank, text);
  };
}

}  // namespace

kvstore::EngineOptions engine_options(const nb::kwargs& all) {
  const Given given(all);
  kvstore::EngineOptions options;
  given.take("partition_elements", options.partition_elements);
  given.take("shard_bound_elements", options.shard_bound_elements);
  given.take("fusion_bytes", options.fusion_bytes);
  given.take("credit_bytes", options.credit_bytes);
  given.take("push_ahead_bytes", options.push_ahead_bytes);
  given.take("codec_threads", options.codec_threads);
  given.take("replicas", options.replicas);
  if (given.contains("residual_dtype")) {
    const auto dtype = given.at<std::string>("residual_dtype");
    options.residual_type = dtype == "none" ? std::nullopt : std::optional(kvstore::float_type(dtype));
  }
  if (given.contains("code_sums"))
    options.code_sums = kvstore::parse_code_sums(given.at<std::string>("code_sums"));
  given.take_seconds("slow_warning", options.slow_warning);
  given.take_seconds("slow_abort", options.slow_abort);
  given.take_seconds("retry_timeout", options.retry_timeout);
  if (given.contains("staleness_bound"))
    options.async = {given.at<std::optional<std::uint64_t>>("staleness_bound")};
  options.goes_on = given.contains("member");
  options.trace = trace_of(given);
  return options;
}

transport::ZmqOptions zmq_options(transport::Role role, const nb::kwargs& all) {
  const Given given(all);
  transport::ZmqOptions options;
  options.role = role;
  given.take("scheduler", options.scheduler);
  given.take("rank", options.rank);
  given.take("workers", options.workers);
  given.take("scheduler_name", options.scheduler_name);
  given.take("servers", options.servers);
  given.take("replicas", options.replicas);
  given.take("bind_host", options.bind_host);
  given.take("interface", options.interface);
  given.take("streams", options.streams_per_peer);
  given.take("host", options.host);
  given.take("ipc", options.ipc);
  if (given.contains("checksum"))
    options.checksum = transport::parse_payload_checksum(given.at<std::string>("checksum"));
  if (given.contains("key")) options.key = transport::JobKey::parse(given.at<std::string>("key"));
  given.take_seconds("rendezvous_timeout", options.rendezvous_timeout);
  given.take_seconds("liveness_timeout", options.liveness_timeout);
  given.take("member", options.member);
  given.take("agreed", options.settings);
  if (!options.member.empty()) options.on_failure = transport::OnFailure::kContinue;
  given.take("min_workers", options.min_workers);
  given.take_seconds("regroup_timeout", options.regroup_timeout);
  given.take_seconds("regroup_patience", options.regroup_patience);
  given.take_seconds("slow_warning", options.slow_exchange.warning);
  if (given.contains("notify")) options.slow_exchange.notify = teller(given.at<nb::object>("notify"));
  return options;
}

kvstore::ServerOptions server_options(const nb::kwargs& all) {
  const Given given(all);
  kvstore::ServerOptions options;
  given.take("credit_bytes", options.credit_bytes);
  given.take("fusion_bytes", options.fusion_bytes);
  given.take_seconds("slow_abort", options.slow_abort);
  options.trace = trace_of(given);
  return options;
}

transport::MpiOptions mpi_options(const std::string& library, const nb::kwargs& given) {
  const auto node = zmq_options(transport::Role::kWorker, given);
  transport::MpiOptions options;
  options.library = library;
  options.rendezvous_timeout = node.rendezvous_timeout;
  options.liveness_timeout = node.liveness_timeout;
  options.host = node.host;
  options.checksum = node.checksum;
  options.slow_exchange = node.slow_exchange;
  return options;
}

}  // namespace gradwire::python
