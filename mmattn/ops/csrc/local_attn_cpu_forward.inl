// The forward of attention to neighbors.
namespace {

// Computes the rows [first, last) of a head's map, forward.
template <int kVectors>
void forward_rows(const Head& head, int64_t first, int64_t last) {
  const LocalCall& call = head.call;
  Ring ring(head, call.k, 1, call.v, call.max_keys);
  Window window(head, ring);
  const int64_t W = call.columns.side, width = head.width;
  Buffer<float> q(W * width), scores(window.size() + kLanes), sums(width), total(width);
  if (call.fill) {
    const float* const from = call.total + (head.b * call.M + head.m) * head.D;
    std::memcpy(total, from, head.D * sizeof(float));
  }
  int64_t read = call.rows.first_key[first];
  for (int64_t y = first; y < last; ++y) {
    for (; read < call.rows.first_key[y] + call.rows.num_keys[y]; ++read) {
      ring.read_map_row(read);
    }
    window.start_row(y);
    read_tokens(
        call.q, head.b, head.token(y, 0), W, head.m, head.D, head.scale, width, q);
    for (int64_t x = 0; x < W; ++x) {
      const int64_t n = head.token(y, x);
      window.move(x);
      const int64_t count = window.count;
      float* const s = scores;
      find_scores<kVectors>(head, window, q + x * width, s);
      float top = largest_of(s, count);
      float low = 0;  // the weight of a token outside, or of the dense pass
      Floats all = {};
      if (call.soft) {
        const float dense = call.dense_lse[head.rows + n];
        top = dense > top ? dense : top;
        for (int64_t j = 0; j < count; j += kLanes) {
          const Floats score = load(s + j);
          // The -inf of the padding is no product: alpha may be 0.
          const Floats weight = exp(score - top) - exp(score * head.alpha - top);
          store(s + j, score == -kInfinity ? Floats{} : weight);
          all += load(s + j);
        }
        low = exp(broadcast(dense - top))[0];
        read_tokens(call.out, head.b, n, 1, head.m, head.D, low, 0, sums);
      } else {
        top = window.others > 0 && top < 0 ? 0 : top;
        low = window.others > 0 ? exp(broadcast(-top))[0] : 0;
        for (int64_t j = 0; j < count; j += kLanes) {
          const Floats weight = exp(load(s + j) - top);
          all += weight;
          store(s + j, weight - low);
        }
        for (int64_t i = 0; i < width; i += kLanes) {
          store(sums + i, load(total + i) * low);
        }
      }
      const float z = sum_lanes(all) + (call.soft ? low : low * window.others);
      const float one_over_z = 1 / z;
      add_rows<kVectors>(s, window.keys, width, count, head.vectors, sums);
      for (int64_t i = 0; i < width; i += kLanes) {
        store(sums + i, load(sums + i) * one_over_z);
      }
      call.lse[head.rows + n] = top + std::log(z);
      write_token(sums, head.D, call.out, head.b, n, head.m);
    }
  }
}

// Whether the correction of a soft mask has canceled too many digits of a row.
MMATTN_INLINE bool is_canceled(float dense_lse, float lse) {
  return !(dense_lse - lse < std::log(kCanceled));
}

// Reads keys and values of tokens in chunks and calls `visit(key, value, token)`.
template <class Visit>
MMATTN_INLINE void for_each_token(const Head& head, float* scratch, Visit visit) {
  const LocalCall& call = head.call;
  for (int64_t first = 0; first < call.N; first += kChunk) {
    const int64_t count = call.N - first < kChunk ? call.N - first : kChunk;
    const int64_t step = 2 * head.width;
    read_tokens(call.k, head.b, first, count, head.m, head.D, 1, step, scratch);
    read_tokens(
        call.v, head.b, first, count, head.m, head.D, 1, step, scratch + head.width);
    for (int64_t t = 0; t < count; ++t) {
      visit(scratch + t * step, scratch + t * step + head.width, first + t);
    }
  }
}

// Whether token j is outside the soft mask of patch n.
MMATTN_INLINE bool is_outside(const LocalCall& call, int64_t n, int64_t j) {
  if (n < call.special || j < call.special) {
    return false;
  }
  const int64_t W = call.columns.side;
  const int64_t query = n - call.special, key = j - call.special;
  const int64_t y = key / W - call.rows.first_key[query / W];
  const int64_t x = key % W - call.columns.first_key[query % W];
  return y < 0 || y >= call.rows.num_keys[query / W] || x < 0 ||
      x >= call.columns.num_keys[query % W];
}

// Computes the row of a token that attends to all, forward.
void forward_dense_row(const Head& head, int64_t n) {
  const LocalCall& call = head.call;
  Buffer<float> q(head.width), sums(head.width), scratch(kChunk * 2 * head.width);
  Buffer<float> s(call.N + kLanes);
  read_tokens(call.q, head.b, n, 1, head.m, head.D, head.scale, 0, q);
  for_each_token(head, scratch, [&](const float* key, const float*, int64_t j) {
    const float score = product(q, key, head.vectors);
    s[j] = is_outside(call, n, j) ? score * head.alpha : score;
  });
  for (int64_t j = call.N; j % kLanes; ++j) {
    s[j] = -kInfinity;
  }
  const float top = largest_of(s, call.N);
  Floats all = {};
  for (int64_t j = 0; j < call.N; j += kLanes) {
    const Floats weight = exp(load(s + j) - top);
    store(s + j, weight);
    all += weight;
  }
  const float z = sum_lanes(all);
  for_each_token(head, scratch, [&](const float*, const float* value, int64_t j) {
    add_row(s[j] / z, value, head.vectors, sums);
  });
  call.lse[head.rows + n] = top + std::log(z);
  write_token(sums, head.D, call.out, head.b, n, head.m);
}

// Sums all values of a head, and in the backward the gradients of that sum.
void sum_values(const Head& head) {
  const LocalCall& call = head.call;
  const int64_t at = (head.b * call.M + head.m) * head.D;
  Buffer<float> row(head.width), sums(head.width), grads(head.width);
  for (int64_t n = 0; n < call.N; ++n) {
    read_tokens(call.v, head.b, n, 1, head.m, head.D, 1, 0, row);
    add_row(1, row, head.vectors, sums);
    if (call.dtotal != nullptr && n >= call.special) {
      const int64_t y = (n - call.special) / call.columns.side;
      const int64_t x = (n - call.special) % call.columns.side;
      const int64_t seen =
          call.special + call.rows.num_keys[y] * call.columns.num_keys[x];
      if (seen < call.N) {
        const float u = exp(broadcast(-call.lse[head.rows + n]))[0];
        read_tokens(call.grad, head.b, n, 1, head.m, head.D, 1, 0, row);
        add_row(u, row, head.vectors, grads);
      }
    }
  }
  std::memcpy(call.total + at, sums, head.D * sizeof(float));
  if (call.dtotal != nullptr) {
    std::memcpy(call.dtotal + at, grads, head.D * sizeof(float));
  }
}

}  // namespace
