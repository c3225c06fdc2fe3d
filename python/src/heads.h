// What heads do: attn/heads.h for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace bindings {

void add_heads(nanobind::module_& m);

}  // namespace bindings
