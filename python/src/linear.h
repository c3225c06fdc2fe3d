// attn/linear_attention.h for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace bindings {

void add_linear(nanobind::module_& m);

}  // namespace bindings
