// Vectors over channels, and the samples of a query and head, for the CPU kernels.
namespace {

template <class A>
struct VectorOf {
  static constexpr int kLanes = VECTOR_BYTES / sizeof(A);
  typedef A Type __attribute__((vector_size(VECTOR_BYTES)));
};

template <class A>
using Vector = typename VectorOf<A>::Type;

template <class A>
constexpr int kLanesOf = VectorOf<A>::kLanes;

template <class A, class T>
MMATTN_INLINE Vector<A> load_vector(const T* from) {
  if constexpr (std::is_same_v<A, float>) {
    return load_as_float(from);
  } else {
    Vector<A> x;
    std::memcpy(&x, from, sizeof(x));
    return x;
  }
}

template <class A>
MMATTN_INLINE void store_vector(A* to, const Vector<A>& x) {
  std::memcpy(to, &x, sizeof(x));
}

// Sums the lanes of each of four vectors.
MMATTN_INLINE void sum_lanes(const Vector<float> (&x)[4], float (&sums)[4]) {
  const Four all = sum_lanes(x[0], x[1], x[2], x[3]);
  std::memcpy(sums, &all, sizeof(sums));
}

MMATTN_INLINE void sum_lanes(const Vector<double> (&x)[4], double (&sums)[4]) {
  for (int k = 0; k < 4; ++k) {
    sums[k] = 0;
    for (int i = 0; i < kLanesOf<double>; ++i) {
      sums[k] += x[k][i];
    }
  }
}

// Samples of a query and head, in the type of the arithmetic.
template <class A>
class Samples {
 public:
  explicit Samples(const Call& call) : call_(call) {
    find_levels<A>(call.shapes, sizes_.L, levels);
  }

  // Reads the points of row b * Q + q and head m, and finds the corners.
  void read(int64_t row, int64_t head) {
    const int64_t first = (row * sizes_.M + head) * count_;
    mmattn::load<A>(
        call_.points.data, call_.points.storage, 2 * first, 2 * count_, points);
    mmattn::load<A>(call_.weights.data, call_.weights.storage, first, count_, weights);
    if (sizes_.form != Form::kLocations) {
      softmax();
      read_reference(row);
    }
    for (int64_t l = 0, i = 0; l < sizes_.L; ++l) {
      for (int64_t p = 0; p < sizes_.P; ++p, ++i) {
        corners[i] = find_corners(sizes_.form, points[2 * i], points[2 * i + 1],
            references_[l], levels[l], static_cast<A>(sizes_.P));
      }
    }
  }

  int64_t count() const {
    return count_;
  }

  const Reference<A>& reference(int64_t level) const {
    return references_[level];
  }

 private:
  void softmax() {
    A largest = weights[0];
    for (int64_t i = 1; i < count_; ++i) {
      largest = weights[i] > largest ? weights[i] : largest;
    }
    A sum = 0;
    for (int64_t i = 0; i < count_; ++i) {
      weights[i] = std::exp(weights[i] - largest);
      sum += weights[i];
    }
    for (int64_t i = 0; i < count_; ++i) {
      weights[i] /= sum;
    }
  }

  void read_reference(int64_t row) {
    const int64_t numbers = sizes_.reference_levels * sides_;
    mmattn::load<A>(call_.reference.data, call_.reference.storage, row * numbers,
        numbers, raw_reference_);
    for (int64_t l = 0; l < sizes_.L; ++l) {
      const A* of_level =
          raw_reference_ + (sizes_.reference_levels == 1 ? 0 : l * sides_);
      references_[l].x = of_level[0];
      references_[l].y = of_level[1];
      if (sides_ == 4) {
        references_[l].w = of_level[2];
        references_[l].h = of_level[3];
      }
    }
  }

  const Call& call_;
  const Sizes& sizes_ = call_.sizes;
  const int64_t count_ = sizes_.L * sizes_.P;
  const int64_t sides_ = sizes_.form == Form::kReferenceBoxes ? 4 : 2;

 public:
  Buffer<Level<A>> levels{sizes_.L};
  Buffer<A> points{2 * count_}, weights{count_};
  Buffer<Corners<A>> corners{count_};

 private:
  Buffer<A> raw_reference_{4 * sizes_.reference_levels};
  Buffer<Reference<A>> references_{sizes_.L};
};

}  // namespace
