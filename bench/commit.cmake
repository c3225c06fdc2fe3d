# Writes HEADER with the commit of SOURCE; leaves the file alone if it would not change.
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --tags
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit)
  set(commit "unknown")
endif()
set(text "constexpr const char* kCommit = \"${commit}\";\n")
if(EXISTS ${HEADER})
  file(READ ${HEADER} present)
endif()
if(NOT "${text}" STREQUAL "${present}")
  file(WRITE ${HEADER} "${text}")
endif()
