#!/usr/bin/env bash
# Opens pages of attention in a browser and compares what they show with the library's weights.
#
# usage: run.sh FILE FOLDER [TEST [ATTN]]
#   FILE: test_page, test_pixels or test_views; FOLDER: what the program pages has written
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=$here/../../build/venv/bin/python
if ! "$python" -c 'import selenium' 2> /dev/null; then
  echo "build/venv does not hold Selenium: tools/python_env.sh makes it"
  exit 1
fi
if ! command -v chromium > /dev/null || ! command -v chromedriver > /dev/null; then
  echo "there is no chromium and chromedriver: ./test installs Debian's packages chromium and chromium-driver"
  exit 1
fi
PYTHONDONTWRITEBYTECODE=1 exec "$python" "$here/$1.py" "${@:2}"
