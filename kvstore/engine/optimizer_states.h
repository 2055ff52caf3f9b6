// OptimizerStates saves and loads what servers keep of each weight beside it (momentum, moments, steps), in
// one file.
//
// Threading: save() is of any one rank, or of several; load() is a collective.
// Failure: std::logic_error where no optimizer is set, and during a step; std::invalid_argument where there
// are tables of rows.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace gradwire::kvstore {

class OptimizerFile;
class ServerStates;
enum class Dump : std::uint8_t;
struct EngineContext;

class OptimizerStates {
 public:
  /// set_optimizer: Engine's. All outlive this.
  OptimizerStates(EngineContext& context, ServerStates& servers,
                  std::function<void(const std::string&)> set_optimizer)
      : context_(context), servers_(servers), set_optimizer_(std::move(set_optimizer)) {}

  /// Writes them; with kStatesAndParameters the optimizer's parameters too. Between this rank's own steps;
  /// of several ranks each writes the file, whole or not at all. Where pushes are applied at once, each
  /// part's are as they are then. Throws std::runtime_error where it cannot be written.
  void save(const std::string& path, Dump dump);
  /// Puts them back, and with them the parameters if the file has some, in a job of the same keys, whatever
  /// its workers and servers; weights stay as they are. Between steps; rank 0 reads the file (all ranks,
  /// where a library sums). Returns the optimizer that is set now, as in Engine::set_optimizer(), or nothing
  /// where it is the one before. Throws compress::DecodeError for what is damaged or another file,
  /// std::invalid_argument for other keys, another optimizer or ranks that read different files, all before
  /// anything has changed, and std::runtime_error where the file cannot be read; the same on all ranks.
  std::string load(const std::string& path);

 private:
  void require_states(const char* verb) const;
  void require_own(const OptimizerFile& file, const std::string& path) const;
  void restore(const OptimizerFile& file);

  EngineContext& context_;
  ServerStates& servers_;
  const std::function<void(const std::string&)> set_optimizer_;
  std::uint64_t loads_ = 0;  ///< how often states were loaded
};

}  // namespace gradwire::kvstore
