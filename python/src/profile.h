// attn/profile.h for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace bindings {

void add_profile(nanobind::module_& m);

}  // namespace bindings
