// errors: what a call that must be refused says.
#pragma once

#include <string>
#include <vector>

#include "attn/core.h"

namespace attn::test {

/// The reasons of the Error that `call` throws; none if it throws nothing. Any other exception fails the test.
template <class Call>
std::vector<std::string> reasons_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.reasons();
  }
  return {};
}

/// Its message; empty if it throws nothing.
template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace attn::test
