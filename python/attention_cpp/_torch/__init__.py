"""The integration of torch: attention_cpp.torch. After its import, the library runs on torch's threads."""

from .threads import share_threads

share_threads()
