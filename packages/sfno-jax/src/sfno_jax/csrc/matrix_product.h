// Small matrix products with the fields as columns.
//
// A tile of C = P X keeps kTileRows x (up to) two registers of C in registers; each element of P is
// broadcast to as many columns, each register of X is used for as many rows.
#pragma once

#include "simd.h"

namespace sfno::SFNO_ISA {

constexpr int kTileRows = SFNO_VECTOR_BYTES == 64 ? 8 : 4;

// C[r][c] (+)= scale[r] * sum_k P[r * row_stride + k * inner_stride] X[k][c], one tile.
template <typename T, int Columns, bool kAccumulate, bool kUnitInner>
SFNO_INLINE void product_tile(const T* P, int64_t stride, int inner, const T* X, int64_t x_stride,
                              const T* scale, T* const* C) {
  using Register = typename Simd<T>::Full;
  using Memory = typename Simd<T>::FullUnaligned;
  constexpr int kWidth = SFNO_VECTOR_BYTES / sizeof(T);
  Register sum[kTileRows][Columns];
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < Columns; ++c)
      sum[r][c] = kAccumulate ? Register(*reinterpret_cast<const Memory*>(C[r] + c * kWidth))
                              : Register{};
  for (int k = 0; k < inner; ++k) {
    Register x[Columns];
#pragma GCC unroll 4
    for (int c = 0; c < Columns; ++c) {
      x[c] = *reinterpret_cast<const Memory*>(X + k * x_stride + c * kWidth);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      const Register p = (kUnitInner ? P[r * stride + k] : P[k * stride + r]) - Register{};
#pragma GCC unroll 4
      for (int c = 0; c < Columns; ++c) sum[r][c] += p * x[c];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < Columns; ++c)
      *reinterpret_cast<Memory*>(C[r] + c * kWidth) = scale ? sum[r][c] * scale[r] : sum[r][c];
}

// C = diag(scale) P X for kTileRows rows P[r * stride + k], all columns; C given by row pointers.
template <typename T>
void product_rows(const T* P, int64_t stride, int inner, const T* X, int64_t columns,
                  const T* scale, T* const* C) {
  constexpr int kWidth = SFNO_VECTOR_BYTES / sizeof(T);
  T* rows[kTileRows];
  int64_t c = 0;
  for (; c + 2 * kWidth <= columns; c += 2 * kWidth) {
    for (int r = 0; r < kTileRows; ++r) rows[r] = C[r] + c;
    product_tile<T, 2, false, true>(P, stride, inner, X + c, columns, scale, rows);
  }
  if (c < columns) {
    for (int r = 0; r < kTileRows; ++r) rows[r] = C[r] + c;
    product_tile<T, 1, false, true>(P, stride, inner, X + c, columns, scale, rows);
  }
}

// C += P^T X for kTileRows rows P[k * stride + r], all columns; rows of C are `columns` apart.
template <typename T>
void product_transposed(const T* P, int64_t stride, int inner, const T* X, int64_t columns, T* C) {
  constexpr int kWidth = SFNO_VECTOR_BYTES / sizeof(T);
  T* rows[kTileRows];
  int64_t c = 0;
  for (; c + 2 * kWidth <= columns; c += 2 * kWidth) {
    for (int r = 0; r < kTileRows; ++r) rows[r] = C + r * columns + c;
    product_tile<T, 2, true, false>(P, stride, inner, X + c, columns, nullptr, rows);
  }
  if (c < columns) {
    for (int r = 0; r < kTileRows; ++r) rows[r] = C + r * columns + c;
    product_tile<T, 1, true, false>(P, stride, inner, X + c, columns, nullptr, rows);
  }
}

}  // namespace sfno::SFNO_ISA
