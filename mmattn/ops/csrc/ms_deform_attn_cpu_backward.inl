// The backward of the CPU kernels, one head at a time.
namespace {

// Multiplies four pixels by the gradient, and adds it to the pixels' gradients.
template <class A, int kVectors>
MMATTN_INLINE void scatter_vectors(const int64_t (&offsets)[4], const A (&weights)[4],
    const A* grad, const A* value, A* grad_value, Vector<A> (&products)[4]) {
  Vector<A> g[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    g[v] = load_vector<A, A>(grad + v * kLanesOf<A>);
  }
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    if (offsets[k] < 0) {
      continue;
    }
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      products[k] += g[v] * load_vector<A, A>(value + offsets[k] + v * kLanesOf<A>);
      A* target = grad_value + offsets[k] + v * kLanesOf<A>;
      store_vector<A>(target, load_vector<A, A>(target) + weights[k] * g[v]);
    }
  }
}

template <class A>
MMATTN_INLINE void scatter(const int64_t (&offsets)[4], const A (&weights)[4],
    int64_t D, const A* grad, const A* value, A* grad_value, A (&sums)[4]) {
  Vector<A> products[4] = {};
  int64_t c = 0;
  for (; c + 4 * kLanesOf<A> <= D; c += 4 * kLanesOf<A>) {
    scatter_vectors<A, 4>(
        offsets, weights, grad + c, value + c, grad_value + c, products);
  }
  for (; c + 2 * kLanesOf<A> <= D; c += 2 * kLanesOf<A>) {
    scatter_vectors<A, 2>(
        offsets, weights, grad + c, value + c, grad_value + c, products);
  }
  for (; c + kLanesOf<A> <= D; c += kLanesOf<A>) {
    scatter_vectors<A, 1>(
        offsets, weights, grad + c, value + c, grad_value + c, products);
  }
  sum_lanes(products, sums);
  for (int k = 0; c < D && k < 4; ++k) {
    for (int64_t i = c; offsets[k] >= 0 && i < D; ++i) {
      sums[k] += grad[i] * value[offsets[k] + i];
      grad_value[offsets[k] + i] += weights[k] * grad[i];
    }
  }
}

// Computes the backward of one head of some rows.
template <class A, class T>
class Backward {
 public:
  explicit Backward(const Call& call) : call_(call) {}

  void run(int64_t task) {
    const int64_t m = task % sizes_.M, image = task / sizes_.M;
    const int64_t b = image % sizes_.B, split = image / sizes_.B;
    const int64_t first = sizes_.Q * split / call_.splits;
    const int64_t last = sizes_.Q * (split + 1) / call_.splits;
    // A head's pixels side by side, in the type of the arithmetic: they stay in cache.
    const int64_t offset = b * sizes_.value_strides[0] + m * sizes_.value_strides[2];
    for (int64_t s = 0; s < sizes_.S; ++s) {
      load_as<A, T>(call_.value.data, offset + s * sizes_.value_strides[1], sizes_.D,
          value_ + s * sizes_.D);
    }
    grad_value_.fill(0);
    for (int64_t q = first; q < last; ++q) {
      run_query(b * sizes_.Q + q, m);
    }
    for (int64_t s = 0; s < sizes_.S; ++s) {
      mmattn::store(grad_value_ + s * sizes_.D, call_.grad_value.storage,
          ((image * sizes_.S + s) * sizes_.M + m) * sizes_.D, sizes_.D,
          call_.grad_value.data);
    }
  }

 private:
  void run_query(int64_t row, int64_t m) {
    const int64_t item = row * sizes_.M + m, count = samples_.count();
    samples_.read(row, m);
    mmattn::load<A>(
        call_.grad.data, call_.grad.storage, item * sizes_.D, sizes_.D, grad_);
    grad_reference_.fill(0);
    for (int64_t l = 0, i = 0; l < sizes_.L; ++l) {
      for (int64_t p = 0; p < sizes_.P; ++p, ++i) {
        run_sample(i, l);
      }
    }
    if (sizes_.form != Form::kLocations) {
      A mean = 0;
      for (int64_t i = 0; i < count; ++i) {
        mean += samples_.weights[i] * grad_weights_[i];
      }
      for (int64_t i = 0; i < count; ++i) {
        grad_weights_[i] = samples_.weights[i] * (grad_weights_[i] - mean);
      }
      const int64_t numbers = sizes_.reference_levels * sides_;
      store_as<A, A>(
          grad_reference_, item * numbers, numbers, call_.grad_reference.data);
    }
    mmattn::store<A>(grad_weights_, call_.grad_weights.storage, item * count, count,
        call_.grad_weights.data);
    mmattn::store<A>(grad_points_, call_.grad_points.storage, item * count * 2,
        count * 2, call_.grad_points.data);
  }

  void run_sample(int64_t i, int64_t l) {
    const Corners<A>& corners = samples_.corners[i];
    if (!corners.inside) {
      grad_weights_[i] = grad_points_[2 * i] = grad_points_[2 * i + 1] = 0;
      return;
    }
    const A weight = samples_.weights[i];
    int64_t offsets[4];
    A weights[4], products[4];
    for (int k = 0; k < 4; ++k) {
      offsets[k] = corners.pixel[k] * sizes_.D;
      weights[k] = weight * corners.weight(k);
    }
    scatter<A>(offsets, weights, sizes_.D, grad_, value_, grad_value_, products);
    const SampleGradient<A> sample = sample_gradient(corners, products);
    const PointGradient<A> point = point_gradient(sizes_.form, weight * sample.x,
        weight * sample.y, samples_.points[2 * i], samples_.points[2 * i + 1],
        samples_.reference(l), samples_.levels[l], static_cast<A>(sizes_.P));
    grad_weights_[i] = sample.value;
    grad_points_[2 * i] = point.x;
    grad_points_[2 * i + 1] = point.y;
    A* reference = grad_reference_ + (sizes_.reference_levels == 1 ? 0 : l * sides_);
    reference[0] += point.reference.x;
    reference[1] += point.reference.y;
    if (sides_ == 4) {
      reference[2] += point.reference.w;
      reference[3] += point.reference.h;
    }
  }

  const Call& call_;
  const Sizes& sizes_ = call_.sizes;
  Samples<A> samples_{call_};
  const int64_t sides_ = sizes_.form == Form::kReferenceBoxes ? 4 : 2;
  Buffer<A> value_{sizes_.S * sizes_.D}, grad_value_{sizes_.S * sizes_.D};
  Buffer<A> grad_{sizes_.D}, grad_weights_{samples_.count()};
  Buffer<A> grad_points_{2 * samples_.count()};
  Buffer<A> grad_reference_{4 * sizes_.reference_levels};
};

template <class A, class T>
void backward(const Call& call, int64_t begin, int64_t end) {
  Backward<A, T> heads(call);
  for (int64_t task = begin; task < end; ++task) {
    heads.run(task);
  }
}

}  // namespace
