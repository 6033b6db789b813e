// The backward of deformable attention, a head at a time.
namespace {

// The gradients of a head and some rows of its queries. A strip of columns is taken at
// a time. For a key, the gradients of scores are first added up by the table's row, and
// then multiplied by the interpolation along columns, once for each row of the table.
template <class T, bool kPairs>
class Gradients {
 public:
  explicit Gradients(const DeformableCall& call) : call_(call) {}

  void run(int64_t task) {
    const int64_t m = task % call_.M, b = task / call_.M % call_.B;
    const int64_t split = task / call_.M / call_.B, K = call_.K;
    const int64_t first = call_.H * split / call_.splits;
    const int64_t last = call_.H * (split + 1) / call_.splits;
    read_head(b, m);
    float* const dplaces = call_.grad_positions + task * K * 2;
    std::memset(dplaces, 0, K * 2 * sizeof(float));
    for (int64_t column = 0; column < call_.W; column += kTile) {
      const int64_t count = call_.W - column < kTile ? call_.W - column : kTile;
      read_strip(b, m, first, last, column, count);
      for (int64_t s = 0; s < K; s += kBackwardBlock) {
        const int64_t keys = K - s < kBackwardBlock ? K - s : kBackwardBlock;
        run_keys(s, keys, first, last, column, count);
        for (int64_t key = 0; key < keys && !call_.is_plain(); ++key) {
          add_gradients_of_bias(
              s + key, key, first, last, column, count, dplaces + 2 * (s + key));
        }
      }
      write_strip(b, m, first, last, column, count);
    }
    for (int64_t s = 0; s < K; ++s) {
      std::memcpy(
          call_.grad_k + (task * K + s) * D, dkeys_ + s * DP, D * sizeof(float));
      std::memcpy(
          call_.grad_v + (task * K + s) * D, dvalues_ + s * DP, D * sizeof(float));
    }
    float* const dtable = call_.grad_table + task * call_.Th * call_.Tw;
    for (int64_t i = 0; i < call_.Th; ++i) {
      for (int64_t j = 0; j < call_.Tw; ++j) {
        dtable[i * call_.Tw + j] = dtable_[(j + 2) * height_ + i + 2];
      }
    }
  }

 private:
  // Returns how many rows of the table the queries of a column lie in.
  int64_t most_rows_of_table() const {
    const double rows = head_.y.step * rows_;
    return rows < call_.Th ? static_cast<int64_t>(rows) + 3 : call_.Th + 3;
  }

  void read_head(int64_t b, int64_t m) {
    head_.read(b, m);
    head_.pack_rows(call_.v, b, m, values_);
    head_.read_rows(call_.k, b, m, key_rows_);
    const float* const table = call_.table + m * call_.Th * call_.Tw;
    for (int64_t i = 0; i < call_.Th; ++i) {
      for (int64_t j = 0; j < call_.Tw; ++j) {
        table_[(j + 2) * height_ + i + 2] = table[i * call_.Tw + j];
      }
    }
    dkeys_.fill(0);
    dvalues_.fill(0);
    dtable_.fill(0);
  }

  // Reads token i of a tile, as a row, which may be half of pairs, and as a column.
  void read_token(const T* from, int64_t i, float* rows, float* columns) {
    head_.read_row_of(from, i, rows);
    head_.read_token(from, row_);
    for (int64_t d = 0; d < head_.depth; ++d) {
      columns[d * kTile + i] = row_[d];
    }
  }

  void read_strip(int64_t b, int64_t m, int64_t first, int64_t last, int64_t column,
      int64_t count) {
    dqueries_.fill(0);
    for (int64_t row = first; row < last; ++row) {
      const int64_t r = row - first, query = row * call_.W + column;
      for (int64_t i = 0; i < kTile; ++i) {
        if (i >= count) {  // shares of zero, whatever a tile before left here
          lse_[r * kTile + i] = 3e38f;
          delta_[r * kTile + i] = 0;
          continue;
        }
        const int64_t n = query + i;
        const T* const grad =
            head_.tokens(call_.grad, b, m) + n * call_.grad.strides[1];
        read_token(head_.tokens(call_.q, b, m) + n * call_.q.strides[1], i,
            query_rows_ + r * kTileRows * DP, queries_ + r * head_.depth * kTile);
        read_token(
            grad, i, grad_rows_ + r * kTileRows * DP, grads_ + r * head_.depth * kTile);
        read_row(grad, 1, D, row_);
        const float* const statistics = call_.statistics_of(b, m, n);
        float delta = 0;
        for (int64_t d = 0; d < D; ++d) {
          delta += statistics[1 + d] * row_[d];
        }
        lse_[r * kTile + i] = statistics[0];
        delta_[r * kTile + i] = delta;
      }
    }
  }

  void write_strip(int64_t b, int64_t m, int64_t first, int64_t last, int64_t column,
      int64_t count) {
    T* const dq = static_cast<T*>(call_.grad_q.data) + b * call_.grad_q.strides[0] +
        m * call_.grad_q.strides[2];
    for (int64_t row = first; row < last; ++row) {
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t d = 0; d < D; ++d) {
          row_[d] = scale_ * dqueries_[((row - first) * DP + d) * kTile + i];
        }
        write_row(row_, D, dq + (row * call_.W + column + i) * call_.grad_q.strides[1]);
      }
    }
  }

  void run_keys(int64_t s, int64_t keys, int64_t first, int64_t last, int64_t column,
      int64_t count) {
    const int64_t vectors = num_vectors(count), padded = round_up(keys, kRows);
    const int64_t depth = (count + kStep - 1) / kStep;  // of products over queries
    Places tops, rows;
    tops.find(head_.y, first, head_.ys + s, keys, -2, call_.Th);
    std::memset(sums_, 0, keys * window_ * kTile * sizeof(float));
    std::memset(shared_sums_, 0, keys * window_ * kTile * sizeof(float));
    for (int64_t row = first; row < last; ++row) {
      const int64_t r = row - first;
      const Segment segment{row, column, 0, count};
      const float* const queries = queries_ + r * head_.depth * kTile;
      head_.make_scores(s, keys, &segment, 1, queries, vectors, shares_, scale_);
      for (int64_t v = 0; v < vectors; ++v) {
        const Floats lse = load(lse_ + r * kTile + v * kLanes);
        for (int64_t i = 0; i < keys; ++i) {
          float* const share = shares_ + i * kPitch + v * kLanes;
          const Floats x = load(share) - lse;
          store(share, kPairs ? coarse_exp(x) : exp(x));
          store(dscores_ + i * kPitch + v * kLanes, Floats{});
        }
      }
      add_product_of<kPitch / kStep, true, kPairs>(padded, DP / kLanes,
          by_queries(shares_, keys, vectors), 1, grad_rows_ + r * kTileRows * DP, DP,
          depth, dvalues_ + s * DP, DP);
      head_.multiply_rows(
          values_, s, keys, grads_ + r * head_.depth * kTile, vectors, dscores_, 1);
      rows.find(head_.y, row, head_.ys + s, keys, -2, call_.Th);
      for (int64_t i = 0; i < keys; ++i) {
        const int64_t line = rows.index[i] - tops.index[i];
        add_to_row_of_table(i, line, rows.share[i], delta_ + r * kTile, vectors);
      }
      add_product_of<kPitch / kStep, true, kPairs>(padded, DP / kLanes,
          by_queries(dscores_, keys, vectors), 1, query_rows_ + r * kTileRows * DP, DP,
          depth, dkeys_ + s * DP, DP, scale_);
      if constexpr (kPairs) {
        pair_keys(keys, vectors);
      }
      add_product_of<1, true, kPairs>(DP, vectors, key_rows_ + s / kStep * DP, DP,
          dscores_, kPitch, (keys + kStep - 1) / kStep, dqueries_ + r * DP * kTile,
          kTile);
    }
  }

  // Returns maps (keys, kPitch / kStep), in which neighboring queries are pairs.
  const float* by_queries(const float* maps, int64_t keys, int64_t vectors) {
    if constexpr (!kPairs) {
      return maps;
    }
    for (int64_t i = 0; i < keys; ++i) {
      for (int64_t v = 0; v < vectors; ++v) {
        write_pairs(load(maps + i * kPitch + v * kLanes),
            words_ + (i * kPitch + v * kLanes) / kStep);
      }
    }
    return words_;
  }

  // Pairs the gradients of scores of two keys, in the first half of their rows.
  void pair_keys(int64_t keys, int64_t vectors) {
    for (int64_t i = 0; i < keys; i += 2) {
      for (int64_t lane = 0; lane < vectors * kLanes; lane += kLanes) {
        const float* const from = dscores_ + i * kPitch + lane;
        store(dscores_ + i / 2 * kPitch + lane,
            pair(load(from), i + 1 < keys ? load(from + kPitch) : Floats{}));
      }
    }
  }

  Place row_of_table(int64_t key, int64_t row) const {
    return place_of(head_.y.point(row, head_.ys[key]), -2, call_.Th);
  }

  // Multiplies the gradients by the shares, and adds them to the gradients of the row of the
  // table that a row of queries lies in.
  MMATTN_INLINE void add_to_row_of_table(
      int64_t i, int64_t line, float next, const float* deltas, int64_t vectors) {
    float* const sums = sums_ + (i * window_ + line) * kTile;
    float* const shared = shared_sums_ + (i * window_ + line) * kTile;
    for (int64_t lane = 0; lane < vectors * kLanes; lane += kLanes) {
      float* const dscore = dscores_ + i * kPitch + lane;
      const Floats change = load(dscore) - load(deltas + lane);
      const Floats ds = change * load(shares_ + i * kPitch + lane);
      store(dscore, ds);
      if (call_.is_plain()) {
        continue;
      }
      store(sums + lane, load(sums + lane) + ds);
      store(shared + lane, load(shared + lane) + next * ds);
    }
  }

  void add_gradients_of_bias(int64_t key, int64_t i, int64_t first, int64_t last,
      int64_t column, int64_t count, float* dplace) {
    if (first == last) {
      return;
    }
    const int64_t top = row_of_table(key, first).index;
    const int64_t lines = row_of_table(key, last - 1).index - top + 1;
    const float* const sums = sums_ + i * window_ * kTile;
    const float* const shared = shared_sums_ + i * window_ * kTile;
    // Columns begin with a zero, for the shift by one row.
    for (int64_t n = 0; n < count; ++n) {
      for (int64_t line = 0; line < lines; ++line) {
        columns_[n * line_ + line + 1] = sums[line * kTile + n];
        shared_columns_[n * line_ + line + 1] = shared[line * kTile + n];
      }
      for (int64_t line = lines; line < round_up(lines + 1, kLanes); ++line) {
        columns_[n * line_ + line + 1] = shared_columns_[n * line_ + line + 1] = 0;
      }
    }
    Floats dx{}, dy{};
    for (int64_t n = 0; n < count; ++n) {
      const Place place =
          place_of(head_.x.point(column + n, head_.xs[key]), -2, call_.Tw);
      const float* const low = table_ + (place.index + 2) * height_ + top + 2;
      float* const dlow = dtable_ + (place.index + 2) * height_ + top + 2;
      for (int64_t line = 0; line <= lines; line += kLanes) {
        const float* const shared_column = shared_columns_ + n * line_ + line;
        const Floats sum = load(columns_ + n * line_ + line + 1);
        const Floats d = sum - load(shared_column + 1) + load(shared_column);
        const Floats a = load(low + line);
        const Floats change = load(low + height_ + line) - a;
        const Floats next = load(low + line + 1);
        const Floats next_change = load(low + height_ + line + 1) - next;
        dx += d * change;
        dy += sum * (next - a + place.share * (next_change - change));
        store(dlow + line, load(dlow + line) + (1 - place.share) * d);
        float* const dhigh = dlow + height_ + line;
        store(dhigh, load(dhigh) + place.share * d);
      }
    }
    dplace[0] += static_cast<float>(head_.x.slope()) * sum_lanes(dx);
    dplace[1] += static_cast<float>(head_.y.slope()) * sum_lanes(dy);
  }

  static constexpr int64_t kStep = Head<T, kPairs>::kStep, kTileRows = kTile / kStep;

  const DeformableCall& call_;
  Head<T, kPairs> head_{call_};
  const float scale_ = 1 / std::sqrt(static_cast<float>(call_.D));
  const int64_t D = call_.D, DP = head_.DP;
  const int64_t rows_ = (call_.H + call_.splits - 1) / call_.splits;
  const int64_t window_ = most_rows_of_table();
  const int64_t line_ = round_up(window_ + 1, kLanes) + kLanes;
  const int64_t height_ = round_up(call_.Th + 4 + line_, kLanes);
  const int64_t keys_ = round_up(call_.K, kBlock);
  Buffer<float> queries_{rows_ * head_.depth * kTile};
  Buffer<float> grads_{rows_ * head_.depth * kTile};
  Buffer<float> query_rows_{rows_ * kTileRows * DP};
  Buffer<float> grad_rows_{rows_ * kTileRows * DP};
  Buffer<float> dqueries_{rows_ * DP * kTile}, lse_{rows_ * kTile};
  Buffer<float> delta_{rows_ * kTile}, key_rows_{keys_ * DP}, values_{keys_ * D};
  Buffer<float> dkeys_{keys_ * DP}, dvalues_{keys_ * DP};
  Buffer<float> shares_{kBackwardBlock * kPitch};
  Buffer<float> dscores_{kBackwardBlock * kPitch};
  Buffer<float> words_{kBackwardBlock * kPitch / kStep};
  // By row of the table: gradients of scores, and these times the share of the next row.
  Buffer<float> sums_{kBackwardBlock * window_ * kTile};
  Buffer<float> shared_sums_{kBackwardBlock * window_ * kTile};
  Buffer<float> columns_{kTile * line_}, shared_columns_{kTile * line_};
  // Tables (Tw + 4, height), with margins of two.
  Buffer<float> table_{(call_.Tw + 4) * height_}, dtable_{(call_.Tw + 4) * height_};
  Buffer<float> row_{DP};
};

// Computes some tasks of splits * B * M, which write to different places.
template <class T, bool kPairs>
void differentiate(const DeformableCall& call, int64_t begin, int64_t end) {
  Gradients<T, kPairs> gradients(call);
  for (int64_t task = begin; task < end; ++task) {
    gradients.run(task);
  }
}

}  // namespace
