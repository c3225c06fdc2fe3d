// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace cli {

/// "1,234,567"
std::string grouped(int64_t number);
/// "12.3 M"
std::string short_number(double number);
/// "1:02:03"
std::string clock_time(double seconds);

}  // namespace cli
