// attn serve: a model that answers OpenAI's clients over HTTP.
#include <fmt/core.h>

#include <filesystem>
#include <memory>
#include <mutex>

#include "attn/models_embed.h"
#include "commands.h"
#include "config_flags.h"
#include "http.h"
#include "job.h"
#include "model_flags.h"
#include "options.h"
#include "output.h"
#include "progress.h"
#include "serve_api.h"
#include "serve_engine.h"
#include "signals.h"

namespace cli {
namespace {

using httplib::Request, httplib::Response;
using Json = nlohmann::ordered_json;

constexpr size_t kMostConnections = 512;
constexpr time_t kSilentSeconds = 5;           // without a byte from a client
constexpr std::chrono::seconds kBodyTime{20};  // for the whole body of a request
constexpr std::chrono::seconds kTimeToFinish{10};
constexpr std::chrono::milliseconds kPause{250};  // after which it is looked whether the client is still there

/// The whole body, which may come slowly, but not for ever.
std::string body_of(const httplib::ContentReader& reader, size_t most, const Response& response) {
  const auto end = std::chrono::steady_clock::now() + kBodyTime;
  std::string body;
  bool late = false, large = false;
  const bool complete = reader([&](const char* data, size_t size) {
    late = std::chrono::steady_clock::now() > end;
    large = body.size() + size > most;
    if (late || large) return false;
    body.append(data, size);
    return true;
  });
  large = large || response.status == 413;  // by its Content-Length
  if (large) throw ApiError(413, fmt::format("the body has more than {} bytes", most));
  if (late) throw ApiError(408, fmt::format("the body takes longer than {} s", kBodyTime.count()));
  if (!complete) throw ApiError(400, "the body could not be read");
  return body;
}

/// The texts of one request, which are cancelled when nobody reads them any more.
struct Jobs {
  ~Jobs() {
    for (const auto& job : all) job->cancel();
  }
  std::vector<std::shared_ptr<TextJob>> all = {};
};

/// A model that writes, one that embeds, or both.
class Service {
 public:
  struct Options {
    std::string name, key;
    EngineLimits limits;
    CacheOption kv_cache;
    int64_t max_new_tokens = 0;
    size_t max_body = 0;
  };

  explicit Service(Options options) : options_(std::move(options)) {}

  /// `share` of the free memory is for keys and values.
  void set_writer(attn::models::Loaded loaded, double share = 0.5) {
    const std::string format = loaded.chat_template;
    generator_.emplace(std::move(loaded));
    if (!format.empty()) {
      try {
        chat_.emplace(format);
      } catch (const attn::Error& error) {
        no_chat_ = error.what();
      }
    } else no_chat_ = "the model has no chat_template: it was not trained to converse";
    const attn::models::Model& model = generator_->model();
    int64_t& most = options_.limits.batcher.max_cache_tokens;
    options_.limits.batcher.cache_storage = options_.kv_cache.of();
    if (most == 0) most = cache_tokens(model.config(), model.parameters().dtype(), share);
    const attn::generate::TextBatcher check(*generator_, options_.limits.batcher);  // throws what start() would
  }
  /// Begins to compute texts, with the ranks that share the writer's layers.
  void start(attn::cluster::Communicator& ranks, const std::function<void()>& on_failure) {
    is_shared_ = ranks.size() > 1;
    if (generator_) engine_.emplace(*generator_, options_.limits, ranks, on_failure);
  }
  /// The same on the other ranks, until the first ends.
  void follow(attn::cluster::Communicator& ranks) {
    follow_engine(*generator_, options_.limits.batcher, ranks,
                  [this](const std::string& source) { return read_source(source); });
  }
  void set_embedder(attn::models::Embedder embedder) { embedder_.emplace(std::move(embedder)); }

  void add_to(httplib::Server& server, int& port, bool is_loopback);
  void end() {
    if (engine_) engine_->end_within(kTimeToFinish / 2);
  }
  void rethrow_failure() const {
    if (engine_) engine_->rethrow_failure();
  }
  int64_t& max_cache_tokens() { return options_.limits.batcher.max_cache_tokens; }

 private:
  /// As many as the texts that are computed at once can have, but at most a share of the free memory.
  int64_t cache_tokens(const attn::models::Config& config, attn::DType type, double share) const {
    const auto token = static_cast<double>(attn::models::cache_bytes_per_token(config, type, options_.kv_cache.of()));
    const double fitting = attn::models::available_memory() * share / std::max(token, 1.0);
    const double needed =
        static_cast<double>(options_.limits.batcher.max_requests) * static_cast<double>(config.context);
    return static_cast<int64_t>(std::max(std::min(fitting, needed), 1024.0));
  }
  using Handler = void (Service::*)(const std::string& body, Response& response);
  void post(httplib::Server& server, const char* path, Handler handler);
  void require_key(const Request& request) const;
  void texts(const std::string& body, Response& response, bool is_chat);
  void chat(const std::string& body, Response& response) { texts(body, response, true); }
  void completions(const std::string& body, Response& response) { texts(body, response, false); }
  void embeddings(const std::string& body, Response& response);
  std::vector<std::vector<int64_t>> prompts_of(const TextRequest& request) const;
  TextInput input_of(const TextRequest& request, std::vector<int64_t> prompt, uint64_t seed) const;
  TextInput read_source(const std::string& source) const;
  std::shared_ptr<Jobs> submit(const TextRequest& request, const std::string& body);
  std::vector<TokenText> tokens_of(const TextJob::End& end) const {
    return token_texts(generator_->tokenizer(), end.tokens, end.logprobs);
  }
  void stream(Response& response, const TextRequest& request, const TextAnswer& answer,
              const std::shared_ptr<Jobs>& jobs, std::string begun, std::optional<TextJob::End> end) const;
  void whole(Response& response, const TextRequest& request, const TextAnswer& answer,
             const std::shared_ptr<Jobs>& jobs, std::string begun, std::optional<TextJob::End> end) const;
  std::string metrics() const;

  Options options_;
  std::optional<attn::generate::TextGenerator> generator_;
  std::optional<attn::generate::ChatTemplate> chat_;
  std::string no_chat_;
  std::optional<Engine> engine_;
  bool is_shared_ = false;
  std::optional<attn::models::Embedder> embedder_;
  std::mutex embedding_;
  std::atomic<int64_t> number_ = 0, embedded_ = 0;
};

void answer_error(Response& response, const ApiError& error) {
  response.status = error.status;
  if (error.status == 429) response.set_header("Retry-After", "1");
  response.set_content(error_body(error), "application/json");
}

void Service::require_key(const Request& request) const {
  if (options_.key.empty()) return;
  const std::string given = request.get_header_value("Authorization"), wanted = "Bearer " + options_.key;
  // In a time that does not depend on where they differ.
  unsigned differ = given.size() != wanted.size();
  for (size_t n = 0; n < std::min(given.size(), wanted.size()); ++n)
    differ |= static_cast<unsigned>(given[n]) ^ static_cast<unsigned>(wanted[n]);
  if (differ) throw ApiError(401, "the API key is missing or wrong: Authorization: Bearer KEY");
}

void Service::post(httplib::Server& server, const char* path, Handler handler) {
  server.Post(path, [=, this](const Request&, Response& response, const httplib::ContentReader& reader) {
    try {
      (this->*handler)(body_of(reader, options_.max_body, response), response);
    } catch (const ApiError& error) {
      answer_error(response, error);
    } catch (const FieldError& error) {
      answer_error(response, ApiError(400, error.what(), error.field));
    } catch (const attn::Error& error) {
      answer_error(response, ApiError(400, error.what()));
    }
  });
}

void Service::add_to(httplib::Server& server, int& port, bool is_loopback) {
  server.set_default_headers(own_origin_headers());
  server.set_pre_routing_handler([&, is_loopback](const Request& request, Response& response) {
    try {
      if (is_loopback && !is_own(request, port)) throw ApiError(403, "only programs of this machine may send requests");
      if (request.path != "/health") require_key(request);
      return httplib::Server::HandlerResponse::Unhandled;
    } catch (const ApiError& error) {
      answer_error(response, error);
      return httplib::Server::HandlerResponse::Handled;
    }
  });
  server.set_error_handler([this](const Request& request, Response& response) {
    if (!response.body.empty()) return;
    if (response.status == 413)
      return answer_error(response, ApiError(413, fmt::format("the body has more than {} bytes", options_.max_body)));
    const bool is_missing = response.status == 404;
    answer_error(response, ApiError(response.status, is_missing ? "there is no " + request.method + " " + request.path
                                                                : "the request cannot be read"));
  });
  server.set_exception_handler([](const Request&, Response& response, std::exception_ptr exception) {
    try {
      std::rethrow_exception(exception);
    } catch (const std::exception& error) {
      answer_error(response, ApiError(500, error.what()));
    }
  });
  server.Get("/health", [](const Request&, Response& response) {
    response.set_content("{\"status\":\"ok\"}\n", "application/json");
  });
  server.Get("/metrics", [this](const Request&, Response& response) {
    response.set_content(metrics(), "text/plain; version=0.0.4");
  });
  server.Get("/v1/models", [this](const Request&, Response& response) {
    response.set_content(models_body(options_.name), "application/json");
  });
  server.Get("/v1/models/(.+)", [this](const Request& request, Response& response) {
    if (request.matches[1] == options_.name) response.set_content(model_body(options_.name), "application/json");
    else answer_error(response, ApiError(404, "the model is " + options_.name, "model"));
  });
  post(server, "/v1/chat/completions", &Service::chat);
  post(server, "/v1/completions", &Service::completions);
  post(server, "/v1/embeddings", &Service::embeddings);
}

// --------------------------------------------------------------------------------------------------------------- texts

std::vector<std::vector<int64_t>> Service::prompts_of(const TextRequest& request) const {
  if (!request.is_chat) {
    std::vector<std::vector<int64_t>> prompts = request.prompt_tokens;
    for (const std::string& text : request.prompts) prompts.push_back(generator_->source_tokenizer().encode(text).ids);
    return prompts;
  }
  if (!chat_) throw ApiError(400, no_chat_, "messages");
  return {generator_->tokenizer().encode(chat_->format(request.messages), {.add_special_tokens = false}).ids};
}

TextInput Service::input_of(const TextRequest& request, std::vector<int64_t> prompt, uint64_t seed) const {
  const int64_t context = generator_->context(), most = options_.max_new_tokens, room = context - std::ssize(prompt);
  if (room < 1)
    throw ApiError(400, fmt::format("the prompt has {} tokens, the model's context is {}", prompt.size(), context));
  attn::generate::TextOptions options = request.options;
  options.max_new_tokens = std::min({options.max_new_tokens.value_or(most), most, room});
  options.seed = seed;
  if (request.is_chat) options.stop_strings.emplace_back(chat_->end_of_answer());
  return {std::move(prompt), std::move(options)};
}

/// What submit() has made on rank 0.
TextInput Service::read_source(const std::string& source) const {
  const Json said = Json::parse(source);
  const TextRequest request = read_text_request(said.at("body").get<std::string>(), said.at("is_chat").get<bool>());
  return input_of(request, said.at("prompt").get<std::vector<int64_t>>(), said.at("seed").get<uint64_t>());
}

std::shared_ptr<Jobs> Service::submit(const TextRequest& request, const std::string& body) {
  auto jobs = std::make_shared<Jobs>();
  for (const std::vector<int64_t>& prompt : prompts_of(request))
    for (int64_t n = 0; n < request.n; ++n) {
      const uint64_t seed = request.options.seed + static_cast<uint64_t>(n);
      TextInput input = input_of(request, prompt, seed);
      if (is_shared_)
        input.source = Json{{"body", body}, {"is_chat", request.is_chat}, {"prompt", prompt}, {"seed", seed}}.dump();
      std::shared_ptr<TextJob> job = engine_->submit(std::move(input));
      if (!job) throw ApiError(429, "too many requests wait: try again later");
      jobs->all.push_back(std::move(job));
    }
  return jobs;
}

Usage usage_of(const TextJob::End& end) { return {end.prompt_tokens, end.reused_tokens, end.new_tokens}; }

/// Of one more text. A prompt counts once, for the first of its n texts.
void add(Usage& usage, const TextJob::End& end, bool is_first) {
  if (is_first) usage.prompt_tokens += end.prompt_tokens;
  if (is_first) usage.reused_tokens += end.reused_tokens;
  usage.new_tokens += end.new_tokens;
}

/// Server-sent events: what has been read of the text so far, then more as it comes.
void Service::stream(Response& response, const TextRequest& request, const TextAnswer& answer,
                     const std::shared_ptr<Jobs>& jobs, std::string begun, std::optional<TextJob::End> end) const {
  auto text = std::make_shared<std::string>(std::move(begun));
  auto last = std::make_shared<std::optional<TextJob::End>>(std::move(end));
  auto first = std::make_shared<bool>(true);
  const auto provide = [=, this, usage = request.include_usage](size_t, httplib::DataSink& sink) {
    if (text->empty() && !*last) *last = jobs->all[0]->read(*text, kPause);
    std::string events;
    if (!text->empty() || *first) events += answer.piece({.text = std::exchange(*text, {})}, *first);
    *first = false;
    if (*last && (*last)->error.empty()) {
      events += answer.piece({.finish_reason = (*last)->finish_reason, .tokens = tokens_of(**last)}, false);
      if (usage) events += answer.usage_piece(usage_of(**last));
      events += "data: [DONE]\n\n";
    } else if (*last) {
      events += "data: " + error_body({(*last)->status, (*last)->error}) + "\n";
    }
    if (!sink.is_writable() || (!events.empty() && !sink.write(events.data(), events.size()))) return false;
    if (*last) sink.done();
    return true;
  };
  response.set_chunked_content_provider("text/event-stream", provide);
}

/// One JSON object, when all texts are there.
void Service::whole(Response& response, const TextRequest& request, const TextAnswer& answer,
                    const std::shared_ptr<Jobs>& jobs, std::string begun, std::optional<TextJob::End> end) const {
  struct Progress {
    std::vector<Choice> choices;
    Usage usage;
    std::optional<TextJob::End> end;
  };
  auto all = std::make_shared<Progress>();
  all->choices.push_back({.text = std::move(begun)});
  all->end = std::move(end);
  const auto provide = [=, this, n = request.n](size_t, httplib::DataSink& sink) {
    Choice& choice = all->choices.back();
    std::string piece;
    if (!all->end) all->end = jobs->all[all->choices.size() - 1]->read(piece, kPause);
    choice.text += piece;
    if (!sink.is_writable()) return false;  // the client has gone
    if (!all->end) return true;
    if (!all->end->error.empty()) {
      const std::string error = error_body({all->end->status, all->end->error});
      sink.write(error.data(), error.size());
      sink.done();
      return true;
    }
    choice.finish_reason = all->end->finish_reason;
    choice.tokens = tokens_of(*all->end);
    add(all->usage, *std::exchange(all->end, {}), (std::ssize(all->choices) - 1) % n == 0);
    if (all->choices.size() < jobs->all.size()) {
      all->choices.emplace_back();
      return true;
    }
    const std::string body = answer.whole(all->choices, all->usage) + "\n";
    if (!sink.write(body.data(), body.size())) return false;
    sink.done();
    return true;
  };
  response.set_chunked_content_provider("application/json", provide);
}

void Service::texts(const std::string& body, Response& response, bool is_chat) {
  const TextRequest request = read_text_request(body, is_chat);
  if (!generator_) throw ApiError(400, "the model embeds texts and does not write them: /v1/embeddings");
  const std::shared_ptr<Jobs> jobs = submit(request, body);
  const TextAnswer answer(is_chat, options_.name, ++number_);
  std::string begun;  // an error before the first text has a status of its own
  std::optional<TextJob::End> end;
  while (begun.empty() && !end) end = jobs->all[0]->read(begun, kPause);
  if (end && !end->error.empty()) throw ApiError(end->status, end->error);
  if (!request.stream) return whole(response, request, answer, jobs, std::move(begun), std::move(end));
  stream(response, request, answer, jobs, std::move(begun), std::move(end));
}

void Service::embeddings(const std::string& body, Response& response) {
  const EmbeddingRequest request = read_embedding_request(body);
  if (!embedder_)
    throw ApiError(400, "the model writes texts and does not embed them: start the server with --embedder");
  int64_t tokens = 0;
  for (const std::string& text : request.texts) tokens += std::ssize(embedder_->loaded().tokenizer->encode(text).ids);
  const std::lock_guard<std::mutex> lock(embedding_);
  const attn::Array rows = (*embedder_)(request.texts);
  embedded_ += std::ssize(request.texts);
  response.set_content(embedding_body(rows, request.base64, options_.name, tokens) + "\n", "application/json");
}

std::string Service::metrics() const {
  const EngineCounts counts = engine_ ? engine_->counts() : EngineCounts{};
  std::string text;
  const auto add = [&](const char* name, const char* kind, const char* help, int64_t value) {
    text += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n{0} {3}\n", name, help, kind, value);
  };
  add("attn_requests_running", "gauge", "texts that are computed", counts.requests - counts.waiting);
  add("attn_requests_waiting", "gauge", "texts that wait", counts.waiting);
  add("attn_cache_bytes", "gauge", "memory of keys and values", counts.cache_bytes);
  add("attn_texts_finished_total", "counter", "texts that came to their end", counts.finished);
  add("attn_texts_cancelled_total", "counter", "texts whose client left, or whose time was over", counts.cancelled);
  add("attn_texts_failed_total", "counter", "texts that ended with an error", counts.failed);
  add("attn_texts_refused_total", "counter", "texts that found too many others waiting", counts.refused);
  add("attn_prompt_tokens_total", "counter", "tokens of prompts", counts.prompt_tokens);
  add("attn_reused_tokens_total", "counter", "those of them that had been computed before", counts.reused_tokens);
  add("attn_new_tokens_total", "counter", "tokens that were generated", counts.new_tokens);
  add("attn_steps_total", "counter", "calls of the model", counts.steps);
  add("attn_embedded_texts_total", "counter", "texts that were embedded", embedded_);
  return text;
}

// ----------------------------------------------------------------------------------------------------------- the flags

struct Serve {
  ModelOptions model;
  std::string embedder, host = kLoopback;
  Service::Options options;
  int64_t port = 8080, max_body = 1 << 20;
  Parallel parallel;

  attn::models::Embedder open_embedder(const std::string& folder) const {
    Loading loading;
    attn::models::OpenOptions how{.on_progress = loading.listener()};
    set_precision(how, model.precision);
    return attn::models::Embedder(folder, how);
  }

  void run(const CLI::App& command) {
    if (host != kLoopback && host != "localhost" && options.key.empty())
      throw UsageError("--host " + host + " opens the model to the network: --api-key must be given");
    if (options.name.empty()) options.name = std::filesystem::weakly_canonical(model.directory).filename().string();
    options.max_body = static_cast<size_t>(max_body);
    Job job("serve", parallel);
    job.run([&] {
      httplib::Server server;  // which the service stops
      Service service(options);
      attn::cluster::on_all_ranks(job.ranks(), "serve", [&] { open(service, job, command); });
      catch_signals();
      if (job.is_first()) serve(server, service, job);
      else service.follow(job.ranks());
    });
  }

  void open(Service& service, const Job& job, const CLI::App& command) const {
    const attn::models::Config config = attn::models::read_config(model.directory);
    if (job.is_shared()) {
      if (!writes(config)) throw UsageError(model.directory + " does not write texts, and ranks share models that do");
      const attn::generate::BatcherOptions& limits = options.limits.batcher;
      job.require_same("the options", fmt::format("--max-requests {} --max-step-tokens {} --max-cache-tokens {} "
                                                  "--max-new-tokens {} --kv-cache {}",
                                                  limits.max_requests, limits.max_step_tokens, limits.max_cache_tokens,
                                                  options.max_new_tokens, options.kv_cache.storage));
      job.share_threads(command);
    }
    if (writes(config)) {
      // Each rank has the keys of some heads.
      const int64_t parts =
          std::min<int64_t>(job.grid().shape().tensor, config.kv_heads ? config.kv_heads : config.heads);
      service.set_writer(model.load(true, job.tensor_ranks()),
                         0.5 * static_cast<double>(parts) / static_cast<double>(job.on_machine()));
      const auto all = attn::cluster::gather(job.ranks(), std::to_string(service.max_cache_tokens()));
      for (const std::string& tokens : all)
        service.max_cache_tokens() = std::min<int64_t>(service.max_cache_tokens(), std::stoll(tokens));
    } else if (!embedder.empty()) {
      throw UsageError(model.directory + " does not write texts; " + what_fits(config));
    } else {
      service.set_embedder(open_embedder(model.directory));
    }
    if (!embedder.empty() && job.is_first()) service.set_embedder(open_embedder(embedder));
  }

  void serve(httplib::Server& server, Service& service, const Job& job) const {
    set_limits(server, kMostConnections, kSilentSeconds, options.max_body);
    int bound = static_cast<int>(port);
    service.add_to(server, bound, host == kLoopback || host == "localhost");
    bound = open_port(server, "serve", host, bound);
    service.start(job.ranks(), [&] { server.stop(); });
    show(fmt::format("http://{}:{}/v1  (Ctrl-C ends it)\n", host, bound));
    run_until_signal(server, kTimeToFinish, [&] { service.end(); });
    service.rethrow_failure();
  }
};

}  // namespace

void add_serve(CLI::App& app) {
  CLI::App* command = app.add_subcommand("serve", "answer the clients of OpenAI's interface");
  command->footer(
      "POST /v1/chat/completions, /v1/completions, /v1/embeddings; GET /v1/models, /health, /metrics.\n\n"
      "Example:\n  attn serve model.gguf --port 8080 --max-requests 16");
  auto run = std::make_shared<Serve>();
  run->model.add(*command);
  auto& limits = run->options.limits;
  command->add_option("--embedder", run->embedder, "a sentence encoder for /v1/embeddings, beside a model that writes")
      ->type_name("FOLDER");
  command->add_option("--host", run->host, "the address; one of the network requires --api-key");
  command->add_option("--port", run->port, "0 = any that is free")->check(whole(0, 65535));
  command->add_option("--api-key", run->options.key, "clients must send it as Authorization: Bearer KEY")
      ->envname("ATTN_API_KEY");
  command->add_option("--name", run->options.name, "the model's name in answers; none: that of its folder");
  command->add_option("--max-requests", limits.batcher.max_requests, "texts that are computed at once")
      ->check(whole(1, 1024));
  command->add_option("--max-waiting", limits.max_waiting, "texts that wait; further requests get status 429")
      ->check(whole(0, 1 << 20));
  command->add_option("--max-step-tokens", limits.batcher.max_step_tokens, "tokens of one call of the model")
      ->check(whole(1, 1 << 20));
  command
      ->add_option("--max-cache-tokens", limits.batcher.max_cache_tokens,
                   "tokens whose keys and values are in memory; 0 = --max-requests times the context, but at most half "
                   "of the free memory")
      ->check(whole(0, int64_t{1} << 40));
  run->options.kv_cache.add(*command);
  run->options.max_new_tokens = 1024;
  command->add_option("--max-new-tokens", run->options.max_new_tokens, "of one text, at most")
      ->check(whole(1, 1 << 24));
  command->add_option("--max-body", run->max_body, "bytes of a request")->check(whole(1, 1 << 30));
  command->add_option("--timeout", limits.max_seconds, "seconds of one text, waiting included")->check(number(1, 1e6));
  run->parallel.add_tensor(*command);
  run->parallel.add_wait_limit(*command);
  command->callback([=] { run->run(*command); });
}

}  // namespace cli
