// Complex numbers in vectors and their transforms, for one instruction set.
namespace {

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

MMATTN_INLINE Complex operator*(const Complex& a, const Complex& b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

MMATTN_INLINE Complex operator*(float a, const Complex& b) {
  return {a * b.re, a * b.im};
}

MMATTN_INLINE Complex conjugate(const Complex& a) {
  return {a.re, -a.im};
}

// Multiplies by i, or by -i.
template <int kSign>
MMATTN_INLINE Complex quarter_turned(const Complex& x) {
  return kSign > 0 ? Complex{-x.im, x.re} : Complex{x.im, -x.re};
}

// Transforms of one length, by Stockham's algorithm with any factors. The sign is -1, or
// 1 for the inverse, which is not divided by the length.
class Transform {
 public:
  explicit Transform(int64_t length) : length_(length) {
    for (int64_t i = 0; i < length; ++i) {
      find_root(i);
    }
    float* waves = waves_;
    for (int f = 0; f < num_factors_; ++f) {
      if (factors_[f] > 7) {
        find_waves(factors_[f], waves);
        waves += 2 * waves_size(factors_[f]);
      }
    }
  }

  // Memory for what is to be transformed.
  Complex* line() {
    return first_;
  }

  // Transforms numbers `from_step` apart, of `line()` or elsewhere, and writes the result
  // to others, `to_step` apart and not of `line()`.
  template <int kSign>
  void run(const Complex* from, int64_t from_step, Complex* to, int64_t to_step) {
    if (num_factors_ == 0) {
      *to = *from;
      return;
    }
    const float* waves = waves_;
    int64_t part = length_;
    for (int f = 0; f < num_factors_; ++f) {
      const int64_t factor = factors_[f];
      part /= factor;
      Step step{};
      step.stride = length_ / (part * factor);
      step.in_gap = part * step.stride * from_step;
      step.out_step = 1;
      Complex* next = from == second_ ? first_ : second_;
      if (f + 1 == num_factors_) {
        next = to;
        step.out_step = to_step;
      }
      run_butterflies<kSign, false>(factor, from, next, step, waves);
      for (int64_t p = 1; p < part; ++p) {
        step.root = p * step.stride;
        const Complex* const in = from + step.root * from_step;
        Complex* const out = next + factor * step.root * step.out_step;
        run_butterflies<kSign, true>(factor, in, out, step, waves);
      }
      waves += factor > 7 ? 2 * waves_size(factor) : 0;
      from = next;
      from_step = 1;
    }
  }

  // Transforms as above and returns where the result is.
  template <int kSign>
  const Complex* run(const Complex* from, int64_t from_step) {
    run<kSign>(from, from_step, result_, 1);
    return result_;
  }

 private:
  static constexpr int kOutputs = 6;  // of a prime, with two sums each: 12 registers

  // Butterflies whose inputs are `in_gap` apart and whose outputs are `stride` numbers
  // apart, which are `out_step` apart. Their number is the stride too.
  struct Step {
    int64_t in_gap, stride, out_step;
    int64_t root;
  };

  // Runs the butterflies of one factor.
  template <int kSign, bool kTurned>
  MMATTN_INLINE void run_butterflies(int64_t factor, const Complex* in, Complex* out,
      const Step& at, const float* waves) {
    switch (factor) {
      case 2:
        return step_of_2<kSign, kTurned>(in, out, at);
      case 3:
        return step_of_odd<kSign, kTurned, 3>(in, out, at);
      case 4:
        return step_of_4<kSign, kTurned>(in, out, at);
      case 5:
        return step_of_odd<kSign, kTurned, 5>(in, out, at);
      case 7:
        return step_of_odd<kSign, kTurned, 7>(in, out, at);
      default:
        return step_of_prime<kSign, kTurned>(in, out, at, factor, waves);
    }
  }

  // Finds the factors, and returns how many numbers their waves are.
  int64_t find_factors() {
    int64_t rest = length_, size = 0;
    for (int64_t factor = 4; rest > 1;) {
      if (rest % factor == 0) {
        size += factor > 7 ? 2 * waves_size(factor) : 0;
        factors_[num_factors_++] = factor;
        rest /= factor;
      } else {
        factor = factor == 4 ? 2 : factor == 2 ? 3 : factor + 2;
        factor = factor > 4 && factor * factor > rest ? rest : factor;
      }
    }
    return size;
  }

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

  // Returns how many cosines a prime has, in groups of kOutputs outputs.
  static int64_t waves_size(int64_t factor) {
    const int64_t half = factor / 2;
    return (half + kOutputs - 1) / kOutputs * kOutputs * half;
  }

  // Lists cosines, and then sines, of each group of outputs and each input.
  void find_waves(int64_t factor, float* waves) {
    const int64_t half = factor / 2, turn = length_ / factor;
    for (int64_t k = 0; k < half; ++k) {
      for (int64_t j = 0; j < half; ++j) {
        const int64_t root = turn * ((j + 1) * (k + 1) % factor);
        const int64_t place = (k / kOutputs * half + j) * kOutputs + k % kOutputs;
        waves[place] = roots_[2 * root];
        waves[place + waves_size(factor)] = roots_[2 * root + 1];
      }
    }
  }

  // Turns a number by a root, except where all roots of a step are 1.
  template <int kSign, bool kTurned>
  MMATTN_INLINE Complex turned(const Complex& x, int64_t root) const {
    if constexpr (kTurned) {
      const float re = roots_[2 * root], im = kSign * roots_[2 * root + 1];
      return {x.re * re - x.im * im, x.re * im + x.im * re};
    } else {
      return x;
    }
  }

  template <int kSign, bool kTurned>
  MMATTN_INLINE void step_of_2(const Complex* in, Complex* out, const Step& at) {
    const int64_t gap = at.in_gap, stride = at.stride * at.out_step;
    for (int64_t q = 0; q < at.stride; ++q, ++in, out += at.out_step) {
      const Complex a = in[0], b = in[gap];
      out[0] = a + b;
      out[stride] = turned<kSign, kTurned>(a - b, at.root);
    }
  }

  template <int kSign, bool kTurned>
  MMATTN_INLINE void step_of_4(const Complex* in, Complex* out, const Step& at) {
    const int64_t gap = at.in_gap, stride = at.stride * at.out_step;
    for (int64_t q = 0; q < at.stride; ++q, ++in, out += at.out_step) {
      const Complex a = in[0], b = in[gap], c = in[2 * gap], d = in[3 * gap];
      const Complex even = a + c, odd = b + d, other = a - c;
      const Complex side = quarter_turned<kSign>(b - d);
      out[0] = even + odd;
      out[stride] = turned<kSign, kTurned>(other + side, at.root);
      out[2 * stride] = turned<kSign, kTurned>(even - odd, 2 * at.root);
      out[3 * stride] = turned<kSign, kTurned>(other - side, 3 * at.root);
    }
  }

  // Writes an output and its mirror, of sums over even and odd parts of the inputs.
  template <int kSign, bool kTurned>
  MMATTN_INLINE void write_pair(const Complex& even, const Complex& odd, Complex* out,
      const Step& at, int64_t k, int64_t factor) const {
    const int64_t stride = at.stride * at.out_step;
    const Complex side = quarter_turned<kSign>(odd);
    out[stride * k] = turned<kSign, kTurned>(even + side, at.root * k);
    out[stride * (factor - k)] =
        turned<kSign, kTurned>(even - side, at.root * (factor - k));
  }

  // Adds and subtracts the pairs of inputs of an odd factor, and returns all their sum.
  MMATTN_INLINE Complex pair_up(const Complex* in, const Step& at, int64_t factor,
      Complex* sums, Complex* differences) const {
    Complex total = in[0];
#pragma GCC unroll 3
    for (int64_t j = 0; j < factor / 2; ++j) {
      const Complex a = in[at.in_gap * (j + 1)];
      const Complex b = in[at.in_gap * (factor - 1 - j)];
      sums[j] = a + b;
      differences[j] = a - b;
      total = total + sums[j];
    }
    return total;
  }

  // Pairs of inputs and of outputs share their products.
  template <int kSign, bool kTurned, int kFactor>
  MMATTN_INLINE void step_of_odd(const Complex* in, Complex* out, const Step& at) {
    constexpr int kHalf = kFactor / 2;
    float cosines[kFactor], sines[kFactor];
    for (int i = 0; i < kFactor; ++i) {
      cosines[i] = roots_[2 * (length_ / kFactor * i)];
      sines[i] = roots_[2 * (length_ / kFactor * i) + 1];
    }
    for (int64_t q = 0; q < at.stride; ++q, ++in, out += at.out_step) {
      const Complex first = in[0];
      Complex sums[kHalf], differences[kHalf];
      out[0] = pair_up(in, at, kFactor, sums, differences);
#pragma GCC unroll 3
      for (int k = 1; k <= kHalf; ++k) {
        Complex even = first, odd;
#pragma GCC unroll 3
        for (int j = 0; j < kHalf; ++j) {
          const int wave = (j + 1) * k % kFactor;
          even = even + cosines[wave] * sums[j];
          odd = odd + sines[wave] * differences[j];
        }
        write_pair<kSign, kTurned>(even, odd, out, at, k, kFactor);
      }
    }
  }

  // A longer prime: two products of a matrix and the pairs of inputs.
  template <int kSign, bool kTurned>
  MMATTN_INLINE void step_of_prime(const Complex* in, Complex* out, const Step& at,
      int64_t factor, const float* waves) {
    const int64_t half = factor / 2;
    for (int64_t q = 0; q < at.stride; ++q, ++in, out += at.out_step) {
      const Complex first = in[0];
      out[0] = pair_up(in, at, factor, sums_, differences_);
      const float *cosines = waves, *sines = waves + waves_size(factor);
      for (int64_t k = 0; k < half; k += kOutputs) {
        Complex even[kOutputs], odd[kOutputs];
        multiply(sums_, cosines + k * half, half, even);
        multiply(differences_, sines + k * half, half, odd);
        for (int i = 0; i < kOutputs && k + i < half; ++i) {
          write_pair<kSign, kTurned>(
              first + even[i], odd[i], out, at, k + i + 1, factor);
        }
      }
    }
  }

  // Makes kOutputs sums of `count` numbers, in registers.
  static void multiply(
      const Complex* from, const float* factors, int64_t count, Complex* to) {
    Floats re[kOutputs]{}, im[kOutputs]{};
    for (int64_t j = 0; j < count; ++j) {
      const Floats a = from[j].re, b = from[j].im;
#pragma GCC unroll 6
      for (int i = 0; i < kOutputs; ++i) {
        re[i] += a * factors[j * kOutputs + i];
        im[i] += b * factors[j * kOutputs + i];
      }
    }
    for (int i = 0; i < kOutputs; ++i) {
      to[i] = Complex{re[i], im[i]};
    }
  }

  const int64_t length_;
  int num_factors_ = 0;
  int64_t factors_[64];
  Buffer<float> roots_{2 * length_}, waves_{find_factors()};
  Buffer<Complex> first_{length_}, second_{length_}, result_{length_};
  Buffer<Complex> sums_{length_}, differences_{length_};
};

}  // namespace
