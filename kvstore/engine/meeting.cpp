#include "kvstore/engine/meeting.h"

#include <fmt/format.h>

#include <stdexcept>

#include "compress/codec.h"
#include "kvstore/engine/worker_rounds.h"
#include "kvstore/wire/agreement.h"

namespace gradwire::kvstore {
namespace {

/// How work ended, in the blob that tells other ranks.
enum class Outcome : char { kDone = '+', kBadBytes = 'd', kMisuse = 'i', kOther = 'r' };

std::string blob_of(Outcome outcome, const std::string& text) { return static_cast<char>(outcome) + text; }

void rethrow(std::uint32_t rank, const std::string& blob) {
  const auto outcome = static_cast<Outcome>(blob.front());
  const std::string text = fmt::format("worker {}: {}", rank, blob.substr(1));
  if (outcome == Outcome::kBadBytes) throw compress::DecodeError(text);
  if (outcome == Outcome::kMisuse) throw std::invalid_argument(text);
  if (outcome != Outcome::kDone) throw std::runtime_error(text);
}

}  // namespace

std::vector<std::string> Meeting::all_gather(std::string_view name, std::string_view blob) {
  auto blobs = meet(name, blob);
  require_no_refusal(blobs);
  return blobs;
}

/// Servers hear of it first, so that nobody is held back for a worker that cannot push meanwhile: who is held
/// back could not come here, and all would wait. And they hear that it pushes again though others never came:
/// else nobody would ever wait for it.
std::vector<std::string> Meeting::meet(std::string_view name, std::string_view blob) {
  callers_->note_call();
  rounds_.require_open(std::string(name).c_str());
  const Callers::Waiting waiting(*callers_,
                                 {Callers::Wait::For::kExchange, std::string(name), messenger_.exchanges()});
  // Without a bound nobody is held back, so that no server needs to know.
  if (!options_.async || !options_.async->staleness_bound)
    return messenger_.exchange(name, blob, options_.slow_abort);
  rounds_.command("meet");
  try {
    return messenger_.exchange(name, blob, options_.slow_abort);
  } catch (...) {
    try {
      rounds_.command("back");
    } catch (
        const std::exception&) {  // NOLINT(bugprone-empty-catch): the job has failed, as our caller hears
    }
    throw;
  }
}

void Meeting::refuse(std::string_view name, const std::string& text) {
  // In a later generation the others are right: this worker alone fails (wire/PROTOCOL.md, "Wrong calls").
  if (messenger_.world().generation == 1) all_gather(name, refusal(text));
}

void Meeting::check_for_all(std::string_view name, const std::function<void()>& check) {
  try {
    check();
  } catch (const std::logic_error& wrong) {  // std::invalid_argument is one
    refuse(name, wrong.what());
    throw;
  }
}

void Meeting::agree(const std::string& what, const std::string& text, std::string_view name) {
  agree_on_settings(messenger_, what, all_gather(name.empty() ? what : name, text));
}

std::vector<std::string> Meeting::attempt(const char* what, const std::function<std::string()>& work) {
  std::string blob;
  try {
    blob = blob_of(Outcome::kDone, work());
    // The job has failed, or a rank did not come: no exchange would end.
  } catch (const transport::TransportError&) {
    throw;
  } catch (const transport::TimeoutError&) {
    throw;
  } catch (const compress::DecodeError& error) {
    blob = blob_of(Outcome::kBadBytes, error.what());
  } catch (const std::invalid_argument& error) {
    blob = blob_of(Outcome::kMisuse, error.what());
  } catch (const std::exception& error) {
    blob = blob_of(Outcome::kOther, error.what());
  }
  auto blobs = all_gather(what, blob);
  for (std::uint32_t rank = 0; rank < blobs.size(); ++rank) rethrow(rank, blobs[rank]);
  for (std::string& each : blobs) each.erase(0, 1);
  return blobs;
}

}  // namespace gradwire::kvstore
