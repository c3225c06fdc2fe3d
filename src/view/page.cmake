# attn_page: the objects of html_page(), which need attn::attn alone. attn::view and the Python package link them.
#
# HTML, CSS and JavaScript of the page are files in page/. They become one source file, with the digests that the page's
# content-security policy names. The script is one function made of its parts, in this order; the script of a page on a
# server has one more part, the only one that may send requests.
set(view_folder ${CMAKE_CURRENT_LIST_DIR}/page)
function(page_script name)
  set(script "'use strict';\n(() => {\n")
  foreach(part ${ARGN})
    file(READ ${view_folder}/${part}.js text)
    string(APPEND script "${text}")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${view_folder}/${part}.js)
  endforeach()
  string(APPEND script "})();\n")
  set(VIEW_${name} "${script}" PARENT_SCOPE)
  string(SHA256 digest "${script}")
  set(VIEW_${name}_DIGEST ${digest} PARENT_SCOPE)
endfunction()
set(view_parts colours map lines neurons measures tokens copy page)
page_script(PAGE_SCRIPT text weights pooled ${view_parts})
page_script(SERVED_SCRIPT text served ${view_parts})
foreach(part html css)
  file(READ ${view_folder}/page.${part} VIEW_PAGE_${part})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${view_folder}/page.${part})
endforeach()
string(SHA256 VIEW_PAGE_STYLE_DIGEST "${VIEW_PAGE_css}")
configure_file(${CMAKE_CURRENT_LIST_DIR}/page.cpp.in ${CMAKE_CURRENT_BINARY_DIR}/view_page.cpp @ONLY)
add_library(attn_page OBJECT EXCLUDE_FROM_ALL
  src/view/colour.cpp
  src/view/html.cpp
  src/view/page_data.cpp
  src/view/page_exact.cpp
  src/view/page_heads.cpp
  src/view/page_pooled.cpp
  src/view/page_texts.cpp
  src/view/text.cpp
  src/view/weights.cpp
  ${CMAKE_CURRENT_BINARY_DIR}/view_page.cpp)
attn_library(attn_page)
target_include_directories(attn_page PRIVATE src)
target_link_libraries(attn_page PUBLIC attn)
target_compile_options(attn_page PRIVATE -ffp-contract=off -Wno-missing-field-initializers)
# Clang warns of a literal longer than every compiler must take; it takes this one.
set_source_files_properties(${CMAKE_CURRENT_BINARY_DIR}/view_page.cpp PROPERTIES
  COMPILE_OPTIONS -Wno-overlength-strings)
