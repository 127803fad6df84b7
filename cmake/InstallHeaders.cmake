# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#
# Runs at install time. include/anabranch/*.h go to <prefix>/include/anabranch/, and each header of src/ that they reach
# goes to <prefix>/include/anabranch/engine/. An include "base/status.h" becomes <anabranch/engine/base/status.h>, so the
# package puts no name outside anabranch/ and cannot meet a user's own base/status.h.
cmake_minimum_required(VERSION 3.22)
file(REMOVE_RECURSE ${anabranch_staging_dir})

# Writes from_file to to_file with its includes rewritten; appends the src/ headers that it includes to pending.
function(stage_header from_file to_file)
  file(READ ${from_file} text)
  string(REGEX MATCHALL "#include \"[a-z0-9_/]+\\.h\"" includes "${text}")
  foreach(include IN LISTS includes)
    string(REGEX REPLACE "#include \"(.*)\"" "\\1" header "${include}")
    if(NOT EXISTS ${anabranch_source_dir}/src/${header})
      message(FATAL_ERROR "${from_file}: ${include} is not below src/")
    endif()
    string(REPLACE "${include}" "#include <anabranch/engine/${header}>" text "${text}")
    list(APPEND pending ${header})
  endforeach()
  file(WRITE ${to_file} "${text}")
  set(pending "${pending}" PARENT_SCOPE)
endfunction()

set(pending "")
file(GLOB public_headers ${anabranch_source_dir}/include/anabranch/*.h)
foreach(header IN LISTS public_headers)
  get_filename_component(name ${header} NAME)
  stage_header(${header} ${anabranch_staging_dir}/${name})
endforeach()
set(staged "")
while(pending)
  list(POP_FRONT pending header)
  if(NOT header IN_LIST staged)
    list(APPEND staged ${header})
    stage_header(${anabranch_source_dir}/src/${header} ${anabranch_staging_dir}/engine/${header})
  endif()
endwhile()

file(INSTALL DESTINATION ${CMAKE_INSTALL_PREFIX}/${anabranch_include_dir}/anabranch TYPE DIRECTORY
     FILES ${anabranch_staging_dir}/)
