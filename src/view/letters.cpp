#include "view/letters.h"

#include <array>

#include "view/text.h"

namespace attn::view {
namespace {

// Each letter from ' ' to '~': lines of points "xy", one after the other, apart by blanks.
constexpr std::array<std::string_view, 95> kLetters = {"",
                                                       "2024 2626",
                                                       "1012 3032",
                                                       "1016 3036 0242 0444",
                                                       "413010010213334445361605 2027",
                                                       "4006 0010110100 3545463635",
                                                       "460201102031220405162644",
                                                       "2022",
                                                       "30222436",
                                                       "10222416",
                                                       "2125 0244 4204",
                                                       "2125 0343",
                                                       "252617",
                                                       "1333",
                                                       "2626",
                                                       "4006",
                                                       "103041453616050110",
                                                       "112026 1636",
                                                       "01103041420646",
                                                       "01103041423313 334445361605",
                                                       "36300444",
                                                       "400002324345361605",
                                                       "413010010516364544331304",
                                                       "004016",
                                                       "103041423313020110 133344453616050413",
                                                       "051636454130100102133342",
                                                       "2323 2626",
                                                       "2323 252617",
                                                       "410345",
                                                       "0242 0444",
                                                       "014305",
                                                       "01103041422324 2626",
                                                       "461605011030414434322213142534",
                                                       "0602204246 0444",
                                                       "00063645443303 3342413000",
                                                       "4130100105163645",
                                                       "00062644422000",
                                                       "40000646 0333",
                                                       "400006 0333",
                                                       "41301001051636454323",
                                                       "0006 4046 0343",
                                                       "1030 2026 1636",
                                                       "4045361605",
                                                       "0006 4004 1346",
                                                       "000646",
                                                       "0600234046",
                                                       "06004640",
                                                       "103041453616050110",
                                                       "06003041423303",
                                                       "103041453616050110 2547",
                                                       "06003041423303 2346",
                                                       "413010010213334445361605",
                                                       "0040 2026",
                                                       "000516364540",
                                                       "002640",
                                                       "0016233640",
                                                       "0046 4006",
                                                       "0023 4023 2326",
                                                       "00400646",
                                                       "30101636",
                                                       "0046",
                                                       "10303616",
                                                       "022042",
                                                       "0747",
                                                       "1021",
                                                       "12324346 441405163645",
                                                       "0006 0312324345361605",
                                                       "4332120305163645",
                                                       "4046 4332120305163645",
                                                       "04444332120305163645",
                                                       "40302126 1242",
                                                       "4247381807 4332120305163645",
                                                       "0006 0312324346",
                                                       "2226 2020",
                                                       "32372818 3030",
                                                       "0006 4204 1346",
                                                       "2026",
                                                       "0602 03122326 23324346",
                                                       "0602 0312324346",
                                                       "123243453616050312",
                                                       "0208 0312324345361605",
                                                       "4248 4332120305163645",
                                                       "0602 04123243",
                                                       "43321203143445361605",
                                                       "1015263645 0232",
                                                       "0205163645 4246",
                                                       "022642",
                                                       "0216243642",
                                                       "0246 4206",
                                                       "0226 421708",
                                                       "02420646",
                                                       "30212213242536",
                                                       "2027",
                                                       "10212233242516",
                                                       "04132433"};
constexpr std::string_view kSpaceSign = "06074746", kDots = "0606 2626 4646", kBox = "0040460600";

std::string_view lines_of(char32_t point) {
  if (point >= ' ' && point <= '~') return kLetters[point - ' '];
  return point == U'\u2423' ? kSpaceSign : point == U'\u2026' ? kDots : kBox;
}

}  // namespace

std::vector<Stroke> strokes_of(std::string_view text) {
  std::vector<Stroke> strokes;
  double left = 0;
  for (size_t position = 0; position < text.size(); left += kAdvance) {
    const std::string_view lines = lines_of(next_code_point(text, position));
    for (size_t at = 0; at + 4 <= lines.size(); at += 2) {
      if (lines[at + 2] == ' ') {  // on to the next line
        ++at;
        continue;
      }
      const auto number = [&](size_t n) { return static_cast<double>(lines[at + n] - '0'); };
      strokes.push_back({left + number(0), number(1), left + number(2), number(3)});
    }
  }
  return strokes;
}

double width_of(std::string_view text) {
  double width = 0;
  for (size_t position = 0; position < text.size(); width += kAdvance) next_code_point(text, position);
  return width;
}

}  // namespace attn::view
