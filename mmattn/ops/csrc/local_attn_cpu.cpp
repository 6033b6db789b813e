// Masked and neighborhood attention on CPUs: the operators that Python calls.
#include <algorithm>

#include "tensors.h"

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

// A map of H x W patches follows `special` tokens, which all attend to and which attend
// to all. B images, N tokens, M heads, D channels of a head.
struct LocalCall {
  int64_t B, N, M, D, special;
  Axis rows, columns;
  int64_t max_keys, max_queries;  // of one axis
  int64_t bands, band_rows;  // bands of rows are tasks of their own
  bool fill;  // whether tokens that a query does not see have a score of 0
  bool soft;  // whether they have `alpha` times their score
  Tokens q, k, v;
  const float* bias;  // (M, S, S) by key minus query, or null
  int64_t table_side;
  const float* alpha;  // (M)
  Tokens out, grad, dq, dk, dv;
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

#define MMATTN_KERNELS "local_attn_cpu_kernels.inl"
#include "for_each_instruction_set.inl"

namespace mmattn {
namespace {

// An axis and the memory of its ranges.
class Ranges {
 public:
  // Windows that cross a border are clipped there, or shifted into the map.
  Ranges(int64_t side, int64_t window, bool clipped) : numbers_(4 * side) {
    int64_t* const first_key = numbers_.data();
    int64_t *const num_keys = first_key + side, *const first_query = num_keys + side;
    int64_t* const num_queries = first_query + side;
    const int64_t radius = window / 2, zero = 0;
    for (int64_t i = 0; i < side; ++i) {
      int64_t first = i - radius, last = i + radius;
      if (!clipped) {
        first = std::clamp(first, zero, side - window);
        last = first + window - 1;
      }
      first_key[i] = std::max(first, zero);
      num_keys[i] = std::min(last, side - 1) - first_key[i] + 1;
      for (int64_t key = first_key[i]; key < first_key[i] + num_keys[i]; ++key) {
        first_query[key] = num_queries[key] == 0 ? i : first_query[key];
        ++num_queries[key];
      }
      max_keys = std::max(max_keys, num_keys[i]);
    }
    max_queries = *std::max_element(num_queries, num_queries + side);
    axis = {side, first_key, num_keys, first_query, num_queries};
  }

  Axis axis;
  int64_t max_keys = 0, max_queries = 0;

 private:
  std::vector<int64_t> numbers_;
};

struct Problem {
  Problem(const Tensor& q, const Tensor& k, const Tensor& v,
      const std::optional<Tensor>& bias, const std::optional<Tensor>& alpha,
      const std::vector<int64_t>& grid, int64_t window, int64_t special, bool fill,
      bool clipped, int64_t bands)
      : rows(grid[0], window, clipped),
        columns(grid[1], window, clipped),
        call{q.size(0), q.size(1), q.size(2), q.size(3), special, rows.axis,
            columns.axis, std::max(rows.max_keys, columns.max_keys), rows.max_queries,
            bands, (grid[0] + bands - 1) / bands, fill && !alpha, alpha.has_value(),
            tokens_of(q), tokens_of(k), tokens_of(v), floats_of(bias),
            bias ? bias->size(1) : 0, floats_of(alpha)} {}

  Ranges rows, columns;
  LocalCall call;
};

void forward(Tensor q, Tensor k, Tensor v, std::optional<Tensor> bias,
    std::optional<Tensor> alpha, std::vector<int64_t> grid, int64_t window,
    int64_t special, bool fill, bool clipped, int64_t bands, Tensor out, Tensor lse,
    Tensor total, std::optional<Tensor> dense_lse) {
  Problem problem(q, k, v, bias, alpha, grid, window, special, fill, clipped, bands);
  LocalCall& call = problem.call;
  call.out = tokens_of(out);
  call.lse = floats_of(lse);
  call.total = floats_of(total);
  call.dense_lse = floats_of(dense_lse);
  if (call.fill) {
    run(call, call.B * call.M, MMATTN_DISPATCH(local_sums));
  }
  run(call, call.B * call.M * (bands + 1), MMATTN_DISPATCH(local_forward));
}

void backward(Tensor grad, Tensor lse, Tensor q, Tensor k, Tensor v,
    std::optional<Tensor> bias, std::optional<Tensor> alpha, std::vector<int64_t> grid,
    int64_t window, int64_t special, bool fill, bool clipped, int64_t bands, Tensor dq,
    Tensor dk, Tensor dv, std::optional<Tensor> dbias, std::optional<Tensor> dalpha,
    Tensor total, Tensor dtotal, Tensor dspecial, std::optional<Tensor> delta,
    std::optional<Tensor> dense_lse) {
  Problem problem(q, k, v, bias, alpha, grid, window, special, fill, clipped, bands);
  LocalCall& call = problem.call;
  call.grad = tokens_of(grad);
  call.lse = floats_of(lse);
  call.dq = tokens_of(dq);
  call.dk = tokens_of(dk);
  call.dv = tokens_of(dv);
  call.dbias = floats_of(dbias);
  call.dalpha = floats_of(dalpha);
  call.total = floats_of(total);
  call.dtotal = floats_of(dtotal);
  call.dspecial = floats_of(dspecial);
  call.delta = floats_of(delta);
  call.dense_lse = floats_of(dense_lse);
  if (call.fill) {
    run(call, call.B * call.M, MMATTN_DISPATCH(local_sums));
  }
  run(call, call.B * call.M * bands, MMATTN_DISPATCH(local_backward));
  if (special > 0 || call.soft) {
    run(call, call.B * call.M, MMATTN_DISPATCH(local_backward_dense));
  }
}

}  // namespace
}  // namespace mmattn

STABLE_TORCH_LIBRARY_IMPL(mmattn_extension, CPU, library) {
  library.impl("local_attn_forward", TORCH_BOX(&mmattn::forward));
  library.impl("local_attn_backward", TORCH_BOX(&mmattn::backward));
}
