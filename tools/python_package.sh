#!/usr/bin/env bash
# Builds the Python package's wheel into build/wheel and installs it into build/venv, for its tests.
# With --test it then runs them; the last line is pytest's.
# With --newest before it, all of that with the newest interpreter, torch, transformers, JAX and NumPy instead of the
# oldest that are supported, in build/venv-newest.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/python_env.sh

newest=""
if [[ ${1:-} == --newest ]]; then
  newest=-newest
  shift
fi
venv=build/venv$newest wheel=build/wheel$newest
python=$PWD/$venv/bin/python
if [[ -n $newest ]]; then
  python_newest "$venv"
else
  python3 -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(sysconfig.get_paths()["include"] + "/Python.h"))' ||
    install_packages python3-dev
  python_install build/venv scikit-build-core==1.1.2 nanobind==3.1.0 \
    hypothesis==6.170.15 pytest-xdist==3.8.0 jax==0.10.2 scikit-learn==1.9.1 onnx==1.23.2 onnxscript==0.7.2 \
    mypy==2.4.1 auditwheel==6.8.2 matplotlib==3.11.2
  # Libraries over torch and transformers: test_libraries.py says which of them there are.
  # timm imports torchvision, whose build of PyPI is linked with CUDA, and which transformers would import as well:
  # apart.
  python_install build/venv requests psutil importlib_metadata &&
    python_install build/venv --no-deps sentence-transformers==6.2.0 peft==0.21.2 accelerate==1.15.0 diffusers==0.42.1 \
      lightning==2.6.6 lightning-utilities==0.15.3 torchmetrics==1.9.0 &&
    python_install build/venv --no-deps --target build/timm timm==1.0.31 torchvision==0.28.0 ||
    echo "   test_libraries.py skips what is not there"
fi
rm -f "$wheel"/*.whl
# Kept between calls, so that the second one builds what has changed. Compiled by the same command as in the release
# build, the library comes out of the compiler cache.
use_compiler_cache
export CXX=${CXX:-c++}
PATH="$PWD/$venv/bin:$PATH" "$python" -m pip wheel . --quiet --no-deps --no-build-isolation \
  --wheel-dir "$wheel" --config-settings=build-dir="$PWD/build/python$newest" \
  --config-settings=cmake.define.ATTN_WARNINGS_AS_ERRORS=ON
"$python" -m pip install --quiet --no-deps --force-reinstall "$wheel"/*.whl

if [[ ${1:-} == --test ]]; then
  export ATTN_WHEEL
  ATTN_WHEEL=$(echo "$PWD/$wheel"/*.whl)
  # The page of what a model looked at is made by the program, which the release build has.
  export ATTN_PROGRAM=${ATTN_PROGRAM:-$PWD/build/release/cli/attn}
  export ATTN_TIMM=$PWD/build/timm
  # Away from the sources: what is tested is the installed package, under the interpreter's own checks.
  cd "$wheel"
  export OMP_WAIT_POLICY=passive TRANSFORMERS_VERBOSITY=error HF_HUB_OFFLINE=1 PYTHONDEVMODE=1 PYTHONWARNINGS=ignore
  leave_out=()  # a CUDA device, even one that is not there, asks the libraries that this torch has not
  [[ -z $newest ]] || leave_out=(--deselect python/tests/test_torch_hosts.py::test_other_devices_are_torchs)
  exec "$python" -m pytest -q -n "$(nproc)" -p no:cacheprovider -c ../../pyproject.toml "${leave_out[@]}" \
    ../../python/tests
fi
