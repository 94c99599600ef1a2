# Run at build time: writes OUT with the commit of SOURCE, and touches it only when that changes.
# GIT_OPTIONAL_LOCKS=0: a build must not get in the way of a git command that runs beside it.
set(commit "unknown")
find_program(GIT git)
if(GIT)
  set(ENV{GIT_OPTIONAL_LOCKS} 0)
  execute_process(COMMAND ${GIT} -C ${SOURCE} describe --always --dirty=+changes --abbrev=12 --exclude=*
    OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
  if(status EQUAL 0 AND NOT described STREQUAL "")
    set(commit "${described}")
  endif()
endif()
file(CONFIGURE OUTPUT "${OUT}" CONTENT "#define TANDEM_COMMIT \"${commit}\"\n")
