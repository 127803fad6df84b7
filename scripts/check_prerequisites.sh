#!/bin/sh
# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#
# check_prerequisites.sh [PYTHON]: one line on stderr and exit 1 when there is no C++20 compiler, or PYTHON is too old.
for compiler in "${CXX:-c++}" g++ clang++; do
  if printf '#include <span>\n#include <concepts>\nstd::span<int> s;\n' |
    $compiler -std=c++20 -fsyntax-only -x c++ - 2>/dev/null; then
    found=$compiler
    break
  fi
  [ -n "$CXX" ] && break
done
if [ -z "$found" ]; then
  echo "anabranch: no C++20 compiler${CXX:+ ($CXX)}: install g++ 12 or later (apt-get install g++), or set CXX=" >&2
  exit 1
fi
if [ -n "$1" ] && ! "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  echo "anabranch: needs Python 3.11 or later, but $1 is $("$1" --version 2>&1 | head -n 1): set PYTHON=" >&2
  exit 1
fi
