// FFT of many fields at once: the fields are the lanes of the registers, so that a pass needs no shuffles.
// Data are complex numbers as two registers, [point][re, im]; see fft_pass.h for the algorithm.
#pragma once

#include "fft_pass.h"
#include "simd.h"

namespace sfno::SFNO_ISA {

template <typename T>
using Register = typename Simd<T>::Full;

// (re, im) times the root (c, s), conjugated where kInverse.
template <bool kInverse, typename T>
SFNO_INLINE void rotate(T c, T s, Register<T> re, Register<T> im, Register<T>* out) {
  if (kInverse) s = -s;
  out[0] = re * c - im * s;
  out[1] = re * s + im * c;
}

template <bool kInverse, bool kTwiddle, typename T>
SFNO_INLINE void put(const T* w, int k, Register<T> re, Register<T> im, Register<T>* out) {
  if (kTwiddle && k > 0) {
    rotate<kInverse, T>(w[2 * k - 2], w[2 * k - 1], re, im, out);
  } else {
    out[0] = re;
    out[1] = im;
  }
}

// sum_j x_j exp(-+2 pi i j k / R) for all k: x at distance `in`, results at distance `out` registers.
template <int R, bool kInverse, bool kTwiddle, typename T>
SFNO_INLINE void butterfly(const Register<T>* x, int64_t in, Register<T>* y, int64_t out, const T* w,
                           [[maybe_unused]] const T* roots) {
  using V = Register<T>;
  V re[R], im[R];
#pragma GCC unroll 8
  for (int j = 0; j < R; ++j) {
    re[j] = x[j * in];
    im[j] = x[j * in + 1];
  }
  if constexpr (R == 2) {
    put<kInverse, kTwiddle, T>(w, 0, re[0] + re[1], im[0] + im[1], y);
    put<kInverse, kTwiddle, T>(w, 1, re[0] - re[1], im[0] - im[1], y + out);
  } else if constexpr (R == 4) {
    const V ar = re[0] + re[2], ai = im[0] + im[2], br = re[0] - re[2], bi = im[0] - im[2];
    const V cr = re[1] + re[3], ci = im[1] + im[3];
    // -i (x_1 - x_3), or +i of it
    const V dr = kInverse ? im[3] - im[1] : im[1] - im[3];
    const V di = kInverse ? re[1] - re[3] : re[3] - re[1];
    put<kInverse, kTwiddle, T>(w, 0, ar + cr, ai + ci, y);
    put<kInverse, kTwiddle, T>(w, 1, br + dr, bi + di, y + out);
    put<kInverse, kTwiddle, T>(w, 2, ar - cr, ai - ci, y + 2 * out);
    put<kInverse, kTwiddle, T>(w, 3, br - dr, bi - di, y + 3 * out);
  } else {
    // k and R - k share the sums over x_j + x_{R-j} and x_j - x_{R-j}.
    V sum_re = re[0], sum_im = im[0];
#pragma GCC unroll 8
    for (int j = 1; j < R; ++j) {
      sum_re += re[j];
      sum_im += im[j];
    }
    put<kInverse, kTwiddle, T>(w, 0, sum_re, sum_im, y);
#pragma GCC unroll 8
    for (int k = 1; k <= R / 2; ++k) {
      V even_re = re[0], even_im = im[0], odd_re{}, odd_im{};
#pragma GCC unroll 8
      for (int j = 1; j <= R / 2; ++j) {
        const T c = roots[2 * (j * k % R)], s = kInverse ? -roots[2 * (j * k % R) + 1] : roots[2 * (j * k % R) + 1];
        even_re += c * (re[j] + re[R - j]);
        even_im += c * (im[j] + im[R - j]);
        odd_re -= s * (im[j] - im[R - j]);
        odd_im += s * (re[j] - re[R - j]);
      }
      put<kInverse, kTwiddle, T>(w, k, even_re + odd_re, even_im + odd_im, y + k * out);
      put<kInverse, kTwiddle, T>(w, R - k, even_re - odd_re, even_im - odd_im, y + (R - k) * out);
    }
  }
}

template <int R, bool kInverse, bool kTwiddle, typename T>
void fft_pass(const FftPass<T>& pass, int s, const Register<T>* x, Register<T>* y) {
  const int64_t in = int64_t{2} * s * pass.m, out = int64_t{2} * s;
  for (int p = 0; p < pass.m; ++p) {
    const T* w = pass.twiddles + int64_t{2} * p * (R - 1);
    for (int q = 0; q < s; ++q) {
      butterfly<R, kInverse, kTwiddle, T>(x + 2 * (q + int64_t{s} * p), in, y + 2 * (q + int64_t{s} * p * R), out, w,
                                          pass.roots);
    }
  }
}

// Unnormalised FFT of n points, forward exp(-i...) or inverse exp(+i...). Uses both buffers, returns the one that
// holds the result.
template <bool kInverse, typename T>
Register<T>* fft(const FftPass<T>* passes, int count, Register<T>* data, Register<T>* other) {
  int s = 1;
  for (int i = 0; i < count; ++i) {
    const FftPass<T>& pass = passes[i];
    const auto run = [&](auto radix) {
      constexpr int R = decltype(radix)::value;
      pass.m > 1 ? fft_pass<R, kInverse, true, T>(pass, s, data, other)
                 : fft_pass<R, kInverse, false, T>(pass, s, data, other);
    };
    switch (pass.radix) {
      case 2: run(Constant<2>{}); break;
      case 3: run(Constant<3>{}); break;
      case 4: run(Constant<4>{}); break;
      case 5: run(Constant<5>{}); break;
      default: run(Constant<7>{}); break;
    }
    s *= pass.radix;
    Register<T>* t = data;
    data = other;
    other = t;
  }
  return data;
}

}  // namespace sfno::SFNO_ISA
