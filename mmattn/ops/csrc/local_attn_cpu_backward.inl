// The backward of attention to neighbors.
namespace {

// Computes the gradients of the rows [first, last) of a head's map: of its
// queries, and of its keys from all queries that see them.
template <int kVectors>
void backward_rows(const Head& head, int64_t band, int64_t first, int64_t last) {
  const LocalCall& call = head.call;
  const int64_t W = call.columns.side, D = head.D, width = head.width, M = call.M;
  const int64_t step = 2 * width, vectors = head.vectors;
  Ring ring(head, call.k, 1, call.v, call.max_keys);
  Ring queries(head, call.q, head.scale, call.grad, call.max_queries);
  Window window(head, ring);
  const int64_t size = window.size();
  // For each query of the ring: gradients of scores, then weights less low.
  Buffer<float> grads(call.max_queries * W * 2 * size);
  Buffer<float> sums(width), dvalue(width);
  Buffer<float> total(width), dtotal(width), special(call.special * step);
  const int64_t S = call.table_side;
  float* const dbias = call.dbias == nullptr
      ? nullptr
      : call.dbias + ((head.b * call.bands + band) * M) * S * S;
  if (call.fill) {
    const int64_t at = (head.b * M + head.m) * D;
    std::memcpy(total, call.total + at, D * sizeof(float));
    std::memcpy(dtotal, call.dtotal + at, D * sizeof(float));
  }
  float dalpha = 0;
  const int64_t begin = call.rows.first_query[first];
  const int64_t end = call.rows.first_query[last - 1] + call.rows.num_queries[last - 1];
  int64_t read = call.rows.first_key[begin], done = first;
  for (int64_t y = begin; y < end; ++y) {
    for (; read < call.rows.first_key[y] + call.rows.num_keys[y]; ++read) {
      ring.read_map_row(read);
    }
    queries.read_map_row(y);
    window.start_row(y);
    const bool is_own = y >= first && y < last;  // others' are of the bands beside
    for (int64_t x = 0; x < W; ++x) {
      const int64_t n = head.token(y, x);
      window.move(x);
      const int64_t count = window.count;
      const float* const q = queries.row(y) + x * step;
      float* const da = grads + ((y % call.max_queries) * W + x) * 2 * size;
      float* const s = da + size;
      find_scores<kVectors>(head, window, q, s);
      products<kVectors>(q + width, window.keys, width, count, vectors, da);
      hide_padding(da, count, 0);
      const float lse = call.lse[head.rows + n];
      if (call.soft) {
        const float delta = call.delta[head.rows + n];
        Floats share = {}, taken = {};
        for (int64_t j = 0; j < count; j += kLanes) {
          const Floats score = load(s + j);
          const Floats p = exp(score - lse);
          Floats dense = exp(score * head.alpha - lse);
          dense = score == -kInfinity ? Floats{} : dense;
          const Floats change = load(da + j) - delta;
          share += score == -kInfinity ? Floats{} : dense * change * score;
          taken += dense - p;
          store(da + j, (p - dense * head.alpha) * change);
          store(s + j, p - dense);
        }
        const bool canceled = !(1 + sum_lanes(taken) < kCanceled);
        if (canceled) {
          std::memset(s, 0, count * sizeof(float));
          std::memset(da, 0, count * sizeof(float));
        }
        if (is_own) {
          dalpha -= canceled ? 0 : sum_lanes(share);
          call.dense_lse[head.rows + n] = canceled ? kInfinity : lse;
        }
      } else {
        const float u = window.others > 0 ? exp(broadcast(-lse))[0] : 0;
        Floats all = {};
        for (int64_t j = 0; j < count; j += kLanes) {
          const Floats p = exp(load(s + j) - lse);
          all += (p - u) * load(da + j);
          store(s + j, p);
        }
        float delta = sum_lanes(all);
        if (window.others > 0) {
          delta += u * product(q + width, total, vectors);
        }
        for (int64_t j = 0; j < count; j += kLanes) {
          const Floats p = load(s + j);
          store(da + j, p * (load(da + j) - delta));
          store(s + j, p - u);
        }
      }
      const float *const ds = da, *const weights = s;
      if (!is_own) {
        continue;
      }
      sums.fill(0);
      add_rows<kVectors>(ds, window.keys, 0, count, vectors, sums);
      for (int64_t i = 0; i < width; i += kLanes) {
        store(sums + i, load(sums + i) * head.scale);
      }
      write_token(sums, D, call.dq, head.b, n, head.m);
      if (dbias != nullptr) {
        const float* share = ds;
        window.for_each_entry([&](int64_t entry) { dbias[entry] += *share++; });
      }
      for (int64_t i = 0; i < call.special; ++i) {
        const int64_t j = window.count_in_map() + i;
        add_row(ds[j], q, vectors, special + i * step);
        add_row(weights[j], q + width, vectors, special + i * step + width);
      }
    }
    for (; done < last &&
        call.rows.first_query[done] + call.rows.num_queries[done] <= y + 1;
        ++done) {
      for (int64_t x = 0; x < W; ++x) {
        constexpr int kSums = kVectors ? kVectors : 1;
        const int64_t first_y = call.rows.first_query[done];
        const int64_t first_x = call.columns.first_query[x];
        for (int64_t at = 0; at < (kVectors ? 1 : width); at += kLanes) {
          Floats key_sums[kSums] = {}, value_sums[kSums] = {};
          for (int64_t i = first_y; i < first_y + call.rows.num_queries[done]; ++i) {
            const float* const query_row = queries.row(i) + at;
            const float* const row = grads + (i % call.max_queries) * W * 2 * size;
            const int64_t key_y = done - call.rows.first_key[i];
            for (int64_t j = first_x; j < first_x + call.columns.num_queries[x]; ++j) {
              const float* const ds = row + j * 2 * size +
                  key_y * call.columns.num_keys[j] + x - call.columns.first_key[j];
              const float* const q = query_row + j * step;
              for (int c = 0; c < kSums; ++c) {
                key_sums[c] += load(q + c * kLanes) * ds[0];
                value_sums[c] += load(q + width + c * kLanes) * ds[size];
              }
            }
          }
          for (int c = 0; c < kSums; ++c) {
            store(sums + at + c * kLanes, key_sums[c]);
            store(dvalue + at + c * kLanes, value_sums[c]);
          }
        }
        add_row(1, dtotal, vectors, dvalue);
        const int64_t n = head.token(done, x);
        write_token(sums, D, call.dk, head.b, n, head.m);
        write_token(dvalue, D, call.dv, head.b, n, head.m);
      }
    }
  }
  float* to = call.dspecial +
      ((head.b * M + head.m) * call.bands + band) * call.special * 2 * D;
  for (int64_t i = 0; i < 2 * call.special; ++i, to += D) {
    std::memcpy(to, special + i * width, D * sizeof(float));
  }
  if (call.soft) {
    call.dalpha[(head.b * M + head.m) * (call.bands + 1) + band] = dalpha;
  }
}

// Adds the gradients of the row of a token that attends to all, and returns the one of
// alpha. The gradients of keys and values are in float32.
float backward_dense_row(const Head& head, int64_t n) {
  const LocalCall& call = head.call;
  const int64_t width = head.width, vectors = head.vectors, D = head.D;
  Buffer<float> q(width), g(width), sums(width), scratch(kChunk * 2 * width);
  Buffer<float> s(call.N), p(call.N + kLanes), da(call.N);
  read_tokens(call.q, head.b, n, 1, head.m, D, head.scale, 0, q);
  read_tokens(call.grad, head.b, n, 1, head.m, D, 1, 0, g);
  float delta = 0, dalpha = 0;
  for_each_token(head, scratch, [&](const float* key, const float* value, int64_t j) {
    s[j] = product(q, key, vectors);
    p[j] = is_outside(call, n, j) ? s[j] * head.alpha : s[j];
    da[j] = product(g, value, vectors);
  });
  for (int64_t j = 0; j < call.N; j += kLanes) {
    store(p + j, exp(load(p + j) - call.lse[head.rows + n]));
  }
  for (int64_t j = 0; j < call.N; ++j) {
    delta += p[j] * da[j];
  }
  float* const dk = static_cast<float*>(call.dk.data);
  float* const dv = static_cast<float*>(call.dv.data);
  for_each_token(head, scratch, [&](const float* key, const float*, int64_t j) {
    float ds = p[j] * (da[j] - delta);
    if (is_outside(call, n, j)) {
      dalpha += ds * s[j];
      ds *= head.alpha;
    }
    add_row(ds * head.scale, key, vectors, sums);
    const int64_t at = ((head.b * call.N + j) * call.M + head.m) * D;
    for (int64_t i = 0; i < D; ++i) {
      dk[at + i] += ds * q[i];
      dv[at + i] += p[j] * g[i];
    }
  });
  write_token(sums, D, call.dq, head.b, n, head.m);
  return dalpha;
}

}  // namespace
