# Build rules shared by every folder: tandem_library, tandem_test, and the flags that all of them use.

set(CMAKE_CXX_STANDARD 23)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}")

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CCACHE_PROGRAM}")
endif()

option(TANDEM_SANITIZE "Build with AddressSanitizer and UndefinedBehaviorSanitizer" OFF)
option(TANDEM_SANITIZE_THREADS "Build with ThreadSanitizer" OFF)
option(TANDEM_FUZZ "Build the fuzz targets, with Clang: fuzz/README.md" OFF)

# -ffp-contract=off: a fused multiply-add changes the last bit; kernels ask for FMA by name, so that the same
# source gives the same bits wherever it is inlined.
add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -Werror -ffp-contract=off -fno-math-errno)
# GCC 12 reports -Wrestrict wrongly for "text" + std::string (its bug 105651).
add_compile_options(-Wno-restrict)
if(TANDEM_SANITIZE)
  # GCC 12 takes std::optional members for uninitialised once the checks are woven in; the plain build keeps the warning.
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
    -Wno-maybe-uninitialized)
  add_link_options(-fsanitize=address,undefined)
endif()

if(TANDEM_SANITIZE_THREADS)
  # -Wno-tsan: fences are not modelled, so a race that one prevents is reported (none is today).
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer -Wno-maybe-uninitialized -Wno-tsan)
  add_link_options(-fsanitize=thread)
endif()

if(TANDEM_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL Clang OR CMAKE_CXX_COMPILER_VERSION VERSION_LESS 19)
    message(FATAL_ERROR "TANDEM_FUZZ needs Clang 19 or newer, this is ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}: "
      "apt-get install clang-19 libclang-rt-19-dev, and configure with -DCMAKE_CXX_COMPILER=clang++-19")
  endif()
  # Warnings are GCC's business; its flags are not all known here.
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
    -Wno-error -Wno-unknown-warning-option)
  add_link_options(-fsanitize=address,undefined)
endif()

find_package(Threads REQUIRED)
find_package(GTest REQUIRED)

# tandem_library(<name> SOURCES a.cc b.cc DEPS tandem_base ... LIBS fmt::fmt ...)
# DEPS are Tandem's own libraries and become public; LIBS are third-party and stay private.
# SHAREABLE: libtandem_client.so is made of it too. Hidden visibility keeps calls inside a file direct, so that the code is
# otherwise what it would be in an executable; kernels are not shareable and keep their flags.
function(tandem_library name)
  cmake_parse_arguments(ARG "SHAREABLE" "" "SOURCES;DEPS;LIBS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC "${CMAKE_SOURCE_DIR}/src")
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_LIBS} Threads::Threads)
  if(ARG_SHAREABLE)
    set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden
      VISIBILITY_INLINES_HIDDEN ON)
  endif()
endfunction()

# tandem_test(<name> SOURCES a_test.cc DEPS ... LIBS ...): one GoogleTest binary, one ctest entry.
# Tests run in the source root, so that paths such as models/arith work.
function(tandem_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE "${CMAKE_SOURCE_DIR}/src")
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} ${ARG_LIBS} GTest::gtest GTest::gtest_main Threads::Threads)
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}")
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)  # a hang is a failure, not a wait; the slowest test takes well under a minute
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT})
endfunction()
