# Installs the build in BUILD, then configures, builds and runs the project beside this file against what was installed.
function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${WORK})
run(${CMAKE_COMMAND} --install ${BUILD} --config ${CONFIG} --prefix ${WORK}/prefix)
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${WORK}/build -G ${GENERATOR}
  -D CMAKE_BUILD_TYPE=${CONFIG} -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_PREFIX_PATH=${WORK}/prefix)
run(${CMAKE_COMMAND} --build ${WORK}/build)
run(${WORK}/build/consumer)

# A program that links the library needs the C++ runtime and nothing else.
execute_process(COMMAND ${READELF} --dynamic ${WORK}/build/consumer OUTPUT_VARIABLE dynamic COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "\\(NEEDED\\)[^\n]*" libraries "${dynamic}")
foreach(library IN LISTS libraries)
  if(NOT library MATCHES "lib(attn|stdc\\+\\+|m|gcc_s|c|pthread|c\\+\\+|c\\+\\+abi)\\.so|ld-linux")
    message(FATAL_ERROR "the consumer needs ${library}")
  endif()
endforeach()
