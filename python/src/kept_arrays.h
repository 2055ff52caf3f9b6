// KeptArrays keeps the Python arrays that an engine's operations still touch.
//
// Threading: every method holds the GIL. An array's end may run Python and so let another thread in: none
// ends before it is out of the containers.
#pragma once

#include <nanobind/nanobind.h>

#include <deque>
#include <utility>
#include <vector>

#include "kvstore/runtime/ticket.h"

namespace gradwire::python {

class KeptArrays {
 public:
  /// Keeps arrays until their operation is done and let_go() or another keep() follows, or, when it failed,
  /// until release(): threads that end with the engine may still read them.
  void keep(kvstore::Ticket ticket, nanobind::object in, nanobind::object out) {
    const auto done = take_done();
    under_way_.push_back({std::move(ticket), std::move(in), std::move(out)});
  }

  /// Lets go of those whose operation is done.
  void let_go() { const auto done = take_done(); }

  /// Of an operation that has failed.
  void keep_failed(nanobind::object arrays) { failed_.push_back({{}, std::move(arrays), {}}); }

  /// Lets go of all: nothing reads them any more.
  void release() {
    const auto under_way = std::exchange(under_way_, {});
    const auto failed = std::exchange(failed_, {});
  }

 private:
  struct Operation {
    kvstore::Ticket ticket;
    nanobind::object in, out;
  };

  /// Operations end as they began. Those that failed move over.
  std::vector<Operation> take_done() {
    std::vector<Operation> done;
    for (; !under_way_.empty() && under_way_.front().ticket.done(); under_way_.pop_front()) {
      auto& kept_by = under_way_.front().ticket.failed() ? failed_ : done;
      kept_by.push_back(std::move(under_way_.front()));
    }
    return done;
  }

  std::deque<Operation> under_way_;
  std::vector<Operation> failed_;
};

}  // namespace gradwire::python
