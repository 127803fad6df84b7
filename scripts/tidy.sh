#!/bin/sh
# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#
# tidy.sh BUILD: clang-tidy over the engine's sources (tests and benchmarks left out) with the compile commands of BUILD,
# which must be a clang build. Warnings are errors; see .clang-tidy for the checks. Sources that BUILD leaves out, for it
# found no MPI or SimGrid, are left out here too.
set -u
build=$1
tidy=$(command -v clang-tidy-14 || command -v clang-tidy) || {
  echo "anabranch: clang-tidy not found: install clang-tidy" >&2
  exit 1
}
git ls-files 'src/*.cc' | grep -v -e '_test\.cc$' -e '_bench\.cc$' |
  while read -r file; do
    if grep -q "/$file\"" "$build/compile_commands.json"; then echo "$file"; fi
  done |
  xargs -P "${CMAKE_BUILD_PARALLEL_LEVEL:-2}" -n 1 "$tidy" --quiet -p "$build" 2>&1 |
  grep -v -e ' warnings\? \(and [0-9]* errors\? \)\?generated' -e '^Suppressed ' -e '^Use -header-filter' >"$build/tidy.log"
cat "$build/tidy.log"
! grep -q -e 'error:' -e 'warning:' "$build/tidy.log" && echo "clang-tidy: ok"
