"""attn/c.h from Python without an extension module. usage: 04_ctypes.py libattn.so"""

import ctypes
import sys
from ctypes import POINTER, Structure, byref, c_double, c_float, c_int32, c_int64, c_size_t, c_void_p

Sizes = c_int64 * 4


class Tensor(Structure):
    _fields_ = [("data", c_void_p), ("dtype", c_int32), ("rank", c_int32), ("size", Sizes), ("stride", Sizes)]


class Options(Structure):  # its first fields: the library takes the rest as zero
    _fields_ = [("struct_size", c_size_t), ("scale", POINTER(c_double)), ("softcap", c_double), ("causal", c_int32),
                ("alignment", c_int32)]


if len(sys.argv) != 2:
    sys.exit(__doc__)
attn = ctypes.CDLL(sys.argv[1])
attn.attn_dense.restype = Tensor
attn.attn_dense.argtypes = [c_void_p, c_int32, c_int32, POINTER(c_int64)]
attn.attn_last_error.restype = ctypes.c_char_p

rows = c_float * 6  # three tokens of width two
q, k, v, out = rows(1, 0, 0, 1, 1, 1), rows(1, 0, 0, 1, 1, 1), rows(1, 10, 2, 20, 3, 30), rows()
tensors = [attn.attn_dense(ctypes.addressof(array), 0, 4, Sizes(1, 1, 3, 2)) for array in (q, k, v, out)]
options = Options(struct_size=ctypes.sizeof(Options), causal=1)
if attn.attn_attention(*map(byref, tensors), None, byref(options)) != 0:
    sys.exit(attn.attn_last_error().decode())
print(" ".join(f"{x:.4f}" for x in out))

options.causal = 5
assert attn.attn_attention(*map(byref, tensors), None, byref(options)) == 1
print(attn.attn_last_error().decode())
