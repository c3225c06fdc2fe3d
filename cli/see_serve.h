// attn see --serve: the page of attention, answered by this program.
#pragma once

#include "attn/view_page.h"

namespace cli {

/// Runs the page's server on 127.0.0.1, prints its address, returns after a signal (see catch_signals()). Port 0: any
/// that is free. Throws Error where the port cannot be had.
void serve(const attn::view::ServedPage& page, int port);

}  // namespace cli
