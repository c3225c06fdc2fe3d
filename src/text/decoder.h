// decoder: what makes text of tokens, one token at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/fields.h"

namespace attn::text {

/// One step on the way from tokens to text, with what it must remember of the tokens before.
class DecodeStep {
 public:
  using Next = std::function<void(std::string token)>;
  virtual ~DecodeStep() = default;
  virtual void push(std::string token, const Next& next) = 0;
  virtual void finish(const Next&) {}
};

/// The steps of a decoder, which make the state of one decode().
class Decoder {
 public:
  using MakeStep = std::function<std::unique_ptr<DecodeStep>()>;
  /// Without a decoder tokens have spaces between.
  Decoder();
  explicit Decoder(const JsonFields& fields);
  std::vector<std::unique_ptr<DecodeStep>> steps() const;
  /// What follows the steps: blanks in front of punctuation and of English endings go, or times such as <|1.02|>.
  void clean_up_spaces();
  void drop_times();
  /// True if tokens spell bytes.
  bool is_byte_level() const { return is_byte_level_; }

 private:
  struct Part;
  void read(const JsonFields& fields, std::vector<Part>& parts);
  std::vector<MakeStep> steps_;
  bool is_byte_level_ = false;
};

}  // namespace attn::text
