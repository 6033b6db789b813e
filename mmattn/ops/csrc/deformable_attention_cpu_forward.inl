// The forward of deformable attention, a tile of queries at a time.
namespace {

// The attention of a tile of queries, with an online softmax.
template <class T, bool kPairs>
class Attention {
 public:
  explicit Attention(const DeformableCall& call) : head(call) {}

  // Attends from `count` queries from `first` on. Afterwards `values` holds the output
  // (DP, kTile), `top` and `total` the statistics of its softmax.
  void run(int64_t b, int64_t m, int64_t first, int64_t count) {
    const DeformableCall& call = head.call;
    const int64_t vectors = num_vectors(count);
    read_queries(b, m, first, count);
    int num_segments = 0;
    for (int64_t lane = 0; lane < count;) {
      const int64_t column = (first + lane) % call.W;
      const int64_t rest = call.W - column, left = count - lane;
      segments_[num_segments] = {
          (first + lane) / call.W, column, lane, rest < left ? rest : left};
      lane += segments_[num_segments++].count;
    }
    values.fill(0);
    total.fill(0);
    top.fill(-kInfinity);
    for (int64_t s = 0; s < call.K; s += kBlock) {
      const int64_t keys = call.K - s < kBlock ? call.K - s : kBlock;
      head.make_scores(
          s, keys, segments_, num_segments, queries, vectors, scores_, scale);
      for (int64_t v = 0; v < vectors; ++v) {
        exponentiate(keys, s == 0, v * kLanes);
      }
      add_product_of<1, true, kPairs>(head.DP, vectors,
          head.values + s / kStep * head.DP, head.DP, scores_, kPitch,
          (keys + kStep - 1) / kStep, values, kTile);
    }
    for (int64_t v = 0; v < vectors; ++v) {
      const Floats factor = 1 / load(total + v * kLanes);
      for (int64_t d = 0; d < head.DP; ++d) {
        float* const to = values + d * kTile + v * kLanes;
        store(to, load(to) * factor);
      }
    }
  }

  void write(int64_t b, int64_t m, int64_t first, int64_t count) {
    const DeformableCall& call = head.call;
    T* const out = static_cast<T*>(call.out.data) + b * call.out.strides[0] +
        m * call.out.strides[2];
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t d = 0; d < head.D; ++d) {
        row_[d] = values[d * kTile + i];
      }
      write_row(row_, head.D, out + (first + i) * call.out.strides[1]);
      float* const statistics = call.statistics_of(b, m, first + i);
      statistics[0] = top[i] + std::log(total[i]);
      std::memcpy(statistics + 1, row_, head.D * sizeof(float));
    }
  }

  Head<T, kPairs> head;
  Buffer<float> queries{head.depth * kTile}, values{head.DP * kTile};
  Buffer<float> top{kTile}, total{kTile};

 private:
  static constexpr int64_t kStep = Head<T, kPairs>::kStep;

  void read_queries(int64_t b, int64_t m, int64_t first, int64_t count) {
    const DeformableCall& call = head.call;
    const T* const from = head.tokens(call.q, b, m) + first * call.q.strides[1];
    for (int64_t i = 0; i < count; ++i) {
      head.read_token(from + i * call.q.strides[1], row_);
      for (int64_t d = 0; d < head.depth; ++d) {
        queries[d * kTile + i] = row_[d];
      }
    }
  }

  // Replaces a vector of each score by its exponential, or of two scores by the pair,
  // and updates the statistics.
  MMATTN_INLINE void exponentiate(int64_t keys, bool is_first, int64_t lane) {
    const Floats old = load(top + lane);
    const float* const scores = scores_ + lane;
    Floats largest = maximum(load(scores + (keys - 1) * kPitch), old);
    for (int64_t s = 1; s < keys; s += 2) {  // two, as a step waits for the one before
      const float* const score = scores + s * kPitch;
      largest = maximum(maximum(load(score - kPitch), load(score)), largest);
    }
    Floats sum{};
    if (keys % kStep) {
      store(scores_ + keys * kPitch + lane, broadcast(-kInfinity));  // of no key
    }
    for (int64_t s = 0; s < keys; s += kStep) {
      const float* const score = scores_ + s * kPitch + lane;
      Floats share;
      if constexpr (kPairs) {
        share = pair_exp(load(score) - largest, load(score + kPitch) - largest);
        sum = add_pairs(sum, ones, share);
      } else {
        share = exp(load(score) - largest);
        sum += share;
      }
      store(scores_ + s / kStep * kPitch + lane, share);
    }
    if (is_first) {
      store(total + lane, sum);
    } else {
      const Floats factor = exp(old - largest);
      store(total + lane, load(total + lane) * factor + sum);
      for (int64_t d = 0; d < head.DP; ++d) {
        float* const to = values + d * kTile + lane;
        store(to, load(to) * factor);
      }
    }
    store(top + lane, largest);
  }

  const float scale = 1 / std::sqrt(static_cast<float>(head.D));
  const float ones = pair(broadcast(1), broadcast(1))[0];
  Segment segments_[kTile];
  Buffer<float> scores_{kBlock * kPitch}, row_{head.DP};
};

// Computes some tiles of all images and heads.
template <class T, bool kPairs>
void attend(const DeformableCall& call, int64_t begin, int64_t end) {
  const int64_t N = call.num_queries(), tiles = (N + kTile - 1) / kTile;
  Attention<T, kPairs> attention(call);
  for (int64_t task = begin; task < end; ++task) {
    const int64_t tile = task % tiles, m = task / tiles % call.M;
    const int64_t b = task / tiles / call.M, first = tile * kTile;
    if (task == begin || tile == 0) {
      attention.head.read(b, m);
    }
    const int64_t count = N - first < kTile ? N - first : kTile;
    attention.run(b, m, first, count);
    attention.write(b, m, first, count);
  }
}

}  // namespace
