#!/bin/sh
# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#
# get_googletest.sh DIR: unpacks GoogleTest's sources from Debian's package `googletest` below DIR, without root, and
# prints the folder to pass as -DANABRANCH_GOOGLETEST_DIR=. One line on stderr and exit 1 when it cannot be had.
set -u
dir=${1:?usage: get_googletest.sh DIR}
sources=$dir/usr/src/googletest
if [ ! -f "$sources/CMakeLists.txt" ]; then
  mkdir -p "$dir/lists/partial" && dir=$(cd "$dir" && pwd) && sources=$dir/usr/src/googletest
  fetch() { (cd "$dir" && rm -f ./*.deb && apt-get -qq "$@" download googletest) >/dev/null 2>&1; }
  # The machine's package lists may be missing; a private copy of them needs no root.
  fetch || {
    apt-get -qq -o Dir::State::Lists="$dir/lists" -o Debug::NoLocking=1 update >/dev/null 2>&1
    fetch -o Dir::State::Lists="$dir/lists"
  }
  if ! dpkg-deb -x "$dir"/googletest_*.deb "$dir" 2>/dev/null; then
    echo "anabranch: GoogleTest not found and not to be had from apt: install libgtest-dev" >&2
    exit 1
  fi
fi
echo "$sources"
