#include "mpi_module.h"

#include <cstdlib>
#include <optional>
#include <string>

#include "attn/cluster_mpi.h"

namespace {

std::optional<attn::cluster::MpiSession> session;

}  // namespace

attn::cluster::Communicator* attn_mpi_start(double wait_limit, const char** error) {
  static std::string reason;
  try {
    int argc = 0;
    char** argv = nullptr;
    return &session.emplace(argc, argv, wait_limit).world();
  } catch (const std::exception& failure) {
    reason = failure.what();
    *error = reason.c_str();
    return nullptr;
  }
}

void attn_mpi_end() { session.reset(); }

void attn_mpi_abort(int status) {
  MPI_Abort(MPI_COMM_WORLD, status);
  std::_Exit(status);
}
