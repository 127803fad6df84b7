# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#
# Sets ANABRANCH_XLA_INCLUDE_DIR (the folder that holds xla/ffi/api/ffi.h). A module
# built on FFI API 0.3 (jax 0.10.2) loads in every later jax; one built on newer headers does not load in an older jax.
# Asked anew at each configuration: a wheel's build and one in place share a build folder, but not their jax.
if(NOT ANABRANCH_XLA_INCLUDE_DIR)
  find_package(Python 3.11 REQUIRED COMPONENTS Interpreter)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "import jax.ffi; print(jax.ffi.include_dir())"
    OUTPUT_VARIABLE ANABRANCH_XLA_INCLUDE_DIR
    OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET)
endif()
if(NOT EXISTS "${ANABRANCH_XLA_INCLUDE_DIR}/xla/ffi/api/ffi.h")
  message(FATAL_ERROR "xla/ffi/api/ffi.h not found: install jax for ${Python_EXECUTABLE}, or pass "
                      "-DANABRANCH_XLA_INCLUDE_DIR=, or -DANABRANCH_BUILD_FFI=OFF")
endif()
