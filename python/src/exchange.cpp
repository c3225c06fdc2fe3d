#include "exchange.h"

#include <algorithm>
#include <array>
#include <atomic>

namespace bindings {
namespace {

/// DLPackExchangeAPI of dlpack.h, as far as the one function that is called here.
struct ExchangeApi {
  struct {
    uint32_t major, minor;
  } version;
  ExchangeApi* older;
  void (*allocate)();
  void (*take)();
  void (*give)();
  int (*read)(void* object, nb::dlpack::dltensor* to);  // dltensor_from_py_object_no_sync
};

// The functions are there before the types are that say so: threads may call while torch is being imported.
std::atomic<const ExchangeApi*> exchange{nullptr};
std::array<std::atomic<PyObject*>, 2> exchanged_types{};

}  // namespace

bool use_exchange(const nb::list& types) {
  const nb::object capsule = nb::getattr(types[0], "__dlpack_c_exchange_api__", nb::none());
  if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api") || types.size() > exchanged_types.size()) return false;
  const auto* api = static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (api && api->version.major != 1) api = api->older;
  if (!api || !api->read) return false;
  exchange = api;
  for (size_t n = 0; n < types.size(); ++n) exchanged_types[n] = nb::borrow(types[n]).release().ptr();
  return true;
}

bool has_exchange(nb::handle object) {
  auto* type = reinterpret_cast<PyObject*>(Py_TYPE(object.ptr()));
  return type == exchanged_types[0] || type == exchanged_types[1];
}

bool read_exchanged(nb::handle object, nb::dlpack::dltensor* to) {
  if (exchange.load()->read(object.ptr(), to) == 0) return true;
  PyErr_Clear();
  return false;
}

namespace {

using nb::dlpack::dltensor;
using nb::dlpack::dtype_code;

bool read_on_cpu(nb::handle object, dltensor* to) {
  return has_exchange(object) && read_exchanged(object, to) && to->device.device_type == nb::device::cpu::value;
}

bool has_code(const dltensor& tensor, dtype_code code) { return tensor.dtype.code == static_cast<uint8_t>(code); }

bool may_be_mask(nb::handle mask, const dltensor& q) {
  dltensor tensor;
  if (!read_on_cpu(mask, &tensor)) return false;
  return has_code(tensor, dtype_code::Bool) || tensor.dtype == q.dtype ||
         (has_code(tensor, dtype_code::Float) && tensor.dtype.bits == 32);
}

}  // namespace

bool fit_together(nb::handle q, nb::handle k, nb::handle v, nb::handle mask, bool is_grouped) {
  std::array<dltensor, 3> tensors;
  const std::array<nb::handle, 3> objects{q, k, v};
  for (size_t n = 0; n < tensors.size(); ++n) {
    dltensor& tensor = tensors[n];
    if (!read_on_cpu(objects[n], &tensor) || tensor.ndim != 4) return false;
    if (std::find(tensor.shape, tensor.shape + 4, 0) != tensor.shape + 4) return false;
    if (tensor.dtype != tensors[0].dtype || tensor.shape[0] != tensors[0].shape[0]) return false;
    if (tensor.strides[3] != 1) return false;
  }
  const auto& [q_, k_, v_] = tensors;
  const int64_t heads = q_.shape[1], kv_heads = k_.shape[1];
  return (has_code(q_, dtype_code::Float) || has_code(q_, dtype_code::Bfloat)) && v_.shape[1] == kv_heads &&
         (is_grouped ? heads % kv_heads == 0 : heads == kv_heads) && q_.shape[3] == k_.shape[3] &&
         k_.shape[2] == v_.shape[2] && (mask.is_none() || may_be_mask(mask, q_));
}

}  // namespace bindings
