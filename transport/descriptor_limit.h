// How many files and connections this process may hold open.
#pragma once

namespace gradwire::transport {

/// Raises the process's soft limit to the hard one, for whoever listens: strangers that say nothing cost a
/// descriptor each. Any thread.
void allow_many_connections() noexcept;

}  // namespace gradwire::transport
