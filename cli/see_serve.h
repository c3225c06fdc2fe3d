// attn see --serve: the page of attention, answered by this program.
#pragma once

#include "attn/view_page.h"

namespace cli {

/// Serves the page on 127.0.0.1, says where, and returns when a signal ends it (see catch_signals()). Port 0: any that
/// is free. Throws Error where the port cannot be had.
void serve(const attn::view::ServedPage& page, int port);

}  // namespace cli
