// Masked and neighborhood attention for one instruction set.
#include "local_attn_cpu_products.inl"

#include "local_attn_cpu_tokens.inl"

#include "local_attn_cpu_forward.inl"

#include "local_attn_cpu_backward.inl"

namespace {

// Calls a function with the number of vectors of a head, or 0 for an uncommon one.
template <class Function>
MMATTN_INLINE void with_vectors(int64_t vectors, const Function& function) {
  vectors == 1       ? function(std::integral_constant<int, 1>())
      : vectors == 2 ? function(std::integral_constant<int, 2>())
      : vectors == 4 ? function(std::integral_constant<int, 4>())
      : vectors == 8 ? function(std::integral_constant<int, 8>())
                     : function(std::integral_constant<int, 0>());
}

}  // namespace

// Sums the values of some of B * M heads.
void local_sums(const LocalCall& call, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    sum_values(Head(call, i / call.M, i % call.M));
  }
}

// Computes some of B * M * (bands + 1) tasks: bands of rows, and rows of special tokens.
void local_forward(const LocalCall& call, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t band = i % (call.bands + 1), item = i / (call.bands + 1);
    const Head head(call, item / call.M, item % call.M);
    if (band == call.bands) {
      for (int64_t n = 0; n < call.special; ++n) {
        forward_dense_row(head, n);
      }
      continue;
    }
    const int64_t first = band * call.band_rows, after = first + call.band_rows;
    const int64_t last = after < call.rows.side ? after : call.rows.side;
    with_vectors(head.vectors, [&](auto n) { forward_rows<n>(head, first, last); });
    for (int64_t n = head.token(first, 0); call.soft && n < head.token(last, 0); ++n) {
      if (is_canceled(call.dense_lse[head.rows + n], call.lse[head.rows + n])) {
        forward_dense_row(head, n);
      }
    }
  }
}

// Computes some of B * M * bands tasks, which write to different places.
void local_backward(const LocalCall& call, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t band = i % call.bands, item = i / call.bands;
    const Head head(call, item / call.M, item % call.M);
    const int64_t first = band * call.band_rows, after = first + call.band_rows;
    const int64_t last = after < call.rows.side ? after : call.rows.side;
    with_vectors(
        head.vectors, [&](auto n) { backward_rows<n>(head, band, first, last); });
  }
}

// Adds what rows of tokens that attend to all, and the bands' shares of special tokens,
// make of the gradients of some of B * M heads.
void local_backward_dense(const LocalCall& call, int64_t begin, int64_t end) {
  for (int64_t item = begin; item < end; ++item) {
    const Head head(call, item / call.M, item % call.M);
    for (int64_t i = 0; i < call.special; ++i) {
      const int64_t at = ((head.b * call.N + i) * call.M + head.m) * head.D;
      for (int64_t d = 0; d < head.D; ++d) {
        float dk = 0, dv = call.fill ? call.dtotal[item * head.D + d] : 0;
        for (int64_t band = 0; band < call.bands; ++band) {
          const float* const from = call.dspecial +
              (((item * call.bands + band) * call.special + i) * 2) * head.D;
          dk += from[d];
          dv += from[head.D + d];
        }
        static_cast<float*>(call.dk.data)[at + d] = dk;
        static_cast<float*>(call.dv.data)[at + d] = dv;
      }
    }
    float dalpha = 0;
    for (int64_t n = 0; n < call.N; ++n) {
      if (n < call.special ||
          (call.soft && call.dense_lse[head.rows + n] == kInfinity)) {
        dalpha += backward_dense_row(head, n);
      }
    }
    if (call.soft) {
      call.dalpha[item * (call.bands + 1) + call.bands] = dalpha;
    }
  }
}
