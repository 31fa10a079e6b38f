// Between sums over the even chain q_k and coefficients of the functions P_lm, and between
// coefficients of P_lm / sin(theta) and those of the vector harmonics.
#pragma once

#include "job.h"
#include "simd.h"

namespace sfno::SFNO_ISA {

// Sums of kLanes registers over their lanes, in one register.
SFNO_INLINE Vec sum_lanes(const Vec* v) {
#if SFNO_VECTOR_BYTES == 64
  Vec s[4], t[2];
  for (int i = 0; i < 4; ++i) {
    const Vec a = v[2 * i], b = v[2 * i + 1];
    s[i] = __builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14) +
           __builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15);
  }
  for (int i = 0; i < 2; ++i) {
    const Vec a = s[2 * i], b = s[2 * i + 1];
    t[i] = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13) +
           __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
  }
  return __builtin_shufflevector(t[0], t[1], 0, 1, 2, 3, 8, 9, 10, 11) +
         __builtin_shufflevector(t[0], t[1], 4, 5, 6, 7, 12, 13, 14, 15);
#elif SFNO_VECTOR_BYTES == 32
  Vec s[2];
  for (int i = 0; i < 2; ++i) {
    const Vec a = v[2 * i], b = v[2 * i + 1];
    s[i] = __builtin_shufflevector(a, b, 0, 4, 2, 6) + __builtin_shufflevector(a, b, 1, 5, 3, 7);
  }
  return __builtin_shufflevector(s[0], s[1], 0, 1, 4, 5) +
         __builtin_shufflevector(s[0], s[1], 2, 3, 6, 7);
#else
  return __builtin_shufflevector(v[0], v[1], 0, 2) + __builtin_shufflevector(v[0], v[1], 1, 3);
#endif
}

// Analysis: c[k] = (sum q_k F_even, sum x q_k F_odd), unreduced over lanes, to A[l-m] = sum P_l F for
// `degrees` degrees, where
//     alpha_k c_odd[k] = eps_{l+1} A_{l+1} + eps_l A_{l-1},   l = m + 2k,
// is solved upwards (eps_l < eps_{l+1}: errors shrink). Degrees are `stride` doubles apart; when
// their number is odd, one more is written.
SFNO_INLINE void degrees_of_sums(const OrderTable& order, const Vec* sums, int degrees, double* A,
                                 int64_t stride) {
  double real = 0, imag = 0;  // A_{l-1}
  alignas(64) double c[8];
  for (int k = 0; 2 * k < degrees; ++k) {
    const Vec* s = sums + 4 * k;
    if constexpr (kLanes == 8) {
      if (k % 2 == 0) store(c, sum_lanes(s));  // two steps at once
    } else {
      for (int i = 0; i < 4; i += kLanes) store(c + i, sum_lanes(s + i));
    }
    const double* ck = kLanes == 8 && k % 2 == 1 ? c + 4 : c;
    const double alpha = order.alpha[0][k];
    double* even = A + 2 * k * stride;
    double* odd = even + stride;
    even[0] = alpha * ck[0];
    even[1] = alpha * ck[1];
    const double inverse = 1 / order.eps[2 * k + 1];
    const double ratio = order.eps[2 * k] * inverse;
    real = alpha * inverse * ck[2] - ratio * real;
    imag = alpha * inverse * ck[3] - ratio * imag;
    odd[0] = real;
    odd[1] = imag;
  }
}

// Synthesis, the transpose: coefficients A[l-m] of P_l to series[k] in q_k,
//     sum_l A_l P_l = sum_k series_even[k] q_k + x sum_k series_odd[k] q_k,
//     A_{l+1} = eps_{l+1} B_k + eps_{l+2} B_{k+1},   series_odd[k] = alpha_k B_k,   l = m + 2k.
// Degrees are `stride` doubles apart.
SFNO_INLINE void series_of_degrees(const OrderTable& order, const double* A, int64_t stride,
                                   int degrees, double* series) {
  static constexpr double kZero[2] = {0, 0};
  double real = 0, imag = 0;  // B_{k+1}
  for (int k = (degrees + 1) / 2 - 1; k >= 0; --k) {
    const double alpha = order.alpha[0][k];
    const double* even = A + 2 * k * stride;
    const double* odd = 2 * k + 1 < degrees ? even + stride : kZero;
    series[4 * k] = alpha * even[0];
    series[4 * k + 1] = alpha * even[1];
    const double inverse = 1 / order.eps[2 * k + 1];
    const double ratio = order.eps[2 * k + 2] * inverse;
    real = inverse * odd[0] - ratio * real;
    imag = inverse * odd[1] - ratio * imag;
    series[4 * k + 2] = alpha * real;
    series[4 * k + 3] = alpha * imag;
  }
}

// Vector harmonics. For m > 0, with Q_l = P_l / sin(theta),
//     D_l = l eps_{l+1} Q_{l+1} - (l+1) eps_l Q_{l-1},   E_l = m Q_l;
// for m = 0, E = 0 and D_l = -sqrt(l(l+1)) sin(theta) Q_{l,1} in the functions of order one. Vector
// transforms are thus two scalar ones with one degree more.

struct VectorDegrees {
  const OrderTable& order;
  int m, lmax;
  double sign;  // of i: +1, or -1 for the conjugate

  SFNO_INLINE double eps(int l) const { return order.eps[l - m]; }
};

// A, B = sums of Q_l Vt, Q_l Vl for l = max(m, 1) ... lmax (complex, contiguous) to s_l, t_l for
// l = m ... lmax-1, `stride` doubles apart.
SFNO_INLINE void vector_of_degrees(const VectorDegrees& v, const double* A, const double* B,
                                   double* s, double* t, int64_t stride) {
  const int m = v.m;
  if (m == 0) {
    s[0] = s[1] = t[0] = t[1] = 0;
    for (int l = 1; l < v.lmax; ++l) {
      const double d = -__builtin_sqrt(static_cast<double>(l) * (l + 1));
      for (int c = 0; c < 2; ++c) {
        s[l * stride + c] = d * A[2 * (l - 1) + c];
        t[l * stride + c] = -d * B[2 * (l - 1) + c];
      }
    }
    return;
  }
  const double im = v.sign * m;
  for (int n = 0; m + n < v.lmax; ++n, s += stride, t += stride) {
    const int l = m + n;
    const double up = l * v.eps(l + 1), down = n > 0 ? (l + 1) * v.eps(l) : 0.0;
    const double* A0 = A + 2 * (n > 0 ? n - 1 : 0);
    const double* B0 = B + 2 * (n > 0 ? n - 1 : 0);
    // s = D A - i m B,  t = -D B - i m A
    s[0] = up * A[2 * n + 2] - down * A0[0] + im * B[2 * n + 1];
    s[1] = up * A[2 * n + 3] - down * A0[1] - im * B[2 * n];
    t[0] = -(up * B[2 * n + 2] - down * B0[0]) + im * A[2 * n + 1];
    t[1] = -(up * B[2 * n + 3] - down * B0[1]) - im * A[2 * n];
  }
}

// The transpose with i -> -i: s_l, t_l to coefficients A, B of Q_l.
SFNO_INLINE void degrees_of_vector(const VectorDegrees& v, const double* s, const double* t,
                                   int64_t stride, double* A, double* B) {
  const int m = v.m;
  if (m == 0) {
    for (int l = 1; l <= v.lmax; ++l) {
      const double d = l < v.lmax ? -__builtin_sqrt(static_cast<double>(l) * (l + 1)) : 0.0;
      for (int c = 0; c < 2; ++c) {
        A[2 * (l - 1) + c] = l < v.lmax ? d * s[l * stride + c] : 0.0;
        B[2 * (l - 1) + c] = l < v.lmax ? -d * t[l * stride + c] : 0.0;
      }
    }
    return;
  }
  const double im = v.sign * m;
  const int degrees = v.lmax - m;  // of s, t
  for (int n = 0; n <= degrees; ++n) {
    const int l = m + n;
    double Ds[2] = {0, 0}, Dt[2] = {0, 0}, s0[2] = {0, 0}, t0[2] = {0, 0};
    for (int c = 0; c < 2; ++c) {
      if (n > 0) {
        const double w = (l - 1) * v.eps(l);
        Ds[c] += w * s[(n - 1) * stride + c];
        Dt[c] += w * t[(n - 1) * stride + c];
      }
      if (n + 1 < degrees) {
        const double w = (l + 2) * v.eps(l + 1);
        Ds[c] -= w * s[(n + 1) * stride + c];
        Dt[c] -= w * t[(n + 1) * stride + c];
      }
      if (n < degrees) {
        s0[c] = s[n * stride + c];
        t0[c] = t[n * stride + c];
      }
    }
    // Vt = D s + i m t,  Vl = i m s - D t
    A[2 * n] = Ds[0] - im * t0[1];
    A[2 * n + 1] = Ds[1] + im * t0[0];
    B[2 * n] = -im * s0[1] - Dt[0];
    B[2 * n + 1] = im * s0[0] - Dt[1];
  }
}

}  // namespace sfno::SFNO_ISA
