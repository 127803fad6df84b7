#!/bin/sh
# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#
# lint.sh BIN: format, lint and structure checks with the tools of the environment whose programs lie in BIN. Runs all;
# exit 1 when one failed.
set -u
bin=$1
status=0
cpp_files=$(git ls-files 'src/*.cc' 'src/*.h' 'src/*.inc' 'include/*.h' 'tests/*.cc' 'bench/*.cc')
# shellcheck disable=SC2086 # one argument per file
"$bin/clang-format" --dry-run -Werror $cpp_files && echo "clang-format: ok" || status=1
"$bin/ruff" check --quiet --output-format concise . && echo "ruff check: ok" || status=1
"$bin/ruff" format --quiet --diff . && echo "ruff format: ok" || status=1
for check in layers sizes commits text; do
  "$bin/python" "scripts/check_$check.py" || status=1
done
exit $status
