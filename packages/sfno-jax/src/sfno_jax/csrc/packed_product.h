// Products of packed coefficients with a complex matrix per degree; see packed_job.h.
//
// A unit is kDegreesPerUnit degrees: their matrices are gathered from (out, in, lmax, 2) into panels with channels
// innermost (or scattered to it), where all three products are rows times vectors.
#pragma once

#include "packed_job.h"
#include "row_fft.h"
#include "simd.h"

namespace sfno::SFNO_ISA {

// Complex C[r][n] = sum_k A(r, k) B[k][n] for kRows rows and a register of columns; A conjugated where kConjugate.
// Real and imaginary parts are `im` apart.
template <int kRows, bool kConjugate, typename T>
SFNO_INLINE void complex_tile(const T* A, int64_t a_row, int64_t a_k, int64_t a_im, const T* B, int64_t b_k,
                              int64_t b_im, int64_t inner, T* C, int64_t c_row, int64_t c_im) {
  using V = Register<T>;
  V re[kRows], im[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) re[r] = im[r] = V{};
  for (int64_t k = 0; k < inner; ++k, A += a_k, B += b_k) {
    const V br = *reinterpret_cast<const V*>(B), bi = *reinterpret_cast<const V*>(B + b_im);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const V ar = A[r * a_row] - V{}, ai = A[r * a_row + a_im] - V{};
      re[r] += ar * br;
      im[r] += ar * bi;
      if (kConjugate) {
        re[r] += ai * bi;
        im[r] -= ai * br;
      } else {
        re[r] -= ai * bi;
        im[r] += ai * br;
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    *reinterpret_cast<V*>(C + r * c_row) = re[r];
    *reinterpret_cast<V*>(C + r * c_row + c_im) = im[r];
  }
}

template <bool kConjugate, typename T>
void complex_product(const T* A, int64_t rows, int64_t a_row, int64_t a_k, int64_t a_im, const T* B, int64_t columns,
                     int64_t b_k, int64_t b_im, int64_t inner, T* C, int64_t c_row, int64_t c_im) {
  constexpr int kRows = SFNO_VECTOR_BYTES == 64 ? 8 : 4, kWidth = SFNO_VECTOR_BYTES / sizeof(T);
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows) {
    for (int64_t n = 0; n < columns; n += kWidth) {
      complex_tile<kRows, kConjugate>(A + r * a_row, a_row, a_k, a_im, B + n, b_k, b_im, inner, C + r * c_row + n,
                                      c_row, c_im);
    }
  }
  for (; r < rows; ++r) {
    for (int64_t n = 0; n < columns; n += kWidth) {
      complex_tile<1, kConjugate>(A + r * a_row, a_row, a_k, a_im, B + n, b_k, b_im, inner, C + r * c_row + n, c_row,
                                  c_im);
    }
  }
}

inline int64_t product_scratch_bytes(const ProductJob& job) {
  return int64_t{kDegreesPerUnit} * 2 * job.in * job.out * (job.single_precision ? 4 : 8);
}

template <typename T>
void product_unit(const ProductJob& job, int64_t unit, void* memory) {
  const int l0 = static_cast<int>(unit) * kDegreesPerUnit;
  const int degrees = smaller(kDegreesPerUnit, job.lmax - l0);
  const int64_t in = job.in, out = job.out, size = in * out;
  T* panels = static_cast<T*>(memory);  // [degree][re, im][in][out], or [out][in] for the transpose
  const bool transposed = job.product == Product::kMixTransposed;
  const int64_t to_o = transposed ? in : 1, to_i = transposed ? 1 : out;
  if (job.product != Product::kOuter) {
    const T* w = static_cast<const T*>(job.b);
    const T sign = transposed ? T(-1) : T(1);
    for (int64_t o = 0; o < out; ++o) {
      for (int64_t i = 0; i < in; ++i) {
        const T* from = w + ((o * in + i) * job.lmax + l0) * 2;
        T* to = panels + o * to_o + i * to_i;
        for (int l = 0; l < degrees; ++l, to += 2 * size) {
          to[0] = from[2 * l];
          to[size] = sign * from[2 * l + 1];
        }
      }
    }
  }
  const int64_t a_width = transposed ? out : in;  // channels of the coefficients `a`
  const int64_t c_width = transposed ? in : out;
  for (int l = 0; l < degrees; ++l) {
    const int64_t first = mode_row(l0 + l, job.mmax) * job.batch, rows = orders_of(l0 + l, job.mmax) * job.batch;
    const T* A = static_cast<const T*>(job.a) + first * 2 * a_width;
    T* panel = panels + l * 2 * size;
    if (job.product == Product::kOuter) {
      const T* B = static_cast<const T*>(job.b) + first * 2 * out;
      complex_product<true>(A, in, 1, 2 * in, in, B, out, 2 * out, out, rows, panel, out, size);
    } else {
      T* C = static_cast<T*>(job.output) + first * 2 * c_width;
      complex_product<false>(A, rows, 2 * a_width, 1, a_width, panel, c_width, c_width, size, a_width, C, 2 * c_width,
                             c_width);
    }
  }
  if (job.product == Product::kOuter) {
    T* w = static_cast<T*>(job.output);
    for (int64_t o = 0; o < out; ++o) {
      for (int64_t i = 0; i < in; ++i) {
        T* to = w + ((o * in + i) * job.lmax + l0) * 2;
        const T* from = panels + o * to_o + i * to_i;
        for (int l = 0; l < degrees; ++l, from += 2 * size) {
          to[2 * l] = from[0];
          to[2 * l + 1] = from[size];
        }
      }
    }
  }
}

}  // namespace sfno::SFNO_ISA
