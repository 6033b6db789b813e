// The backward of structure-aware attention for one instruction set.
namespace {

template <class T>
class Backward : Maps<T> {
 public:
  Backward(const StructureAwareCall& of, int64_t part) : Maps<T>(of), part_(part) {}

  void run(int64_t b, int64_t m) {
    this->set_pair(b, m);
    grad_patterns_.fill(0);
    grad_y_.fill(Complex());
    this->pack(call.v, x_);
    this->pack(call.grad, y_);
    for (int64_t block = 0; block < blocks; ++block) {
      differentiate_values(block);
    }
    this->pack(call.k, x_);
    this->normalize(x_, k_scales_);
    this->pack(call.q, y_);
    this->normalize(y_, q_scales_);
    for (int64_t block = 0; block < blocks; ++block) {
      differentiate_patterns(block);
    }
    write_unnormalized(x_, k_scales_, grad_x_, call.grad_k);
    write_unnormalized(y_, q_scales_, grad_y_, call.grad_q);
  }

 private:
  using Maps<T>::call, Maps<T>::H, Maps<T>::W, Maps<T>::N, Maps<T>::half;
  using Maps<T>::blocks, Maps<T>::heads_, Maps<T>::rows_, Maps<T>::columns_;
  using Maps<T>::spectrum_, Maps<T>::product_, Maps<T>::share;

  float* grad_patterns_of(int h, int64_t s) {
    return grad_patterns_ + (h * call.K + s) * N;
  }

  // Makes gradients of a block of the values, and adds to the gradients of the patterns, of the
  // bias and of the values' kernels.
  void differentiate_values(int64_t block) {
    this->transform(x_ + block * N);
    grad_spectrum_.fill(Complex());
    for (int64_t s = 0; s < call.K; ++s) {
      const Floats bias = this->bias_of(s, block);
      const auto kernel = this->kernel_of_values(s);
      this->multiply_columns(kernel);
      Floats total{};
      for (int64_t first = 0; first < N; first += W) {
        const Complex* const maps = this->inverse_row(first / W);
        const Complex* const dy = y_ + block * N + first;
        this->add_dots(grad_patterns_of(0, s) + first, grad_patterns_of(1, s) + first,
            [&](int64_t i) {
              return Complex{
                  dy[i].re * (maps[i].re + bias), dy[i].im * (maps[i].im + bias)};
            });
        const float* const p = this->patterns_of(0, s) + first;
        const float* const other = this->patterns_of(1, s) + first;
        Complex* const line = rows_.line();
        for (int64_t i = 0; i < W; ++i) {
          line[i] = Complex{p[i] * dy[i].re, other[i] * dy[i].im};
          total += line[i].re + line[i].im;
        }
        rows_.template run<-1>(line, 1, product_ + first, 1);
      }
      float* const grad_bias = grad_bias_ + (block * call.K + s) * kLanes;
      store(grad_bias, load(grad_bias) + total);
      float* const grad_w = grad_w_b_ + s * spectrum_size_;
      correlate_columns(kernel, [grad_w](int64_t f, const Complex& x) {
        const Four sums = sum_lanes(x.re, x.im, x.re, x.im);
        grad_w[2 * f] += sums[0];
        grad_w[2 * f + 1] += sums[1];
      });
    }
    invert([&](int64_t n, const Complex& x) { this->write(x, call.grad_v, n, block); });
  }

  // Makes gradients of a block of unit queries and keys, and adds to the gradient of the keys'
  // kernels. The gradient of the patterns must be complete.
  void differentiate_patterns(int64_t block) {
    this->transform(x_ + block * N);
    Complex* const grad_q = grad_y_ + block * N;
    Complex* const grad_k = grad_x_ + block * N;
    grad_spectrum_.fill(Complex());
    for (int64_t s = 0; s < call.K; ++s) {
      const auto kernel = this->kernel_of_keys(s, block);
      this->multiply_columns(kernel);
      for (int64_t first = 0; first < N; first += W) {
        const Complex* const maps = this->inverse_row(first / W);
        const Complex* const q = y_ + block * N + first;
        const float* const dp = grad_patterns_of(0, s) + first;
        const float* const other = grad_patterns_of(1, s) + first;
        Complex* const line = rows_.line();
        Complex* const sums = grad_q + first;
        for (int64_t i = 0; i < W; ++i) {
          sums[i].re += dp[i] * maps[i].re;
          sums[i].im += other[i] * maps[i].im;
          line[i] = Complex{dp[i] * q[i].re, other[i] * q[i].im};
        }
        rows_.template run<-1>(line, 1, product_ + first, 1);
      }
      float* const grad_w = grad_w_a_ + (block * call.K + s) * spectrum_size_ * kLanes;
      correlate_columns(kernel, [grad_w](int64_t f, const Complex& x) {
        float* const to = grad_w + f * 2 * kLanes;
        store(to, load(to) + x.re);
        store(to + kLanes, load(to + kLanes) + x.im);
      });
    }
    invert([&](int64_t n, const Complex& x) { grad_k[n] = x; });
  }

  // Transforms the columns of gradients, whose rows are transformed. Adds their products
  // with the kernel to the gradient of the spectrum, and calls `add` with those with the
  // spectrum, at frequencies f of the kernel's half-spectrum.
  template <class Kernel, class Add>
  MMATTN_INLINE void correlate_columns(const Kernel& kernel, const Add& add) {
    for (int64_t i = 0; i < W; ++i) {
      const Complex* const column = this->forward_column(i, product_);
      const Complex* const spectrum = spectrum_ + i;
      Complex* const grad = grad_spectrum_ + i;
      this->for_column(i, kernel, [&](int64_t row, const Complex& w) {
        grad[row * W] = grad[row * W] + conjugate(w) * column[row];
        const Complex x = conjugate(spectrum[row * W]) * column[row];
        const int64_t mirror = this->mirror_of(row);
        if (i >= half) {
          add(mirror * half + W - i, conjugate(x));
        } else if (this->is_own_mirror(i)) {
          add(row * half + i, 0.5f * x);
          add(mirror * half + i, 0.5f * conjugate(x));
        } else {
          add(row * half + i, x);
        }
      });
    }
  }

  // Transforms the gradient of the spectrum back and hands over each token's.
  template <class Take>
  MMATTN_INLINE void invert(const Take& take) {
    for (int64_t i = 0; i < W; ++i) {
      columns_.template run<1>(grad_spectrum_ + i, W, product_ + i, W);
    }
    for (int64_t first = 0; first < N; first += W) {
      const Complex* const maps = this->inverse_row(first / W);
      for (int64_t i = 0; i < W; ++i) {
        take(first + i, share * maps[i]);
      }
    }
  }

  // Writes the gradient of vectors, given the gradient of the unit vectors `x`.
  void write_unnormalized(const Complex* x, const float* scales, const Complex* grad,
      const Tokens& to) const {
    for (int64_t n = 0; n < N; ++n) {
      const Complex products = this->products_of(x, grad, n);
      const float re = sum_lanes(products.re), im = sum_lanes(products.im);
      for (int64_t block = 0; block < blocks; ++block) {
        const Complex &a = x[block * N + n], &d = grad[block * N + n];
        const Complex y{
            (d.re - a.re * re) * scales[n], (d.im - a.im * im) * scales[N + n]};
        this->write(y, to, n, block);
      }
    }
  }

  const int64_t part_, spectrum_size_ = H * half * 2, K_ = call.K;
  float* const grad_w_a_ =
      call.grad_w_a + part_ * blocks * K_ * spectrum_size_ * kLanes;
  float* const grad_w_b_ = call.grad_w_b + part_ * K_ * spectrum_size_;
  float* const grad_bias_ = call.grad_bias + part_ * blocks * K_ * kLanes;
  Buffer<float> q_scales_{2 * N}, k_scales_{2 * N}, grad_patterns_{2 * K_ * N};
  Buffer<Complex> grad_spectrum_{N}, x_{blocks * N}, y_{blocks * N};
  Buffer<Complex> grad_x_{blocks * N}, grad_y_{blocks * N};
};

}  // namespace
