#!/bin/sh
# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#
# test.sh BUILD PYTHON [pytest arguments]: builds and runs the C++ tests in BUILD, then the Python tests with PYTHON.
# Runs both in any case; exit 1 when either failed.
set -u
build=$1
python=$2
shift 2
jobs=${CMAKE_BUILD_PARALLEL_LEVEL:-2}

configure() {
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DANABRANCH_BUILD_TESTS=ON "$@" >"$build/configure.log" 2>&1
}

cpp_tests() {
  mkdir -p "$build"
  set -- -DANABRANCH_WERROR="${ANABRANCH_WERROR:-OFF}"
  if [ ! -f "$build/build.ninja" ] && ! configure "$@"; then
    rm -f "$build/CMakeCache.txt"
    googletest=$(scripts/get_googletest.sh "$build/packages") || return 1
    configure "$@" -DANABRANCH_GOOGLETEST_DIR="$googletest" || { tail -n 20 "$build/configure.log" >&2; return 1; }
  fi
  echo "anabranch: compiling the C++ tests"
  cmake --build "$build" -j "$jobs" >"$build/build.log" 2>&1 || { tail -n 40 "$build/build.log" >&2; return 1; }
  ctest --test-dir "$build" --output-on-failure
}

status=0
cpp_tests || status=1
"$python" -m pytest "$@" || status=1
exit $status
