# What attn::models is linked with, for the build and, read by attnConfig.cmake, for whoever links the installed static
# library: sets attn_libraries, which are targets, and attn_missing, what is not there.
set(attn_libraries)
set(attn_missing)

macro(attn_find_package name target)
  find_package(${name} QUIET)
  if(NOT TARGET ${target})
    list(APPEND attn_missing ${name})
  endif()
  list(APPEND attn_libraries ${target})
endmacro()

macro(attn_find_library name)
  find_library(ATTN_${name}_LIBRARY ${name})
  if(NOT ATTN_${name}_LIBRARY)
    list(APPEND attn_missing ${name})
  elseif(NOT TARGET attn::${name})
    add_library(attn::${name} UNKNOWN IMPORTED)
    set_target_properties(attn::${name} PROPERTIES IMPORTED_LOCATION ${ATTN_${name}_LIBRARY})
  endif()
  list(APPEND attn_libraries attn::${name})
endmacro()

attn_find_library(dnnl)  # oneDNN, whose own package in Debian would ask for OpenCL
attn_find_library(utf8proc)
attn_find_library(pcre2-8)
attn_find_package(OpenMP OpenMP::OpenMP_CXX)
attn_find_package(ZLIB ZLIB::ZLIB)
attn_find_package(PNG PNG::PNG)
