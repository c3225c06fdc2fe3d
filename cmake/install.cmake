# cmake --install: the libraries, headers, the program, and how CMake and pkg-config find them.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/attn)

# attn_install(target export): each library has an export of its own, so that attn::attn can be used without packages
# that only the others need.
function(attn_install target export)
  install(TARGETS ${target} EXPORT ${export})
  install(EXPORT ${export} NAMESPACE attn:: FILE ${export}Targets.cmake DESTINATION ${package_dir})
endfunction()

# Paths in a .pc file are relative to it: what is installed may be moved.
file(RELATIVE_PATH pc_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
file(RELATIVE_PATH pc_libdir ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_LIBDIR})
file(RELATIVE_PATH pc_includedir ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_INCLUDEDIR})

# attn_pkg_config(name library description requires, and for static libraries: packages, flags)
function(attn_pkg_config pc_name pc_library pc_description pc_requires pc_requires_private pc_libs_private)
  if(BUILD_SHARED_LIBS)  # which names what it needs itself
    set(pc_requires_private)
    set(pc_libs_private)
  endif()
  configure_file(cmake/attn.pc.in ${pc_name}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${pc_name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()

attn_install(attn attn)
attn_pkg_config(attn attn "${PROJECT_DESCRIPTION}" "" "" "-lstdc++ -lm -pthread")
if(TARGET attn_cluster)
  attn_install(attn_cluster attn_cluster)
  attn_pkg_config(attn-cluster attn_cluster "Attention over ranks of MPI: compile with its mpicxx" attn "" "")
endif()
if(ATTN_BUILD_MODELS)
  attn_install(attn_models attn_models)
  attn_pkg_config(attn-models attn_models "Layers, models, training and generation on top of attn" attn
    "zlib libutf8proc libpcre2-8" "")
  if(ATTN_BUILD_VIEW)
    attn_install(attn_view attn_view)
    attn_pkg_config(attn-view attn_view "Pictures and pages of attention, on top of attn" attn
      "attn-models libpng zlib libutf8proc" "")
  endif()
  if(NOT BUILD_SHARED_LIBS)
    install(FILES cmake/attnLibraries.cmake DESTINATION ${package_dir})
  endif()
endif()

write_basic_package_version_file(attnConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES cmake/attnConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/attnConfigVersion.cmake DESTINATION ${package_dir})
install(DIRECTORY include/attn DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
