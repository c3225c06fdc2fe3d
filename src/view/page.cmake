# The page of html_page() lives in files of its own; they become one source file, with the digests that the page's
# content-security policy names.
set(view_folder ${CMAKE_CURRENT_LIST_DIR})
foreach(part html css js)
  file(READ ${view_folder}/page.${part} VIEW_PAGE_${part})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${view_folder}/page.${part})
endforeach()
file(SHA256 ${view_folder}/page.css VIEW_PAGE_CSS_SHA256)
file(SHA256 ${view_folder}/page.js VIEW_PAGE_JS_SHA256)
configure_file(${view_folder}/page.cpp.in ${CMAKE_CURRENT_BINARY_DIR}/view_page.cpp @ONLY)
target_sources(attn_models PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/view_page.cpp)
