// Numbers as people read them, and the median.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cli {

/// "1,234,567"
std::string grouped(int64_t number);
/// "12.3 M"
std::string short_number(double number);
/// "1:02:03"
std::string clock_time(double seconds);

/// The middle one of the sorted values, or the mean of the two; NaN of none.
double median(std::vector<double> values);

}  // namespace cli
