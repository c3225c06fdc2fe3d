#include "see_serve.h"

#include <fmt/core.h>
#include <httplib.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "common.h"

namespace cli {
namespace {

constexpr const char* kAddress = "127.0.0.1";
constexpr size_t kConnections = 4;  // each answer is computed by all processors anyway

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

void answer(const attn::view::ServedPage& page, const httplib::Request& request, httplib::Response& response) {
  try {
    if (request.path == "/") response.set_content(page.page(), "text/html; charset=utf-8");
    else response.set_content(page.answer(request.path, request.params), "application/octet-stream");
  } catch (const attn::Error& error) {
    refuse(response, 400, error.what());
  }
}

}  // namespace

void serve(const attn::view::ServedPage& page, int port) {
  httplib::Server server;
  server.new_task_queue = [] { return new httplib::ThreadPool(kConnections); };
  server.set_socket_options([](socket_t socket) {  // a port that another program listens on is an error
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  server.set_payload_max_length(1 << 10);
  server.set_default_headers({{"Cache-Control", "no-store"},
                              {"Content-Security-Policy", "frame-ancestors 'none'"},
                              {"Cross-Origin-Resource-Policy", "same-origin"},
                              {"Referrer-Policy", "no-referrer"},
                              {"X-Content-Type-Options", "nosniff"}});
  server.set_pre_routing_handler([&](const httplib::Request& request, httplib::Response& response) {
    if (is_own(request, port)) return httplib::Server::HandlerResponse::Unhandled;
    refuse(response, 403, "this page answers to itself alone");
    return httplib::Server::HandlerResponse::Handled;
  });
  server.Get(".*",
             [&](const httplib::Request& request, httplib::Response& response) { answer(page, request, response); });
  if (port == 0) port = server.bind_to_any_port(kAddress);
  else if (!server.bind_to_port(kAddress, port)) port = -1;
  if (port < 0) throw attn::Error("see", {fmt::format("the port cannot be opened on {}: is it in use?", kAddress)});

  catch_signals();
  std::atomic<bool> ended = false;
  std::thread waiting([&] {
    while (!ended && !(signal_seen() && server.is_running()))
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (!ended) server.stop();
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
