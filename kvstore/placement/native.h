// Placement native: a library sums (MPI_Iallreduce, ncclAllReduce), and nobody hosts a Server. To the Engine
// it looks like a job with one server, in its own process.
//
// The library sums dense payloads (none, fp16, bf16) in its own order. Payloads of lossy codecs are
// gathered, or their codes added as integers (code_sums.h). Every rank makes the answer itself as a Server
// would, so either way the bits are those of the other placements.
//
// Threading: as Messenger, plus one thread that answers.
// Failure: ranks that push in different orders are an error on all of them.
#pragma once

#include <memory>

#include "kvstore/wire/code_sums.h"
#include "transport/collective.h"
#include "transport/messenger.h"

namespace gradwire::kvstore {

/// Control carries exchanges, failures and goodbyes. Its workers must be collective's ranks. code_sums is the
/// same on all ranks.
std::unique_ptr<transport::Messenger> make_native(std::unique_ptr<transport::Messenger> control,
                                                  std::unique_ptr<transport::Collective> collective,
                                                  CodeSums code_sums);

}  // namespace gradwire::kvstore
