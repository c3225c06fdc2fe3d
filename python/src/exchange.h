// exchange: tensors of a framework that has DLPack's C functions, read without a Python object between.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

namespace bindings {

namespace nb = nanobind;

/// Reads objects of exactly these types, which the caller keeps alive, through the table of functions in the
/// `__dlpack_c_exchange_api__` of the first (DLPack 1.2). False, and nothing is done, where it has none that we know.
bool use_exchange(const nb::list& types);

bool has_exchange(nb::handle object);

/// Reads the tensor of an object that has_exchange(); its sizes and strides are borrowed. False where DLPack cannot
/// describe it.
bool read_exchanged(nb::handle object, nb::dlpack::dltensor* to);

/// Whether these are such tensors, on the CPU, of one floating type and not empty, that fit together as q, k and v of
/// attention [B, H, L, D] without broadcasting; k and v may have fewer heads if is_grouped. A mask (or None) is
/// boolean, float32 or of their type, and is not compared with them.
bool fit_together(nb::handle q, nb::handle k, nb::handle v, nb::handle mask, bool is_grouped);

}  // namespace bindings
