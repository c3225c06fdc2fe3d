// What attn_mpi.so exports, and attn finds with dlsym(): MPI from its start to its end.
#pragma once

#include "attn/cluster.h"

extern "C" {

/// Starts MPI; null, with the reason in `*error`, if that fails. Valid until attn_mpi_end(). `wait_limit` is that of
/// cluster::mpi_ranks().
[[gnu::visibility("default")]] attn::cluster::Communicator* attn_mpi_start(double wait_limit, const char** error);
[[gnu::visibility("default")]] void attn_mpi_end();
/// Ends the processes of all ranks.
[[gnu::visibility("default")]] [[noreturn]] void attn_mpi_abort(int status);

}  // extern "C"
