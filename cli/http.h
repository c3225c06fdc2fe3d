// What the servers of this program have in common: their address, who may ask, and how they end.
#pragma once

#include <httplib.h>

#include <chrono>
#include <functional>
#include <string>

namespace cli {

constexpr const char* kLoopback = "127.0.0.1";

/// A thread for each of `connections`, so that clients who send nothing, or read slowly, do not keep others waiting.
/// After `quiet_seconds` without a byte a connection is closed.
void set_limits(httplib::Server& server, size_t connections, time_t quiet_seconds, size_t most_bytes);

/// Headers that keep a browser from using an answer for anything but this origin.
httplib::Headers own_origin_headers();

/// False for a browser's page of another origin, under another name of this address (DNS rebinding) or across sites.
bool is_own(const httplib::Request& request, int port);

/// Binds the server to an address. Port 0: any that is free; returns the port. Throws Error of `operation` where it
/// cannot be had.
int open_port(httplib::Server& server, const std::string& operation, const std::string& host, int port);

/// Runs a bound server until a signal (see catch_signals()). Then it accepts no more connections, calls on_signal, and
/// waits for answers on the way, at most `time_to_end`.
void run_until_signal(httplib::Server& server, std::chrono::milliseconds time_to_end,
                      const std::function<void()>& on_signal = {});

}  // namespace cli
