// executor: who runs the tasks of a call from Python, and how Ctrl-C ends it.
//
// The library's own pool is the default. The other choice is the team of an OpenMP runtime that another library has
// brought into the process: its workers spin for a while after every parallel region, so that a pool of our own would
// share the cores with them whenever the two alternate, as in a model of torch with our attention. On the runtime's own
// threads there is nobody to share with. The runtime is found by its entry points: this module links against none.
#pragma once

#include <cstdint>

namespace bindings {

/// Puts our executor in the library's hands. To be called once, from the thread that Python sends signals to.
void install_executor();

/// Addresses of GOMP_parallel() and omp_get_max_threads(); 0: back to the library's own pool.
void use_openmp_team(uintptr_t gomp_parallel, uintptr_t omp_get_max_threads);
bool uses_openmp_team();

}  // namespace bindings
