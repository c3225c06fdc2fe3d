#include "see_serve.h"

#include <fmt/core.h>

#include "http.h"
#include "output.h"
#include "signals.h"

namespace cli {
namespace {

constexpr size_t kConnections = 256;
constexpr time_t kQuietSeconds = 1;  // until a connection that nothing comes from is closed; a browser opens another
constexpr std::chrono::milliseconds kTimeToEnd{500};  // for answers that are under way when a signal comes

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
  set_limits(server, kConnections, kQuietSeconds, 1 << 10);
  server.set_default_headers(own_origin_headers());
  server.set_pre_routing_handler([&](const httplib::Request& request, httplib::Response& response) {
    if (is_own(request, port)) return httplib::Server::HandlerResponse::Unhandled;
    refuse(response, 403, "only the page itself may send requests here");
    return httplib::Server::HandlerResponse::Handled;
  });
  server.Get(".*", [&](const httplib::Request& request, httplib::Response& response) {
    answer(page, whole, request, response);
  });
  port = open_port(server, "see", kLoopback, port);
  catch_signals();
  show(fmt::format("http://{}:{}/  (Ctrl-C ends it)\n", kLoopback, port));
  run_until_signal(server, kTimeToEnd);
}

}  // namespace cli
