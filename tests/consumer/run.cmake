# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
# Installs ENGINE_BUILD below WORK, builds the program beside this file against that package, and runs it.
file(REMOVE_RECURSE ${WORK})

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(result)
    message(FATAL_ERROR "${ARGN}\n${output}")
  endif()
endfunction()

run(${CMAKE_COMMAND} --install ${ENGINE_BUILD} --prefix ${WORK}/prefix)
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${WORK}/build -DCMAKE_CXX_COMPILER=${CXX}
    -DCMAKE_PREFIX_PATH=${WORK}/prefix)
run(${CMAKE_COMMAND} --build ${WORK}/build)
run(${WORK}/build/consumer)

# Nothing is installed beside anabranch/, and no installed header reaches for a quoted one.
file(GLOB beside RELATIVE ${WORK}/prefix/include ${WORK}/prefix/include/*)
if(NOT beside STREQUAL "anabranch")
  message(FATAL_ERROR "installed in include/: ${beside}")
endif()
file(GLOB_RECURSE headers ${WORK}/prefix/include/*)
foreach(header IN LISTS headers)
  file(STRINGS ${header} quoted REGEX "^#include \"")
  if(quoted)
    message(FATAL_ERROR "${header}: ${quoted}")
  endif()
endforeach()
