# Sourced by run and test. install_packages installs what is missing of the Debian packages it is given.
install_packages() {
  command -v apt-get > /dev/null || return 0  # another system: its owner provides the tools
  local missing=() package
  for package in "$@"; do
    dpkg-query --show --showformat '${Status}\n' "$package" 2> /dev/null | grep -q '^install ok installed$' ||
      missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  echo "== installing ${missing[*]}"
  local as_root=()
  ((EUID == 0)) || as_root=(sudo)
  local log status=0
  log=$(mktemp)
  {
    "${as_root[@]}" apt-get update -qq
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}"
  } > "$log" 2>&1 || status=$?
  ((status == 0)) || cat "$log"
  rm -f "$log"
  return $status
}

run_packages=(cmake ninja-build g++ ccache nlohmann-json3-dev libcli11-dev libfmt-dev
  libpng-dev zlib1g-dev libutf8proc-dev libpcre2-dev libcpp-httplib-dev)
build_packages=("${run_packages[@]}" pkg-config libdnnl-dev libgomp1 libgtest-dev python3 binutils clang-format-14
  libopenmpi-dev openmpi-bin libmpich-dev mpich)
# The page of attention is tested in a browser, completion in zsh, the manual with its own reader, ranks over TCP.
test_packages=(chromium chromium-driver zsh mandoc iproute2)

# build PRESET [TARGET ...]: configures and builds into build/PRESET.
build() {
  use_compiler_cache
  cmake --preset "$1" && cmake --build --preset "$1" ${2:+--target "${@:2}"}
}

# ccache gives a build the objects that another clone, or for the Python package the release build, has compiled. It
# reads paths within a clone as relative ones, and of a precompiled header the sum that tools/ccache_pch.sh writes,
# without its time stamp.
use_compiler_cache() {
  command -v ccache > /dev/null || return 0
  export CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER-$PWD/tools/ccache_pch.sh} CCACHE_PCH_EXTSUM=true
  export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD} CCACHE_NOHASHDIR=1
  export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-pch_defines,time_macros}
}

