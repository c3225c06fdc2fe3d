#!/usr/bin/env bash
# A compiler launcher: ccache, for builds with precompiled headers.
#
# A precompiled header differs by some bytes each time that it is compiled, and with it, for ccache, every file that
# includes it. With CCACHE_PCH_EXTSUM ccache reads NAME.gch.sum instead: here a sum of the text that was compiled.
if [[ " $* " != *" -x c++-header "* ]]; then exec ccache "$@"; fi
"$@" || exit
preprocess=() output=""
while (($#)); do
  case $1 in
    -o) output=$2; shift ;;
    -MT | -MF) shift ;;
    -MD | -c) ;;
    *) preprocess+=("$1") ;;
  esac
  shift
done
"${preprocess[@]}" -E -P -o - | sha256sum > "$output.sum"
