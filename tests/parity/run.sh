#!/usr/bin/env bash
# Compares the layers and models of the program `parity` with PyTorch and transformers.
#
# usage: run.sh PROGRAM [PYTEST_ARGUMENT...]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=$here/../../build/venv/bin/python
export ATTN_PARITY=$1
shift
if ! "$python" -c 'import pytest, safetensors, sentence_transformers, torch, transformers' 2> /dev/null; then
  echo "build/venv does not hold PyTorch, transformers and sentence-transformers: tools/python_env.sh makes it"
  exit 1
fi
export HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1
exec "$python" -m pytest --quiet --no-header -p no:cacheprovider "$here" "$@"
