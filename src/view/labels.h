// Labels of the terminal and of PNG pictures.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace attn::view {

/// One line of at most `width` terminal cells. Characters that would not show, or would change how others show
/// (controls, format and direction characters, unusual spaces), become visible signs. A label that is cut off ends in
/// `cut`, one cell wide.
std::string visible_label(std::string_view text, int64_t width, std::string_view cut);

/// The number of terminal cells of a result of visible_label().
int64_t display_width(std::string_view label);

}  // namespace attn::view
