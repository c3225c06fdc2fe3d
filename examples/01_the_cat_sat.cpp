// Attention by hand: three tokens, two numbers each, every step printed.
//
// Each token asks a question (its row of Q), is found by an address (K) and has something to say (V). A score says how
// well a question fits an address; softmax turns the scores of a row into weights that add up to 1; the output is the
// average of what is said, by those weights.
#include <cmath>
#include <cstdio>

#include "attn/attn.h"

namespace {

using Matrix = attn::Tensor<double, 4>;  // [1, 1, rows, columns]; double, so that all six printed digits are right

const char* const kTokens[] = {"The", "cat", "sat"};
const char* const kFeatures[] = {"0", "1"};

/// Prints a matrix with one row a token.
void print(const char* title, const Matrix& x, const char* const* columns, bool with_sum = false) {
  const int64_t width = x.size()[3];
  std::printf("%s\n     ", title);
  for (int64_t c = 0; c < width; ++c) std::printf("%10s", columns[c]);
  if (with_sum) std::printf("%10s", "sum");
  std::printf("\n");
  for (int64_t i = 0; i < 3; ++i) {
    double sum = 0;
    std::printf("%-5s", kTokens[i]);
    for (int64_t c = 0; c < width; ++c) {
      std::printf("%10.6f", x[i * width + c]);
      sum += x[i * width + c];
    }
    if (with_sum) std::printf("%10.6f", sum);
    std::printf("\n");
  }
}

Matrix one_row_a_token(const double (&values)[3][2]) {
  Matrix x({1, 1, 3, 2});
  for (int64_t n = 0; n < 6; ++n) x[n] = values[n / 2][n % 2];
  return x;
}

}  // namespace

int main() {
  const Matrix q = one_row_a_token({{0.5, 0.5}, {0.8, 0.2}, {0.3, 0.9}});
  const Matrix k = one_row_a_token({{0.2, 0.8}, {0.9, 0.3}, {0.1, 0.7}});
  const Matrix v = one_row_a_token({{0.1, 0.9}, {0.8, 0.5}, {0.4, 0.6}});
  print("Q: what each token looks for", q, kFeatures);
  print("\nK: what each token offers", k, kFeatures);
  print("\nV: what each token passes on", v, kFeatures);

  Matrix scores({1, 1, 3, 3}), scaled({1, 1, 3, 3});
  for (int64_t i = 0; i < 3; ++i)
    for (int64_t j = 0; j < 3; ++j) {
      scores[3 * i + j] = q[2 * i] * k[2 * j] + q[2 * i + 1] * k[2 * j + 1];
      scaled[3 * i + j] = scores[3 * i + j] / std::sqrt(2.0);
    }
  print("\nscores = Q K^T", scores, kTokens);
  print("\nscaled scores = Q K^T / sqrt(2)", scaled, kTokens);

  // The library never stores the matrix of weights; it computes any part of it from q, k and lse on request.
  Matrix out({1, 1, 3, 2}), weights({1, 1, 3, 3});
  attn::Tensor<double, 3> lse({1, 1, 3});
  attn::attention(q, k, v, out, lse);
  attn::attention_weights(q, k, lse, weights, 0, 0);
  print("\nweights = softmax of each row", weights, kTokens, true);
  print("\noutput = weights V", out, kFeatures);
}
