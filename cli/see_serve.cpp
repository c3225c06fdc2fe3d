#include "see_serve.h"

#include <fmt/core.h>
#include <httplib.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "output.h"
#include "signals.h"

namespace cli {
namespace {

constexpr const char* kAddress = "127.0.0.1";
// A thread each, so that clients who say nothing, or read slowly, do not keep others waiting.
constexpr size_t kConnections = 256;
constexpr time_t kQuietSeconds = 1;  // until a connection that nothing comes from is closed; a browser opens another
constexpr std::chrono::milliseconds kTimeToEnd{500};  // for answers that are under way when a signal comes

/// A page of another origin must not ask: neither under another name that leads here (DNS rebinding), nor across sites.
bool is_own(const httplib::Request& request, int port) {
  const std::string host = request.get_header_value("Host"), site = request.get_header_value("Sec-Fetch-Site");
  const std::string end = ":" + std::to_string(port);
  return request.get_header_value_count("Host") == 1 && (host == kAddress + end || host == "localhost" + end) &&
         (site.empty() || site == "same-origin" || site == "none");
}

void refuse(httplib::Response& response, int status, const std::string& reason) {
  response.status = status;
  response.set_content(reason + "\n", "text/plain; charset=utf-8");
}

void answer(const attn::view::ServedPage& page, const std::string& whole, const httplib::Request& request,
            httplib::Response& response) {
  try {
    if (request.ranges.size() > 1) return refuse(response, 416, "only one range can be requested at a time");
    if (request.path == "/") {
      response.set_content_provider(whole.size(), "text/html; charset=utf-8",
                                    [&whole](size_t offset, size_t length, httplib::DataSink& sink) {
                                      return sink.write(whole.data() + offset, length);
                                    });
    } else response.set_content(page.answer(request.path, request.params), "application/octet-stream");
  } catch (const attn::Error& error) {
    refuse(response, 400, error.what());
  }
}

}  // namespace

void serve(const attn::view::ServedPage& page, int port) {
  const std::string whole = page.page();  // which all clients are sent, without a copy for each
  httplib::Server server;
  server.new_task_queue = [] { return new httplib::ThreadPool(kConnections); };
  server.set_socket_options([](socket_t socket) {  // a port that another program listens on is an error
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  server.set_payload_max_length(1 << 10);
  server.set_keep_alive_timeout(kQuietSeconds);
  server.set_read_timeout(kQuietSeconds);
  server.set_write_timeout(kQuietSeconds);
  server.set_default_headers({{"Cache-Control", "no-store"},
                              {"Content-Security-Policy", "frame-ancestors 'none'"},
                              {"Cross-Origin-Resource-Policy", "same-origin"},
                              {"Referrer-Policy", "no-referrer"},
                              {"X-Content-Type-Options", "nosniff"}});
  server.set_pre_routing_handler([&](const httplib::Request& request, httplib::Response& response) {
    if (is_own(request, port)) return httplib::Server::HandlerResponse::Unhandled;
    refuse(response, 403, "only the page itself may send requests here");
    return httplib::Server::HandlerResponse::Handled;
  });
  server.Get(".*", [&](const httplib::Request& request, httplib::Response& response) {
    answer(page, whole, request, response);
  });
  if (port == 0) port = server.bind_to_any_port(kAddress);
  else if (!server.bind_to_port(kAddress, port)) port = -1;
  if (port < 0) throw attn::Error("see", {fmt::format("the port cannot be opened on {}: is it in use?", kAddress)});

  catch_signals();
  std::atomic<bool> ended = false;
  std::thread waiting([&] {
    while (!ended && !(signal_seen() && server.is_running()))
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (ended) return;
    server.stop();
    for (auto left = kTimeToEnd; !ended && left.count() > 0; left -= std::chrono::milliseconds(50))
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    // Connections of slow clients are all that is left, and nothing that could be lost.
    if (!ended) std::_Exit(128 + signal_seen());
  });
  try {
    show(fmt::format("http://{}:{}/  (Ctrl-C ends it)\n", kAddress, port));
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
