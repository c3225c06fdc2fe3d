#!/usr/bin/env bash
# Runs the tests of the extension module with the module built for the address and undefined behaviour sanitizers.
# Needs what tools/python_package.sh has installed. The last line is pytest's.
set -euo pipefail
cd "$(dirname "$0")/.."

python=$PWD/build/venv/bin/python
cmake -S . -B build/python-asan -G Ninja -DPython_EXECUTABLE="$python" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1" -DATTN_KERNEL_OPTIMIZATION=-O1 -DATTN_SANITIZE=address,undefined \
  -DATTN_BUILD_PYTHON=ON -DATTN_BUILD_MODELS=OFF -DATTN_BUILD_TESTS=OFF -DATTN_BUILD_BENCH=OFF -DATTN_BUILD_EXAMPLES=OFF
cmake --build build/python-asan --target _core
package=build/python-asan/package
mkdir -p $package
cp -r python/attention_cpp build/python-asan/python/_core*.so $package
mv $package/_core*.so $package/attention_cpp

# The interpreter itself is not sanitized: the runtimes are loaded before it, its leaks are not ours, and its own
# allocator would hide what happens to small objects. Freed memory is held back, so resident memory must not be tested.
runtime=""
for library in libasan.so libubsan.so libstdc++.so; do runtime+="$(g++ -print-file-name=$library) "; done
LD_PRELOAD=$runtime ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 PYTHONMALLOC=malloc \
  PYTHONPATH=$PWD/$package exec "$python" -m pytest -q -p no:cacheprovider \
  --deselect python/tests/test_dlpack.py::test_many_cycles_leak_nothing \
  python/tests/test_{dlpack,arrays,attention,fuzz_api,gil}.py
