#include "http.h"

#include <fmt/core.h>

#include <atomic>
#include <cstdlib>
#include <thread>
#include <vector>

#include "attn/core.h"
#include "signals.h"

namespace cli {

void set_limits(httplib::Server& server, size_t connections, time_t quiet_seconds, size_t most_bytes) {
  server.new_task_queue = [connections] { return new httplib::ThreadPool(connections); };
  server.set_payload_max_length(most_bytes);
  server.set_keep_alive_timeout(quiet_seconds);
  server.set_read_timeout(quiet_seconds);
  server.set_write_timeout(quiet_seconds);
}

httplib::Headers own_origin_headers() {
  return {{"Cache-Control", "no-store"},
          {"Content-Security-Policy", "frame-ancestors 'none'"},
          {"Cross-Origin-Resource-Policy", "same-origin"},
          {"Referrer-Policy", "no-referrer"},
          {"X-Content-Type-Options", "nosniff"}};
}

bool is_own(const httplib::Request& request, int port) {
  const std::string host = request.get_header_value("Host"), site = request.get_header_value("Sec-Fetch-Site");
  const std::string end = ":" + std::to_string(port);
  return request.get_header_value_count("Host") == 1 && (host == kLoopback + end || host == "localhost" + end) &&
         (site.empty() || site == "same-origin" || site == "none");
}

int open_port(httplib::Server& server, const std::string& operation, const std::string& host, int port) {
  std::vector<socket_t> listening;                  // of each address of the host that was tried
  server.set_socket_options([&](socket_t socket) {  // a port that another program listens on is an error
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    listening.push_back(socket);
  });
  if (port == 0) port = server.bind_to_any_port(host.c_str());
  else if (!server.bind_to_port(host.c_str(), port)) port = -1;
  // The library lets 5 connections wait until they are accepted, which is too few for many clients at once.
  if (port >= 0) ::listen(listening.back(), SOMAXCONN);
  server.set_socket_options(nullptr);
  if (port < 0) throw attn::Error(operation, {fmt::format("the port cannot be opened on {}: is it in use?", host)});
  return port;
}

void run_until_signal(httplib::Server& server, std::chrono::milliseconds time_to_end,
                      const std::function<void()>& on_signal) {
  constexpr std::chrono::milliseconds kPause{50};
  std::atomic<bool> ended = false;
  std::thread waiting([&] {
    while (!ended && !(signal_seen() && server.is_running())) std::this_thread::sleep_for(kPause);
    if (ended) return;
    server.stop();
    if (on_signal) on_signal();
    for (auto left = time_to_end; !ended && left.count() > 0; left -= kPause) std::this_thread::sleep_for(kPause);
    // Connections of slow clients are all that is left, and nothing that could be lost.
    if (!ended) std::_Exit(128 + signal_seen());
  });
  try {
    server.listen_after_bind();
  } catch (...) {
    ended = true;
    waiting.join();
    throw;
  }
  ended = true;
  waiting.join();
}

}  // namespace cli
