# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#
# The umbrella target, and the installed package: find_package(anabranch) gives anabranch::anabranch. Reads
# anabranch_folders and exports every static library that those folders define.
include(CMakePackageConfigHelpers)

add_library(anabranch INTERFACE)
add_library(anabranch::anabranch ALIAS anabranch)
target_compile_features(anabranch INTERFACE cxx_std_20)
target_include_directories(
  anabranch INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>
                      $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(anabranch INTERFACE Threads::Threads)

set(anabranch_libraries "")
foreach(folder IN LISTS anabranch_folders)
  get_property(targets DIRECTORY ${PROJECT_SOURCE_DIR}/${folder} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    if(type STREQUAL "STATIC_LIBRARY")
      list(APPEND anabranch_libraries ${target})
      target_link_libraries(anabranch INTERFACE ${target})
    endif()
  endforeach()
endforeach()

set(anabranch_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/anabranch)
install(TARGETS anabranch ${anabranch_libraries} EXPORT anabranch_targets COMPONENT development
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT anabranch_targets NAMESPACE anabranch:: FILE anabranchTargets.cmake COMPONENT development
        DESTINATION ${anabranch_package_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/anabranchConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/anabranchConfig.cmake INSTALL_DESTINATION ${anabranch_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/anabranchConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/anabranchConfig.cmake ${PROJECT_BINARY_DIR}/anabranchConfigVersion.cmake
        COMPONENT development DESTINATION ${anabranch_package_dir})

# Headers: see InstallHeaders.cmake. Variables of the build are handed to it as code that runs before it.
install(CODE "set(anabranch_source_dir \"${PROJECT_SOURCE_DIR}\")
set(anabranch_staging_dir \"${PROJECT_BINARY_DIR}/headers\")
set(anabranch_include_dir \"${CMAKE_INSTALL_INCLUDEDIR}\")" COMPONENT development)
install(SCRIPT ${PROJECT_SOURCE_DIR}/cmake/InstallHeaders.cmake COMPONENT development)
