// Attention over ranks whose messages Python sends.
#pragma once

#include <nanobind/nanobind.h>

namespace bindings {

void add_cluster(nanobind::module_& m);

}  // namespace bindings
