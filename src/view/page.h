// The page that html_page() fills in.
#pragma once

#include <string_view>

namespace attn::view {

extern const std::string_view kPageTemplate;  // with {{policy}}, {{style}}, {{data}} and {{script}}
extern const std::string_view kPageStyle;
extern const std::string_view kPageScript;
extern const std::string_view kServedScript;
extern const std::string_view kStyleDigest;  // SHA-256 in hexadecimal
extern const std::string_view kScriptDigest;
extern const std::string_view kServedScriptDigest;

}  // namespace attn::view
