#!/usr/bin/env bash
# Runs pytest of build/venv, which tools/python_env.sh makes.
#
# usage: pytest.sh "MODULE..." PYTEST_ARGUMENT...      MODULE: Python modules that the tests need
set -euo pipefail
python=$(cd "$(dirname "$0")/.." && pwd)/build/venv/bin/python
for module in pytest $1; do
  if ! "$python" -c "import $module" 2> /dev/null; then
    echo "build/venv does not have $module: tools/python_env.sh installs it"
    exit 1
  fi
done
if [[ $1 == *selenium* ]] && ! { command -v chromium && command -v chromedriver; } > /dev/null; then
  echo "there is no chromium and chromedriver: ./test installs Debian's packages chromium and chromium-driver"
  exit 1
fi
export HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1
exec "$python" -m pytest --quiet --no-header -p no:cacheprovider "${@:2}"
