// PyEngine is what Python's Engine is: an Engine, the Python arrays that its operations still touch, and the
// scheduler, if this process serves the job's rendezvous.
//
// Threading: as Engine; what touches Python objects holds the GIL.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "compress/cuda/cuda_device.h"
#include "kvstore/engine/engine.h"
#include "kvstore/server/server.h"
#include "python/src/arrays.h"
#include "python/src/bindings.h"
#include "python/src/kept_arrays.h"
#include "python/src/waiting.h"
#include "transport/decorators/faults.h"
#include "transport/decorators/logged_messenger.h"
#include "transport/mpi/mpi.h"
#include "transport/node_pair.h"
#include "transport/zmq/scheduler.h"
#include "transport/zmq/zmq_messenger.h"

namespace gradwire::python {

/// An Engine and the Python arrays that its operations still touch.
///
/// A process forked from its own has memory of it but none of its threads: there it answers what it is,
/// refuses the rest, and is left behind whole, for its end would wait for those threads.
class PyEngine {
 public:
  PyEngine(std::unique_ptr<transport::Messenger> messenger, const kvstore::EngineOptions& options,
           const kvstore::ConnectHost& connect_host)
      : engine_(std::make_unique<kvstore::Engine>(std::move(messenger), options, nullptr, connect_host)) {}
  /// Of a pair of nodes; scheduler: the job's, if this process serves it.
  PyEngine(transport::NodePair pair, const kvstore::EngineOptions& options,
           const kvstore::ConnectHost& connect_host = {},
           std::unique_ptr<transport::Scheduler> scheduler = nullptr)
      : scheduler_(std::move(scheduler)),
        engine_(std::make_unique<kvstore::Engine>(
            std::move(pair.worker), options,
            std::make_unique<kvstore::Server>(std::move(pair.server), kvstore::hosted_server(options)),
            connect_host)) {}
  /// Where a library sums; scheduler: likewise.
  PyEngine(std::unique_ptr<transport::Messenger> control, std::unique_ptr<transport::Collective> sums,
           const kvstore::EngineOptions& options, std::unique_ptr<transport::Scheduler> scheduler = nullptr)
      : scheduler_(std::move(scheduler)),
        engine_(std::make_unique<kvstore::Engine>(std::move(control), std::move(sums), options)) {}
  ~PyEngine() {
    if (!is_inherited()) return;
    static_cast<void>(engine_.release());
    static_cast<void>(scheduler_.release());
  }
  PyEngine(const PyEngine&) = delete;
  PyEngine& operator=(const PyEngine&) = delete;

  /// Throws std::logic_error in a forked process.
  kvstore::Engine& engine() {
    if (is_inherited()) {
      throw std::logic_error("the store was opened by process " + std::to_string(owner_) +
                             ", from which this one was forked; use it there, or start this one afresh "
                             "(multiprocessing: spawn)");
    }
    return *engine_;
  }
  /// What the job's frames met, if it runs under faults.
  void disturb_by(std::shared_ptr<transport::Faults> faults) { faults_ = std::move(faults); }
  const transport::Faults* faults() const { return faults_.get(); }
  /// Where the lines of its messages are kept, if they are to be told.
  void log_messages_to(std::shared_ptr<transport::MessageLines> lines) { messages_ = std::move(lines); }
  std::vector<std::string> take_messages() {
    return messages_ ? messages_->take() : std::vector<std::string>();
  }

  /// For what never changes.
  const kvstore::Engine& identity() const { return *engine_; }

  kvstore::Ticket keep(kvstore::Ticket ticket, nanobind::object in, nanobind::object out) {
    kept_.keep(ticket, std::move(in), std::move(out));
    return ticket;
  }

  /// Apart from other operations' arrays, which end in their own order.
  void keep_until_taken(kvstore::Ticket taken, nanobind::object grad) {
    kept_of_pushes_.keep(std::move(taken), std::move(grad), {});
  }

  /// Of operations that are done.
  void let_go_of_arrays() {
    kept_.let_go();
    kept_of_pushes_.let_go();
  }

  void bind_slots(const std::vector<kvstore::KeyId>& keys, const std::vector<Numbers>& arrays,
                  const std::vector<std::int32_t>& priorities, kvstore::SlotSet set,
                  const std::vector<std::uint32_t>& groups) {
    bind(keys, arrays, nullptr, priorities, set, groups);
  }
  /// Throws std::invalid_argument unless all arrays lie on one device.
  void bind_slots_on_device(const std::vector<kvstore::KeyId>& keys, const std::vector<CudaNumbers>& arrays,
                            const std::vector<std::int32_t>& priorities, kvstore::SlotSet set,
                            const std::vector<std::uint32_t>& groups) {
    const int device = arrays.empty() ? 0 : arrays.front().device_id();
    for (const auto& array : arrays) expect_device("bind_slots", array.device_id(), device);
    bind(keys, arrays, cuda(device), priorities, set, groups);
  }

  /// The device of this number, opened when it is first asked for, and the stream that is writing or reading
  /// there.
  kvstore::OnDevice on_cuda(int device, std::uintptr_t stream) {
    return {cuda(device), reinterpret_cast<void*>(stream)};
  }
  static void expect_device(const char* verb, int given, int expected) {
    if (given == expected) return;
    throw std::invalid_argument(std::string(verb) + ": arrays lie on cuda:" + std::to_string(expected) +
                                " and on cuda:" + std::to_string(given) + "; give those of one device");
  }

  /// Of an operation that failed: threads that end with close() may still read its arrays.
  void keep_until_close(nanobind::object arrays) { kept_.keep_failed(std::move(arrays)); }

  /// From any thread; who comes second waits for the first. error: what ends this worker, if an error does.
  void close(const std::string& error) {
    if (is_inherited()) return;
    {
      const nanobind::gil_scoped_release release;
      const std::scoped_lock lock(closing_);
      engine_->close(error);
    }
    kept_.release();
    kept_of_pushes_.release();
    const auto slots = std::exchange(slots_, {});  // their end, too, lets other threads in
    const auto abandoned = std::exchange(abandoned_, {});
  }

  /// From any thread, after close().
  void retire() {
    if (is_inherited()) return;
    const std::scoped_lock lock(closing_);
    engine_->retire();
  }
  bool serves_rendezvous() const { return scheduler_ != nullptr; }

  // Of the timeline. In a forked process, which has none, they do nothing.

  void stop_timeline() {
    if (!is_inherited()) engine_->metrics().trace().stop();
  }
  /// Reads the servers' clocks, if anybody is there to answer.
  void read_clocks(std::chrono::milliseconds timeout) {
    if (!is_inherited()) engine_->metrics().read_clocks(timeout);
  }
  /// Returns the path of this process's part.
  std::optional<std::string> write_timeline(const std::string& folder, const std::string& store) {
    if (is_inherited()) return std::nullopt;
    return engine_->metrics().write_trace(folder, store);
  }

  /// Waits until nobody needs what this process serves for the whole job. From any thread, as close() and
  /// retire(), which wait for a slice of it: where ranks are threads, each looks after what all of them
  /// serve.
  bool outlast_for(std::chrono::milliseconds timeout) {
    if (is_inherited()) return true;
    const std::scoped_lock lock(closing_);
    if (!engine_->outlast_for(timeout)) return false;
    if (!scheduler_) return true;
    try {
      return scheduler_->wait_for(timeout);
    } catch (const std::exception&) {  // the job has failed, and everybody knows
      return true;
    }
  }

 private:
  bool is_inherited() const { return getpid() != owner_; }

  std::shared_ptr<compress::Device> cuda(int number) {
    auto& device = devices_[number];
    if (!device) device = compress::open_cuda_device(number);
    return device;
  }

  template <typename Arrays>
  void bind(const std::vector<kvstore::KeyId>& keys, const Arrays& arrays,
            std::shared_ptr<compress::Device> device, const std::vector<std::int32_t>& priorities,
            kvstore::SlotSet set, const std::vector<std::uint32_t>& groups) {
    std::vector<kvstore::ArrayView> values;
    for (const auto& array : arrays) values.push_back(numbers_of(array, "bind_slots", "an array"));
    kvstore::Engine& engine = this->engine();
    // Of a step that was given up (Ctrl-C): its sums may arrive yet.
    BoundSlots& bound = slots_[set];
    if (engine.slots().unmarked(set).size() != bound.count) abandoned_.push_back(bound.arrays);
    {
      const nanobind::gil_scoped_release release;
      engine.slots().bind(keys, values, std::move(device), priorities, set, groups);
    }
    bound = {std::make_shared<Arrays>(arrays), arrays.size()};
  }

  const pid_t owner_ = getpid();
  std::shared_ptr<transport::Faults> faults_;          // owners: this and the engine's messengers
  std::shared_ptr<transport::MessageLines> messages_;  // owners: likewise
  std::unique_ptr<transport::Scheduler> scheduler_;    // before engine_, which needs it to the end
  KeptArrays kept_, kept_of_pushes_;                   // before engine_: outlive it
  struct BoundSlots {
    std::shared_ptr<void> arrays;  ///< of whichever kind; owners: this and abandoned_
    std::size_t count = 0;
  };
  std::map<kvstore::SlotSet, BoundSlots> slots_;
  std::vector<std::shared_ptr<void>> abandoned_;
  std::map<int, std::shared_ptr<compress::Device>> devices_;  ///< by CUDA's number
  std::unique_ptr<kvstore::Engine> engine_;
  std::mutex closing_;
};

void bind_collectives(nanobind::class_<PyEngine>& engine);
void bind_sparse(nanobind::module_& module, nanobind::class_<PyEngine>& engine);
void bind_state(nanobind::class_<PyEngine>& engine);
void bind_metrics(nanobind::class_<PyEngine>& engine);

}  // namespace gradwire::python
