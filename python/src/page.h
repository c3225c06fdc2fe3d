// The page of attn/view_page.h for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace bindings {

void add_page(nanobind::module_& m);

}  // namespace bindings
