#!/usr/bin/env bash
# Runs the tests of the extension module with the module built for the address and undefined behaviour sanitizers.
# Needs what tools/python_package.sh has installed. The last line is pytest's.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/setup.sh
use_compiler_cache

python=$PWD/build/venv/bin/python
# Beside the library that the tests in C++ have been run with.
cmake --preset asan-ubsan -DPython_EXECUTABLE="$python" -DATTN_BUILD_PYTHON=ON
cmake --build --preset asan-ubsan --target _core
package=build/asan-ubsan/python/package
mkdir -p $package
cp -r python/attention_cpp build/asan-ubsan/python/_core*.so $package
mv $package/_core*.so $package/attention_cpp

# The interpreter itself is not sanitized: the runtimes are loaded before it, its leaks are not ours, and its own
# allocator would hide what happens to small objects. Freed memory is held back, so resident memory must not be tested.
runtime=""
for library in libasan.so libubsan.so libstdc++.so; do runtime+="$(g++ -print-file-name=$library) "; done
LD_PRELOAD=$runtime ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 PYTHONMALLOC=malloc \
  PYTHONPATH=$PWD/$package exec "$python" -m pytest -q -p no:cacheprovider \
  --deselect python/tests/test_dlpack.py::test_many_cycles_leak_nothing \
  python/tests/test_{dlpack,arrays,attention,fuzz_api,gil}.py
