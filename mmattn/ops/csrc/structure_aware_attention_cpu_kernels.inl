// Structure-aware attention for one instruction set. Lanes of vectors are channels; two
// heads are the real and the imaginary part of what is transformed.
namespace {

template <class X>
class Buffer {
 public:
  explicit Buffer(int64_t size) : items_(new (std::align_val_t(64)) X[size]()) {}
  Buffer(const Buffer&) = delete;
  ~Buffer() {
    operator delete[](items_, std::align_val_t(64));
  }
  operator X*() {
    return items_;
  }
  operator const X*() const {
    return items_;
  }

 private:
  X* const items_;
};

// Numbers of two heads, for some channels. The compiler copies a plain structure in
// parts of 16 bytes, from which a wider load has to wait.
struct Complex {
  MMATTN_INLINE Complex() : re{}, im{} {}
  MMATTN_INLINE Complex(Floats re, Floats im) : re(re), im(im) {}
  MMATTN_INLINE Complex(const Complex& x) : re(x.re), im(x.im) {}
  MMATTN_INLINE Complex& operator=(const Complex& x) {
    re = x.re;
    im = x.im;
    return *this;
  }

  Floats re, im;
};

MMATTN_INLINE Complex operator+(const Complex& a, const Complex& b) {
  return {a.re + b.re, a.im + b.im};
}

MMATTN_INLINE Complex operator-(const Complex& a, const Complex& b) {
  return {a.re - b.re, a.im - b.im};
}

MMATTN_INLINE Complex times(const Complex& a, float re, float im) {
  return {a.re * re - a.im * im, a.re * im + a.im * re};
}

// Transforms of one length, by Stockham's algorithm with any factors.
class Transform {
 public:
  explicit Transform(int64_t length)
      : length_(length),
        roots_(2 * length),
        first_(length),
        second_(length),
        sums_(length),
        differences_(length) {
    for (int64_t i = 0; i < length; ++i) {
      find_root(i);
    }
    int64_t rest = length;
    for (int64_t factor = 4; rest > 1;) {
      if (rest % factor == 0) {
        factors_[num_factors_++] = factor;
        rest /= factor;
      } else {
        factor = factor == 4 ? 2 : factor == 2 ? 3 : factor + 2;
        factor = factor > 4 && factor * factor > rest ? rest : factor;
      }
    }
  }

  Complex* line() {
    return first_;
  }

  // Transforms `line()` and returns where the result is. The sign is -1, or 1 for the
  // inverse, which is not divided by the length.
  template <int kSign>
  Complex* run() {
    Complex *from = first_, *to = second_;
    int64_t count = length_, stride = 1;
    for (int f = 0; f < num_factors_; ++f) {
      const int64_t factor = factors_[f];
      if (factor == 4) {
        step_of_4<kSign>(from, to, count, stride);
      } else if (factor == 2) {
        step_of_2<kSign>(from, to, count, stride);
      } else {
        step<kSign>(from, to, count, stride, factor);
      }
      count /= factor;
      stride *= factor;
      Complex* const swapped = from;
      from = to;
      to = swapped;
    }
    return from;
  }

 private:
  // Finds cos and sin of i / length of a turn, in double, without the C library's.
  void find_root(int64_t i) {
    const int64_t eighths = 8 * i / length_;
    // The angle to the nearest quarter, at most an eighth of a turn.
    const int64_t quarter = (eighths + 1) / 2;
    const double part = static_cast<double>(4 * i - quarter * length_) / (4 * length_);
    const double angle = part * 6.2831853071795864769, square = angle * angle;
    double sine = 0, cosine = 0, power = 1;
    for (int n = 0; n < 9; ++n) {  // Taylor's series
      cosine += power;
      sine += power * angle / (2 * n + 1);
      power *= -square / ((2 * n + 1) * (2 * n + 2));
    }
    const double cosines[4] = {cosine, -sine, -cosine, sine};
    const double sines[4] = {sine, cosine, -sine, -cosine};
    roots_[2 * i] = cosines[quarter % 4];
    roots_[2 * i + 1] = sines[quarter % 4];
  }

  template <int kSign>
  MMATTN_INLINE Complex turned(const Complex& x, int64_t root) const {
    return times(x, roots_[2 * root], kSign * roots_[2 * root + 1]);
  }

  // Multiplies by i, or by -i.
  template <int kSign>
  static MMATTN_INLINE Complex quarter_turned(const Complex& x) {
    return kSign > 0 ? Complex{-x.im, x.re} : Complex{x.im, -x.re};
  }

  template <int kSign>
  void step_of_2(const Complex* from, Complex* to, int64_t count, int64_t stride) {
    const int64_t half = count / 2;
    for (int64_t p = 0; p < half; ++p) {
      for (int64_t q = 0; q < stride; ++q) {
        const Complex a = from[q + stride * p], b = from[q + stride * (p + half)];
        to[q + stride * 2 * p] = a + b;
        to[q + stride * (2 * p + 1)] = turned<kSign>(a - b, p * stride);
      }
    }
  }

  template <int kSign>
  void step_of_4(const Complex* from, Complex* to, int64_t count, int64_t stride) {
    const int64_t part = count / 4;
    for (int64_t p = 0; p < part; ++p) {
      const int64_t root = p * stride;
      for (int64_t q = 0; q < stride; ++q) {
        const Complex a = from[q + stride * p], b = from[q + stride * (p + part)];
        const Complex c = from[q + stride * (p + 2 * part)];
        const Complex d = from[q + stride * (p + 3 * part)];
        const Complex even = a + c, odd = b + d, other = a - c;
        const Complex side = quarter_turned<kSign>(b - d);
        Complex* const out = to + q + stride * 4 * p;
        out[0] = even + odd;
        out[stride] = turned<kSign>(other + side, root);
        out[2 * stride] = turned<kSign>(even - odd, 2 * root);
        out[3 * stride] = turned<kSign>(other - side, 3 * root);
      }
    }
  }

  // An odd factor: pairs of inputs and of outputs share their products.
  template <int kSign>
  void step(
      const Complex* from, Complex* to, int64_t count, int64_t stride, int64_t factor) {
    const int64_t part = count / factor, half = (factor - 1) / 2;
    const int64_t turn = length_ / factor;
    for (int64_t p = 0; p < part; ++p) {
      for (int64_t q = 0; q < stride; ++q) {
        const Complex* const in = from + q + stride * p;
        Complex* const out = to + q + stride * factor * p;
        const Complex first = in[0];
        Complex total = first;
        for (int64_t j = 1; j <= half; ++j) {
          const Complex a = in[stride * part * j];
          const Complex b = in[stride * part * (factor - j)];
          sums_[j] = a + b;
          differences_[j] = a - b;
          total = total + sums_[j];
        }
        out[0] = total;
        int64_t k = 1;
        for (; k + 3 <= half; k += 4) {
          outputs<kSign, 4>(k, first, out, p, stride, factor, half, turn);
        }
        for (; k <= half; ++k) {
          outputs<kSign, 1>(k, first, out, p, stride, factor, half, turn);
        }
      }
    }
  }

  template <int kSign, int kCount>
  MMATTN_INLINE void outputs(
      int64_t k, const Complex& first, Complex* out, int64_t p, int64_t stride,
      int64_t factor, int64_t half, int64_t turn) {
    Complex even[kCount], odd[kCount];
    int64_t index[kCount];
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      even[i] = first;
      odd[i] = Complex();
      index[i] = 0;
    }
    for (int64_t j = 1; j <= half; ++j) {
      const Complex a = sums_[j], b = differences_[j];
#pragma GCC unroll 4
      for (int i = 0; i < kCount; ++i) {
        index[i] += k + i;
        index[i] -= index[i] >= factor ? factor : 0;
        const float cosine = roots_[2 * turn * index[i]];
        const float sine = roots_[2 * turn * index[i] + 1];
        even[i].re += a.re * cosine;
        even[i].im += a.im * cosine;
        odd[i].re += b.re * sine;
        odd[i].im += b.im * sine;
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      const Complex side = quarter_turned<kSign>(odd[i]);
      const int64_t low = k + i, high = factor - low;
      out[stride * low] = turned<kSign>(even[i] + side, p * stride * low);
      out[stride * high] = turned<kSign>(even[i] - side, p * stride * high);
    }
  }

  const int64_t length_;
  int num_factors_ = 0;
  int64_t factors_[64];
  Buffer<float> roots_;  // cos and sin of i / length of a turn
  Buffer<Complex> first_, second_, sums_, differences_;
};

// Two heads of an image.
template <class T>
class Pair {
 public:
  explicit Pair(const StructureAwareCall& call)
      : call(call),
        H(call.H),
        W(call.W),
        N(H * W),
        rows_(W),
        columns_(H),
        spectrum_(N),
        product_(N),
        sums_(N),
        scales_(2 * N) {}

  void run(int64_t b, int64_t m) {
    heads_ = call.M - m < 2 ? 1 : 2;
    const T *q[2], *k[2], *v[2];
    T* out[2];
    float* patterns[2];
    for (int h = 0; h < 2; ++h) {
      const int64_t head = m + h < call.M ? m + h : m;
      q[h] = head_of(call.q, call.q_strides, b, head);
      k[h] = head_of(call.k, call.k_strides, b, head);
      v[h] = head_of(call.v, call.v_strides, b, head);
      out[h] = static_cast<T*>(call.out) + (b * N * call.M + head) * call.D;
      patterns[h] = call.patterns + (b * call.M + head) * call.K * N;
    }
    for (int64_t c = 0; c < call.D; c += kLanes) {
      const int64_t count = call.D - c < kLanes ? call.D - c : kLanes;
      find_scales(k, call.k_strides[1]);
      transform(k, call.k_strides[1], c, count, true);
      find_scales(q, call.q_strides[1]);
      for (int64_t s = 0; s < call.K; ++s) {
        multiply_columns([&](int64_t f) {
          const float* const w = call.w_a + ((s * H * half() + f) * 2) * call.DP + c;
          return Complex{load(w), load(w + call.DP)};
        });
        for (int64_t row = 0; row < H; ++row) {
          const Complex* const maps = inverse_row(row);
          add_patterns(q, c, count, row, maps, s, patterns);
        }
      }
    }
    for (int64_t c = 0; c < call.D; c += kLanes) {
      const int64_t count = call.D - c < kLanes ? call.D - c : kLanes;
      transform(v, call.v_strides[1], c, count, false);
      for (int64_t i = 0; i < N; ++i) {
        sums_[i] = Complex();
      }
      for (int64_t s = 0; s < call.K; ++s) {
        const Floats bias = load(call.bias + s * call.DP + c);
        multiply_columns([&](int64_t f) {
          const float* const w = call.w_b + (s * H * half() + f) * 2;
          return Complex{broadcast(w[0]), broadcast(w[1])};
        });
        for (int64_t row = 0; row < H; ++row) {
          const Complex* const maps = inverse_row(row);
          const float* const p = patterns[0] + s * N + row * W;
          const float* const other = patterns[heads_ - 1] + s * N + row * W;
          for (int64_t i = 0; i < W; ++i) {
            Complex& sum = sums_[row * W + i];
            sum.re += p[i] * (maps[i].re + bias);
            sum.im += other[i] * (maps[i].im + bias);
          }
        }
      }
      for (int64_t i = 0; i < N; ++i) {
        float lanes[kLanes];
        for (int h = 0; h < heads_; ++h) {
          store(lanes, h ? sums_[i].im : sums_[i].re);
          write_row(lanes, count, out[h] + i * call.M * call.D + c);
        }
      }
    }
  }

 private:
  int64_t half() const {
    return W / 2 + 1;
  }

  const T* head_of(
      const void* x, const int64_t (&strides)[3], int64_t b, int64_t m) const {
    return static_cast<const T*>(x) + b * strides[0] + m * strides[2];
  }

  static MMATTN_INLINE Floats channels(const T* from, int64_t count) {
    if (count == kLanes) {
      return load_as_float(from);
    }
    float lanes[kLanes];
    read_row(from, 1, count, lanes);
    return load(lanes);
  }

  // Finds the factors that make the channels of each token and head a unit vector.
  void find_scales(const T* const (&x)[2], int64_t stride) {
    for (int h = 0; h < heads_; ++h) {
      for (int64_t i = 0; i < N; ++i) {
        Floats squares{};
        for (int64_t c = 0; c < call.D; c += kLanes) {
          const int64_t count = call.D - c < kLanes ? call.D - c : kLanes;
          const Floats part = channels(x[h] + i * stride + c, count);
          squares += part * part;
        }
        scales_[h * N + i] = 1 / std::sqrt(sum_lanes(squares) + 1e-6f);
      }
    }
  }

  // Makes the spectrum of some channels over N, of unit vectors or as they are.
  void transform(
      const T* const (&x)[2], int64_t stride, int64_t c, int64_t count, bool unit) {
    const float share = 1.0f / N;
    for (int64_t row = 0; row < H; ++row) {
      Complex* const line = rows_.line();
      for (int64_t i = 0; i < W; ++i) {
        const int64_t n = row * W + i;
        line[i].re = channels(x[0] + n * stride + c, count) *
            (unit ? share * scales_[n] : share);
        line[i].im = Floats{};
        if (heads_ == 2) {
          line[i].im = channels(x[1] + n * stride + c, count) *
              (unit ? share * scales_[N + n] : share);
        }
      }
      const Complex* const result = rows_.template run<-1>();
      for (int64_t i = 0; i < W; ++i) {
        spectrum_[row * W + i] = result[i];
      }
    }
    for (int64_t i = 0; i < W; ++i) {
      Complex* const line = columns_.line();
      for (int64_t row = 0; row < H; ++row) {
        line[row] = spectrum_[row * W + i];
      }
      const Complex* const result = columns_.template run<-1>();
      for (int64_t row = 0; row < H; ++row) {
        spectrum_[row * W + i] = result[row];
      }
    }
  }

  // Multiplies by a kernel's half-spectrum, and transforms columns back.
  template <class Kernel>
  MMATTN_INLINE void multiply_columns(const Kernel& kernel) {
    for (int64_t i = 0; i < W; ++i) {
      Complex* const line = columns_.line();
      const bool mirrored = i >= half();
      for (int64_t row = 0; row < H; ++row) {
        const Complex x = spectrum_[row * W + i];
        const int64_t mirror = row ? H - row : 0;
        Complex w = kernel(mirrored ? mirror * half() + W - i : row * half() + i);
        // The kernels are real: columns that mirror themselves are symmetric.
        if (i == 0 || 2 * i == W) {
          const Complex other = kernel(mirror * half() + i);
          w = Complex{0.5f * (w.re + other.re), 0.5f * (w.im - other.im)};
        }
        w.im = mirrored ? -w.im : w.im;
        line[row] = Complex{x.re * w.re - x.im * w.im, x.re * w.im + x.im * w.re};
      }
      const Complex* const result = columns_.template run<1>();
      for (int64_t row = 0; row < H; ++row) {
        product_[row * W + i] = result[row];
      }
    }
  }

  const Complex* inverse_row(int64_t row) {
    Complex* const line = rows_.line();
    for (int64_t i = 0; i < W; ++i) {
      line[i] = product_[row * W + i];
    }
    return rows_.template run<1>();
  }

  // Adds the products of a row's queries and maps, summed over channels.
  void add_patterns(
      const T* const (&q)[2], int64_t c, int64_t count, int64_t row,
      const Complex* maps, int64_t s, float* const (&patterns)[2]) {
    for (int h = 0; h < heads_; ++h) {
      const T* const tokens = q[h] + row * W * call.q_strides[1] + c;
      const float* const scales = scales_ + h * N + row * W;
      float* const to = patterns[h] + s * N + row * W;
      const auto product = [&](int64_t i) {
        return channels(tokens + i * call.q_strides[1], count) *
            (h ? maps[i].im : maps[i].re);
      };
      int64_t i = 0;
      for (; i + 4 <= W; i += 4) {
        const Four sums =
            sum_lanes(product(i), product(i + 1), product(i + 2), product(i + 3));
        for (int j = 0; j < 4; ++j) {
          to[i + j] += scales[i + j] * sums[j];
        }
      }
      for (; i < W; ++i) {
        to[i] += scales[i] * sum_lanes(product(i));
      }
    }
  }

  const StructureAwareCall& call;
  const int64_t H, W, N;
  int heads_ = 2;
  Transform rows_, columns_;
  Buffer<Complex> spectrum_, product_, sums_;
  Buffer<float> scales_;
};

template <class T>
void run_pairs(const StructureAwareCall& call, int64_t begin, int64_t end) {
  const int64_t pairs = (call.M + 1) / 2;
  Pair<T> pair(call);
  for (int64_t task = begin; task < end; ++task) {
    pair.run(task / pairs, task % pairs * 2);
  }
}

}  // namespace

inline void structure_aware_forward(
    const StructureAwareCall& call, int64_t begin, int64_t end) {
  switch (call.storage) {
    case Storage::kHalf:
      return run_pairs<Half>(call, begin, end);
    case Storage::kBFloat16:
      return run_pairs<BFloat16>(call, begin, end);
    default:
      return run_pairs<float>(call, begin, end);
  }
}
