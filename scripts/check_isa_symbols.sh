#!/bin/sh
# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#
# check_isa_symbols.sh LIBRARY...: instructions of an instruction set occur only in symbols named after it. AVX-512
# (zmm, mask and upper vector registers) in *avx512*, ymm in *avx*. Prints each offender; exit 1 when there is one.
set -u
offenders=$(
  for library in "$@"; do
    objdump -d --no-show-raw-insn "$library" | awk -v library="${library##*/}" '
      /^[0-9a-f]+ </ {symbol = $2}
      /%zmm|%k[0-7]|%[xy]mm(1[6-9]|2[0-9]|3[01])/ && symbol !~ /avx512/ {print library, "avx512", symbol}
      /%ymm/ && symbol !~ /avx/ {print library, "avx", symbol}'
  done | sort -u
)
if [ -n "$offenders" ]; then
  echo "$offenders"
  exit 1
fi
echo "isa symbols: $# libraries, 0 faults"
