// decoder: turns tokens into text, one token at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/fields.h"

namespace attn::text {

/// One step from tokens to text, with the state that it keeps from the tokens before.
class DecodeStep {
 public:
  using Next = std::function<void(std::string token)>;
  virtual ~DecodeStep() = default;
  /// Calls `next` with each token that is certain now, for the following step.
  virtual void push(std::string token, const Next& next) = 0;
  /// Calls `next` with the tokens that the step held back.
  virtual void finish(const Next&) {}
};

/// A decoder as a list of steps.
class Decoder {
 public:
  using MakeStep = std::function<std::unique_ptr<DecodeStep>()>;
  /// Writes spaces between the tokens.
  Decoder();
  explicit Decoder(const JsonFields& fields);
  /// New steps for the decoding of one text. The decoder must outlive them.
  std::vector<std::unique_ptr<DecodeStep>> steps() const;
  /// Adds steps that remove spaces before punctuation marks and English contractions, or timestamps such as <|1.02|>.
  void clean_up_spaces();
  void drop_timestamps();
  /// True if each character of a token represents a byte.
  bool is_byte_level() const { return is_byte_level_; }

 private:
  struct StepConfig;
  void read(const JsonFields& fields, std::vector<StepConfig>& parts);
  std::vector<MakeStep> steps_;
  bool is_byte_level_ = false;
};

}  // namespace attn::text
