#!/usr/bin/env bash
# Fails if clang-format would change a source file.
#
# usage: check_format.sh [ROOT]      check_format.sh --self-test
set -euo pipefail
home=$(cd "$(dirname "$0")/.." && pwd)
formatter=$(command -v clang-format-14) || { echo "clang-format-14 is not installed"; exit 1; }

check() {
  local folder folders=()
  for folder in include src cli python examples tests bench; do
    [[ -d $1/$folder ]] && folders+=("$1/$folder")
  done
  local said
  said=$(find "${folders[@]}" \( -name '*.h' -o -name '*.cpp' -o -name '*.c' \) -print0 | sort -z |
    xargs -0 "$formatter" "--style=file:$home/.clang-format" --dry-run -Werror 2>&1) && return
  sed -n "s/^\(\/[^:]*\):[0-9]*:[0-9]*: error: .*/\1: $(basename "$formatter") -i would change it/p" <<< "$said" | uniq
  return 1
}

self_test() {
  local folder status=0
  folder=$(mktemp -d)
  mkdir "$folder/src"
  echo 'int twice(int x) { return 2 * x; }' > "$folder/src/a.cpp"
  check "$folder" || { echo "refused without cause"; status=1; }
  echo 'int twice( int x ) {return 2*x;}' > "$folder/src/a.cpp"
  if check "$folder" > /dev/null; then echo "not refused: bad spacing"; status=1; fi
  rm -r "$folder"
  return $status
}

if [[ ${1:-} == --self-test ]]; then self_test; else check "${1:-$home}"; fi
echo "check_format: ok"
