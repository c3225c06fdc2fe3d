// attn/attention_layouts.h for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace bindings {

void add_layouts(nanobind::module_& m);

}  // namespace bindings
