# What attn::models and attn::view are linked with, for the build and, read by attnConfig.cmake, for programs that link
# the installed static libraries: sets attn_models_libraries and attn_view_libraries, which are targets, and
# attn_models_missing and attn_view_missing, the names of what is not installed.
foreach(component models view)
  set(attn_${component}_libraries)
  set(attn_${component}_missing)
endforeach()

macro(attn_find_package component name target)
  find_package(${name} QUIET)
  if(NOT TARGET ${target})
    list(APPEND attn_${component}_missing ${name})
  endif()
  list(APPEND attn_${component}_libraries ${target})
endmacro()

macro(attn_find_library component name)
  find_library(ATTN_${name}_LIBRARY ${name})
  if(NOT ATTN_${name}_LIBRARY)
    list(APPEND attn_${component}_missing ${name})
  elseif(NOT TARGET attn::${name})
    add_library(attn::${name} UNKNOWN IMPORTED)
    set_target_properties(attn::${name} PROPERTIES IMPORTED_LOCATION ${ATTN_${name}_LIBRARY})
  endif()
  list(APPEND attn_${component}_libraries attn::${name})
endmacro()

attn_find_library(models utf8proc)
attn_find_library(models pcre2-8)
attn_find_package(models ZLIB ZLIB::ZLIB)
attn_find_library(view utf8proc)
attn_find_package(view ZLIB ZLIB::ZLIB)
attn_find_package(view PNG PNG::PNG)
