// The optimizer that a server uses, and its name.
//
// Threading: one owner.
#pragma once

#include <memory>
#include <string>

#include "kvstore/aggregate/updater.h"

namespace gradwire::kvstore {

struct ServersUpdater {
  std::unique_ptr<Updater> updater;  ///< none: only sums are held
  std::string name;

  bool is_set() const { return updater != nullptr; }
};

}  // namespace gradwire::kvstore
