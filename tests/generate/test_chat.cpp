// generate: the text of a conversation, and what a conversation keeps.
#include "attn/generate_chat.h"

#include "support/errors.h"
#include "support/hub.h"

namespace attn::test {
namespace {

using generate::ChatFormat;
using generate::ChatMessage;
using generate::ChatTemplate;
using generate::Conversation;

const std::vector<ChatMessage> kTalk = {{"user", "Hi "}, {"assistant", " Hello"}, {"user", "Bye"}};

TEST(Chat, EachFormatHasItsTokens) {
  EXPECT_EQ(
      ChatTemplate("{{'<|im_start|>'}}").format(kTalk),
      "<|im_start|>user\nHi <|im_end|>\n<|im_start|>assistant\n Hello<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
      "<|im_start|>assistant\n");
  EXPECT_EQ(ChatTemplate("{{ bos_token }}<|start_header_id|>").format(kTalk),
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant"
            "<|end_header_id|>\n\nHello<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_EQ(ChatTemplate("{{ bos_token }}<start_of_turn>").format(kTalk),
            "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nHello<end_of_turn>\n<start_of_turn>user\n"
            "Bye<end_of_turn>\n<start_of_turn>model\n");
  EXPECT_EQ(ChatTemplate("<|user|>").format(kTalk),
            "<|user|>\nHi </s>\n<|assistant|>\n Hello</s>\n<|user|>\nBye</s>\n<|assistant|>\n");
  EXPECT_EQ(ChatTemplate("<|im_start|>").end_of_answer(), "<|im_end|>");
  EXPECT_EQ(ChatTemplate("<|start_header_id|>").end_of_answer(), "<|eot_id|>");
}

TEST(Chat, TheTemplatesOwnSystemMessageIsRead) {
  const ChatTemplate plain("'<|im_start|>system\\nYou are kind.<|im_end|>\\n'"),
      lines("{{ '<|im_start|>system\nBe brief.<|im_end|>\n' }}"),
      computed("'<|im_start|>system\\n' + messages[0].content + '<|im_end|>'");
  EXPECT_EQ(plain.default_system(), "You are kind.");
  EXPECT_EQ(lines.default_system(), "Be brief.");
  EXPECT_EQ(computed.default_system(), "");
  const std::vector<ChatMessage> one = {{"user", "Hi"}}, given = {{"system", "Be rude."}, {"user", "Hi"}};
  EXPECT_TRUE(plain.format(one).starts_with("<|im_start|>system\nYou are kind.<|im_end|>\n<|im_start|>user\n"));
  EXPECT_TRUE(plain.format(given).starts_with("<|im_start|>system\nBe rude.<|im_end|>\n<|im_start|>user\n"));
  EXPECT_TRUE(ChatTemplate("<|start_header_id|> Cutting Knowledge Date: December 2023")
                  .format(given)
                  .find("Today Date: 26 Jul 2024\n\nBe rude.<|eot_id|>") != std::string::npos);
}

TEST(Chat, EarlierThoughtsAreDropped) {
  const std::vector<ChatMessage> talk = {
      {"user", "2+2"}, {"assistant", "<think>\neasy\n</think>\n\n4"}, {"user", "3+3"}};
  EXPECT_NE(ChatTemplate("<|im_start|> </think>").format(talk).find("assistant\n4<|im_end|>"), std::string::npos);
  EXPECT_NE(ChatTemplate("<|im_start|>").format(talk).find("easy"), std::string::npos);
}

TEST(Chat, Errors) {
  const auto said = [](const std::function<void()>& call, const std::string& words) {
    EXPECT_NE(error_of(call).find(words), std::string::npos) << error_of(call) << " lacks " << words;
  };
  said([] { ChatTemplate(""); }, "the model has no chat_template: it was not trained to converse");
  said([] { ChatTemplate("[INST] {{ message }} [/INST]"); }, "is of a family that is not supported");
  const ChatTemplate chat("<|im_start|>"), gemma("<start_of_turn>");
  const std::vector<ChatMessage> tool = {{"tool", "x"}}, late = {{"user", "x"}, {"system", "y"}},
                                 system = {{"system", "y"}};
  said([&] { chat.format({}); }, "there is no message");
  said([&] { chat.format(tool); }, "message 0 is of the role 'tool', must be user or assistant");
  said([&] { chat.format(late); }, "message 1 is of the role 'system'");
  said([&] { gemma.format(system); }, "a system message is given, which the model's chat_template does not have");
}

// ------------------------------------------------------------------------------------------------------ conversations

/// Any bytes are answered with any bytes. In float64, for a cached token to have the logits of the whole text but for
/// what no choice depends on.
struct Talker {
  std::unique_ptr<text::Tokenizer> tokenizer = text::bytes();
  models::Model model;
  generate::TextGenerator generator;

  explicit Talker(int64_t context = 2048)
      : model(config(context), nn::Precision::float64, 3), generator(model, *tokenizer) {}
  static models::Config config(int64_t context) {
    models::Config config = models::family("llama");
    config.vocab_size = 256, config.embed_dim = 32, config.heads = 2, config.layers = 2, config.context = context;
    return config;
  }
  Conversation talk(const std::string& system = "") { return {generator, ChatTemplate("<|im_start|>"), system}; }
};
const generate::TextOptions kEight = {.max_new_tokens = 8, .temperature = 0};

TEST(Chat, AnAnswerIsThatOfTheWholeText) {
  Talker talker;
  Conversation conversation = talker.talk("Be brief.");
  for (const char* message : {"Hello", "How are you?", "Bye"}) {
    std::vector<ChatMessage> messages = conversation.messages();
    messages.push_back({"user", message});
    const std::string whole = ChatTemplate("<|im_start|>").format(messages);
    std::string streamed;
    const Conversation::Answer answer = conversation.say(message, kEight, [&](std::string_view piece) {
      streamed += piece;
      return true;
    });
    EXPECT_EQ(answer.text, talker.generator.write(whole, kEight).text);
    EXPECT_EQ(streamed, answer.text);
    EXPECT_EQ(answer.prompt_tokens, static_cast<int64_t>(whole.size()));
    EXPECT_EQ(answer.forgotten, 0);
    // All but the last token of the answer before, whose text may not be whole.
    if (messages.size() > 2) EXPECT_GT(answer.generated.reused, answer.prompt_tokens / 3);
    else EXPECT_EQ(answer.generated.reused, 0);
  }
  EXPECT_EQ(conversation.messages().size(), 7u);
  EXPECT_EQ(conversation.take_back(), "Bye");
  EXPECT_EQ(conversation.messages().back().role, "assistant");
  conversation.clear();
  ASSERT_EQ(conversation.messages().size(), 1u);
  EXPECT_EQ(conversation.take_back(), "");
}

TEST(Chat, AStoppedAnswerIsKept) {
  Talker talker;
  Conversation conversation = talker.talk();
  int pieces = 0;
  const Conversation::Answer answer = conversation.say("Hello", {.max_new_tokens = 50, .temperature = 0},
                                                       [&](std::string_view) { return ++pieces < 3; });
  EXPECT_EQ(answer.generated.tokens.size(), 3u);
  EXPECT_EQ(conversation.messages().size(), 2u);
  EXPECT_NE(conversation.say("Go on", kEight).generated.reused, 0);
}

TEST(Chat, TheOldestMessagesLeave) {
  Talker talker(180);
  Conversation conversation = talker.talk("Be brief.");
  int64_t forgotten = 0;
  for (int n = 0; n < 6; ++n) forgotten += conversation.say("a message", kEight).forgotten;
  EXPECT_GT(forgotten, 0);
  EXPECT_EQ(forgotten % 2, 0);
  EXPECT_EQ(conversation.messages().front().role, "system");
  EXPECT_EQ(conversation.messages()[1].role, "user");
  EXPECT_LE(conversation.say("a message", kEight).prompt_tokens + 8, 180);
  const size_t before = conversation.messages().size();
  EXPECT_NE(error_of([&] { conversation.say(std::string(500, 'x'), kEight); }).find("the model's context is 180"),
            std::string::npos);
  EXPECT_EQ(conversation.messages().size(), before) << "what does not fit leaves all as it was";
}

TEST(Chat, ATextCacheIsReadWhereTextsBeginAlike) {
  Talker talker;
  generate::TextCache cache;
  const auto write = [&](const std::vector<int64_t>& prompt, generate::TextCache* kept) {
    return generate::generate(talker.model, prompt,
                              {.sampling = {.temperature = 0}, .max_new_tokens = 5, .text_cache = kept});
  };
  const std::vector<int64_t> first = {1, 2, 3, 4, 5, 6}, same = first, other = {1, 2, 3, 9, 9}, apart = {7, 8};
  EXPECT_EQ(write(first, &cache).reused, 0);
  EXPECT_EQ(cache.tokens.size(), 10u) << "the last new token was not computed";
  for (const std::vector<int64_t>& prompt : {same, other, apart}) {
    const auto with = write(prompt, &cache), without = write(prompt, nullptr);
    EXPECT_EQ(with.tokens, without.tokens);
    EXPECT_EQ(with.reused, prompt == same ? 5 : prompt == other ? 3 : 0);
  }
  EXPECT_NE(error_of([&] {
              generate::generate(talker.model, first, {.cache = false, .text_cache = &cache});
            }).find("text_cache needs the cache"),
            std::string::npos);
}

}  // namespace
}  // namespace attn::test
