// Structure-aware attention for one instruction set. Lanes of vectors are channels; two
// heads are the real and the imaginary part of what is transformed.
#include "structure_aware_attention_cpu_transform.inl"

namespace {

// Maps of two heads of an image; the last of an odd number of heads is alone.
template <class T>
class Maps {
 protected:
  explicit Maps(const StructureAwareCall& call) : call(call) {}

  void set_pair(int64_t b, int64_t m) {
    b_ = b;
    m_ = m;
    heads_ = call.M - m < 2 ? 1 : 2;
  }

  T* tokens_of(const Tokens& x, int h) const {
    return static_cast<T*>(x.data) + b_ * x.strides[0] + (m_ + h) * x.strides[2];
  }

  float* patterns_of(int h, int64_t s) const {
    const int64_t head = m_ + (heads_ == 2 ? h : 0);
    return call.patterns + ((b_ * call.M + head) * call.K + s) * N;
  }

  int64_t channels_of(int64_t block) const {
    const int64_t rest = call.D - block * kLanes;
    return rest < kLanes ? rest : kLanes;
  }

  // Copies both heads to maps (blocks, N); one that is not there is zeros.
  void pack(const Tokens& x, Complex* to) const {
    const T* tokens[2] = {tokens_of(x, 0), tokens_of(x, heads_ - 1)};
    const int64_t stride = x.strides[1];
    for (int64_t i = 0; heads_ == 1 && i < blocks * N; ++i) {
      to[i].im = Floats{};
    }
    for (int64_t n = 0; n < N; ++n) {
      for (int h = 0; h < heads_; ++h) {
        const T* const from = tokens[h] + n * stride;
        if (n + kAhead < N) {
          prefetch(from + kAhead * stride, call.D);
        }
        for (int64_t block = 0; block < blocks; ++block) {
          float lanes[kLanes];
          read_row(from + block * kLanes, 1, channels_of(block), lanes);
          Complex& both = to[block * N + n];
          (h ? both.im : both.re) = load(lanes);
        }
      }
    }
  }

  // Sums the products of a token's numbers in two maps (blocks, N), for each head.
  MMATTN_INLINE Complex products_of(
      const Complex* x, const Complex* y, int64_t n) const {
    Complex sums;
    for (int64_t i = n; i < blocks * N; i += N) {
      sums.re += x[i].re * y[i].re;
      sums.im += x[i].im * y[i].im;
    }
    return sums;
  }

  // Divides maps (blocks, N) by the norms of each token and head, and stores the inverse
  // of these if `scales` (2, N) is given.
  void normalize(Complex* x, float* scales) const {
    for (int64_t n = 0; n < N; ++n) {
      const Complex squares = products_of(x, x, n);
      const float re = 1 / std::sqrt(sum_lanes(squares.re) + 1e-6f);
      const float im = 1 / std::sqrt(sum_lanes(squares.im) + 1e-6f);
      for (int64_t block = 0; block < blocks; ++block) {
        Complex& part = x[block * N + n];
        part = Complex{part.re * re, part.im * im};
      }
      if (scales != nullptr) {
        scales[n] = re;
        scales[N + n] = im;
      }
    }
  }

  MMATTN_INLINE void write(Floats y, T* to, int64_t block) const {
    float lanes[kLanes];
    store(lanes, y);
    write_row(lanes, channels_of(block), to + block * kLanes);
  }

  // Writes both heads of a block of a token.
  MMATTN_INLINE void write(
      const Complex& y, const Tokens& x, int64_t n, int64_t block) const {
    write(y.re, tokens_of(x, 0) + n * x.strides[1], block);
    if (heads_ == 2) {
      write(y.im, tokens_of(x, 1) + n * x.strides[1], block);
    }
  }

  // Makes the spectrum of a map.
  void transform(const Complex* from) {
    for (int64_t row = 0; row < H; ++row) {
      rows_.template run<-1>(from + row * W, 1, spectrum_ + row * W, 1);
    }
    for (int64_t i = 0; i < W; ++i) {
      const Complex* const column = forward_column(i, spectrum_);
      for (int64_t row = 0; row < H; ++row) {
        spectrum_[row * W + i] = share * column[row];
      }
    }
  }

  // Calls a function for each row of a column, with a kernel's spectrum there. `kernel`
  // returns the spectrum of its half at a frequency f.
  template <class Kernel, class Use>
  MMATTN_INLINE void for_column(int64_t i, const Kernel& kernel, const Use& use) const {
    if (i >= half) {
      for (int64_t row = 0; row < H; ++row) {
        use(row, conjugate(kernel(mirror_of(row) * half + W - i)));
      }
    } else if (is_own_mirror(i)) {
      // The kernels are real: columns that mirror themselves are symmetric.
      for (int64_t row = 0; row < H; ++row) {
        const Complex mirror = kernel(mirror_of(row) * half + i);
        use(row, 0.5f * (kernel(row * half + i) + conjugate(mirror)));
      }
    } else {
      for (int64_t row = 0; row < H; ++row) {
        use(row, kernel(row * half + i));
      }
    }
  }

  int64_t mirror_of(int64_t row) const {
    return row ? H - row : 0;
  }

  bool is_own_mirror(int64_t i) const {
    return i == 0 || 2 * i == W;
  }

  // Multiplies by a kernel's half-spectrum, and transforms columns back.
  template <class Kernel>
  MMATTN_INLINE void multiply_columns(const Kernel& kernel) {
    for (int64_t i = 0; i < W; ++i) {
      Complex* const line = columns_.line();
      const Complex* const from = spectrum_ + i;
      for_column(i, kernel,
          [&](int64_t row, const Complex& w) { line[row] = from[row * W] * w; });
      columns_.template run<1>(line, 1, product_ + i, W);
    }
  }

  const Complex* inverse_row(int64_t row) {
    return rows_.template run<1>(product_ + row * W, 1);
  }

  const Complex* forward_column(int64_t i, const Complex* from) {
    return columns_.template run<-1>(from + i, W);
  }

  auto kernel_of_keys(int64_t s, int64_t block) const {
    const float* const w = call.w_a + (block * call.K + s) * H * half * 2 * kLanes;
    return [w](int64_t f) {
      return Complex{load(w + f * 2 * kLanes), load(w + f * 2 * kLanes + kLanes)};
    };
  }

  auto kernel_of_values(int64_t s) const {
    const float* const w = call.w_b + s * H * half * 2;
    return [w](int64_t f) {
      return Complex{broadcast(w[2 * f]), broadcast(w[2 * f + 1])};
    };
  }

  Floats bias_of(int64_t s, int64_t block) const {
    return load(call.bias + (block * call.K + s) * kLanes);
  }

  // Adds to a row of each head the sums over lanes of what a function returns for each
  // of its tokens.
  template <class Products>
  MMATTN_INLINE void add_dots(float* re, float* im, const Products& products) const {
    int64_t i = 0;
    for (; i + 2 <= W; i += 2) {
      const Complex a = products(i), b = products(i + 1);
      const Four sums = sum_lanes(a.re, b.re, a.im, b.im);
      re[i] += sums[0];
      re[i + 1] += sums[1];
      im[i] += sums[2];
      im[i + 1] += sums[3];
    }
    if (i < W) {
      const Complex a = products(i);
      re[i] += sum_lanes(a.re);
      im[i] += sum_lanes(a.im);
    }
  }

  static constexpr int64_t kAhead = 8;  // tokens to prefetch

  const StructureAwareCall& call;
  const int64_t H = call.H, W = call.W, N = H * W, half = W / 2 + 1;
  const int64_t blocks = num_vectors(call.D);
  const float share = 1.0f / N;  // makes a transform there and back the identity
  int64_t b_ = 0, m_ = 0;
  int heads_ = 2;
  Transform rows_{W}, columns_{H};
  Buffer<Complex> spectrum_{N}, product_{N};
};

template <class T>
class Forward : Maps<T> {
 public:
  Forward(const StructureAwareCall& call, int64_t) : Maps<T>(call) {}

  void run(int64_t b, int64_t m) {
    this->set_pair(b, m);
    this->pack(call.q, q_);
    this->normalize(q_, nullptr);
    this->pack(call.k, x_);
    this->normalize(x_, nullptr);
    for (int64_t block = 0; block < blocks; ++block) {
      add_patterns(block);
    }
    this->pack(call.v, x_);
    for (int64_t block = 0; block < blocks; ++block) {
      attend(block);
    }
  }

 private:
  using Maps<T>::call, Maps<T>::H, Maps<T>::W, Maps<T>::N, Maps<T>::blocks;
  using Maps<T>::heads_;

  // Adds the products of queries and convolved keys, for some channels.
  void add_patterns(int64_t block) {
    this->transform(x_ + block * N);
    const Complex* const q = q_ + block * N;
    for (int64_t s = 0; s < call.K; ++s) {
      this->multiply_columns(this->kernel_of_keys(s, block));
      for (int64_t first = 0; first < N; first += W) {
        const Complex* const maps = this->inverse_row(first / W);
        float* const p = this->patterns_of(0, s) + first;
        float* const other = heads_ == 2 ? this->patterns_of(1, s) + first : single_;
        this->add_dots(p, other, [&](int64_t i) {
          const Complex& x = q[first + i];
          return Complex{x.re * maps[i].re, x.im * maps[i].im};
        });
      }
    }
  }

  // Writes some channels of the output.
  void attend(int64_t block) {
    this->transform(x_ + block * N);
    sums_.fill(Complex());
    for (int64_t s = 0; s < call.K; ++s) {
      const Floats bias = this->bias_of(s, block);
      this->multiply_columns(this->kernel_of_values(s));
      for (int64_t row = 0; row < H; ++row) {
        const Complex* const maps = this->inverse_row(row);
        const float* const p = this->patterns_of(0, s) + row * W;
        const float* const other = this->patterns_of(1, s) + row * W;
        Complex* const sums = sums_ + row * W;
        for (int64_t i = 0; i < W; ++i) {
          sums[i].re += p[i] * (maps[i].re + bias);
          sums[i].im += other[i] * (maps[i].im + bias);
        }
      }
    }
    for (int64_t n = 0; n < N; ++n) {
      this->write(sums_[n], call.out, n, block);
    }
  }

  Buffer<Complex> sums_{N}, x_{blocks * N}, q_{blocks * N};
  Buffer<float> single_{W};  // patterns of no head
};

}  // namespace

#include "structure_aware_attention_cpu_backward.inl"

namespace {

template <class Task>
void run_pairs(
    const StructureAwareCall& call, int64_t part, int64_t begin, int64_t end) {
  const int64_t pairs = (call.M + 1) / 2;
  Task task(call, part);
  for (int64_t pair = begin; pair < end; ++pair) {
    task.run(pair / pairs, pair % pairs * 2);
  }
}

}  // namespace

inline void structure_aware_forward(
    const StructureAwareCall& call, int64_t begin, int64_t end) {
  with_type_of(call.storage,
      [&](auto x) { run_pairs<Forward<decltype(x)>>(call, 0, begin, end); });
}

// Computes some parts of the pairs.
inline void structure_aware_backward(
    const StructureAwareCall& call, int64_t first, int64_t last) {
  const int64_t pairs = call.num_pairs();
  with_type_of(call.storage, [&](auto x) {
    for (int64_t part = first; part < last; ++part) {
      run_pairs<Backward<decltype(x)>>(
          call, part, pairs * part / call.parts, pairs * (part + 1) / call.parts);
    }
  });
}
