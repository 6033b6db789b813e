// Attention of tokens to those around them, on CPUs: interface of the kernels.
//
// A map of H x W patches follows `special` tokens, which all attend to and which attend
// to all. B images, N tokens, M heads, D channels of a head.
#pragma once

#include <cstdint>

#include "storage.h"

namespace mmattn {

// The keys that queries see along an axis, and the queries that see keys: both are
// ranges that grow with the position.
struct Axis {
  int64_t side;
  const int64_t* first_key;
  const int64_t* num_keys;
  const int64_t* first_query;
  const int64_t* num_queries;
};

struct LocalCall {
  int64_t B, N, M, D, special;
  Axis rows, columns;
  int64_t max_keys, max_queries;  // of one axis
  int64_t bands, band_rows;  // bands of rows are tasks of their own
  bool fill;  // whether tokens that a query does not see have a score of 0
  bool soft;  // whether they have `alpha` times their score
  Tokens q, k, v, out, grad, dq, dk, dv;
  const float* bias;  // (M, S, S) by key minus query, or null
  int64_t table_side;
  const float* alpha;  // (M)
  // A soft mask starts from attention with all scores times alpha: its output, in
  // `out`, and log-sum-exp (B, M, N). `lse` is the final one. The backward sets
  // `dense_lse` to infinity where a row is to have no weight in the dense pass.
  float* dense_lse;
  float* lse;
  float* total;  // (B, M, D), sum of all values
  float* dtotal;  // (B, M, D), its gradient
  float* delta;  // (B, M, N), of a soft mask, gradient times output
  float* dbias;  // (B, bands, M, S, S)
  float* dspecial;  // (B, M, bands, special, 2 D), of keys and values
  float* dalpha;  // (B, M, bands + 1)
};

}  // namespace mmattn
