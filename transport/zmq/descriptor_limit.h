// How many files and connections this process may hold open.
//
// Threading: any thread.
#pragma once

#include <cstddef>
#include <string>

namespace gradwire::transport {

/// Raises the process's soft limit to the hard one (at most 2^20): peers, and strangers that say nothing,
/// cost a descriptor each.
void allow_many_connections() noexcept;

/// Requires that the process may open so many descriptors more, after allow_many_connections(). Throws
/// TransportError that begins with `what`, and says how many there are and what to do. libzmq ends the
/// process where it gets none for its own threads.
void require_descriptors(std::size_t count, const std::string& what);

/// "; this process has 1020 of 1024 file descriptors in use ..." where hardly any are left, to end an error
/// with; else empty.
std::string descriptor_shortage();

}  // namespace gradwire::transport
