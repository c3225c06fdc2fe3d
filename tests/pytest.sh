#!/usr/bin/env bash
# Runs pytest of build/venv, which tools/python_env.sh makes.
#
# usage: pytest.sh "MODULE..." PYTEST_ARGUMENT...      MODULE: Python modules that the tests need
set -euo pipefail
venv=$(cd "$(dirname "$0")/.." && pwd)/build/venv
for module in pytest $1; do
  if ! compgen -G "$venv/lib/python3*/site-packages/$module" > /dev/null; then
    echo "build/venv does not have $module: tools/python_env.sh installs it"
    exit 1
  fi
done
if [[ $1 == *selenium* ]] && ! { command -v chromium && command -v chromedriver; } > /dev/null; then
  echo "there is no chromium and chromedriver: ./test installs Debian's packages chromium and chromium-driver"
  exit 1
fi
export PYTHONDONTWRITEBYTECODE=1 PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
exec "$venv/bin/python" -m pytest --quiet --no-header -p no:cacheprovider "${@:2}"
