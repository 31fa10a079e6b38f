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
// is solved upwards (eps_l < eps_{l+1}: errors shrink).
SFNO_INLINE void degrees_of_sums(const OrderTable& order, const Vec* sums, int degrees, double* A) {
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
    A[4 * k] = alpha * ck[0];
    A[4 * k + 1] = alpha * ck[1];
    const double inverse = 1 / order.eps[2 * k + 1];
    const double ratio = order.eps[2 * k] * inverse;
    real = alpha * inverse * ck[2] - ratio * real;
    imag = alpha * inverse * ck[3] - ratio * imag;
    A[4 * k + 2] = real;
    A[4 * k + 3] = imag;
  }
}

// Synthesis, the transpose: coefficients A[l-m] of P_l to series[k] in q_k,
//     sum_l A_l P_l = sum_k series_even[k] q_k + x sum_k series_odd[k] q_k,
//     A_{l+1} = eps_{l+1} B_k + eps_{l+2} B_{k+1},   series_odd[k] = alpha_k B_k,   l = m + 2k.
// A must be readable (as zeros) one degree past the end.
SFNO_INLINE void series_of_degrees(const OrderTable& order, const double* A, int degrees,
                                   double* series) {
  double real = 0, imag = 0;  // B_{k+1}
  for (int k = (degrees + 1) / 2 - 1; k >= 0; --k) {
    const double alpha = order.alpha[0][k];
    series[4 * k] = alpha * A[4 * k];
    series[4 * k + 1] = alpha * A[4 * k + 1];
    const double inverse = 1 / order.eps[2 * k + 1];
    const double ratio = order.eps[2 * k + 2] * inverse;
    real = inverse * A[4 * k + 2] - ratio * real;
    imag = inverse * A[4 * k + 3] - ratio * imag;
    series[4 * k + 2] = alpha * real;
    series[4 * k + 3] = alpha * imag;
  }
}

// Vector harmonics. For m > 0, with Q_l = P_l / sin(theta),
//     D_l = l eps_{l+1} Q_{l+1} - (l+1) eps_l Q_{l-1},   E_l = m Q_l;
// for m = 0, E = 0 and D_l = -sqrt(l(l+1)) sin(theta) Q_{l,1} in the functions of order one. Vector
// transforms are thus two scalar ones with one degree more.

// A, B = sums of Q_l Vt, Q_l Vl for l = first, first+1, ..., lmax (first = max(m, 1)) to s_l, t_l for
// l = m ... lmax-1 (complex, `columns` pairs apart each). sign = +1, or -1 for the conjugate.
struct VectorDegrees {
  const OrderTable& order;
  int m, lmax;
  double sign;

  SFNO_INLINE double eps(int l) const { return order.eps[l - m]; }
};

SFNO_INLINE void vector_of_degrees(const VectorDegrees& v, const double* A, const double* B,
                                   double* s, double* t) {
  const int m = v.m;
  if (m == 0) {
    s[0] = s[1] = t[0] = t[1] = 0;
    for (int l = 1; l < v.lmax; ++l) {
      const double d = -__builtin_sqrt(static_cast<double>(l) * (l + 1));
      for (int c = 0; c < 2; ++c) {
        s[2 * l + c] = d * A[2 * (l - 1) + c];
        t[2 * l + c] = -d * B[2 * (l - 1) + c];
      }
    }
    return;
  }
  const double im = v.sign * m;
  for (int n = 0; m + n < v.lmax; ++n) {
    const int l = m + n;
    const double up = l * v.eps(l + 1), down = n > 0 ? (l + 1) * v.eps(l) : 0.0;
    const double* A0 = A + 2 * (n > 0 ? n - 1 : 0);
    const double* B0 = B + 2 * (n > 0 ? n - 1 : 0);
    // s = D A - i m B,  t = -D B - i m A
    s[2 * n] = up * A[2 * n + 2] - down * A0[0] + im * B[2 * n + 1];
    s[2 * n + 1] = up * A[2 * n + 3] - down * A0[1] - im * B[2 * n];
    t[2 * n] = -(up * B[2 * n + 2] - down * B0[0]) + im * A[2 * n + 1];
    t[2 * n + 1] = -(up * B[2 * n + 3] - down * B0[1]) - im * A[2 * n];
  }
}

// The transpose with i -> -i: s_l, t_l (l = m ... lmax-1) to coefficients A, B of Q_l,
// l = first ... lmax.
SFNO_INLINE void degrees_of_vector(const VectorDegrees& v, const double* s, const double* t,
                                   double* A, double* B) {
  const int m = v.m;
  if (m == 0) {
    for (int l = 1; l <= v.lmax; ++l) {
      const double d = l < v.lmax ? -__builtin_sqrt(static_cast<double>(l) * (l + 1)) : 0.0;
      for (int c = 0; c < 2; ++c) {
        A[2 * (l - 1) + c] = l < v.lmax ? d * s[2 * l + c] : 0.0;
        B[2 * (l - 1) + c] = l < v.lmax ? -d * t[2 * l + c] : 0.0;
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
        Ds[c] += w * s[2 * (n - 1) + c];
        Dt[c] += w * t[2 * (n - 1) + c];
      }
      if (n + 1 < degrees) {
        const double w = (l + 2) * v.eps(l + 1);
        Ds[c] -= w * s[2 * (n + 1) + c];
        Dt[c] -= w * t[2 * (n + 1) + c];
      }
      if (n < degrees) {
        s0[c] = s[2 * n + c];
        t0[c] = t[2 * n + c];
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
