// The convolution along the tokens: attn/linear_convolution.h for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace bindings {

void add_convolution(nanobind::module_& m);

}  // namespace bindings
