// Transforms of many fields at once: fields are the columns of matrix products whose other factor,
// the Legendre functions, is computed once for all of them.
//
// A unit is kOrders orders of a tile of fields. Scalar float32 fields are multiplied in float32 (the
// functions come from the float64 recurrence); vector fields always in float64, because dividing by
// sin(theta) near the poles would cost float32 its last digits.
#pragma once

#include "field_columns.h"
#include "fold.h"
#include "job.h"
#include "legendre_block.h"
#include "matrix_product.h"
#include "series.h"
#include "single.h"

namespace sfno::SFNO_ISA {

// Cache that X and `stage` may fill together [bytes]: some two thirds of an L2 cache.
constexpr int64_t kTileBytes = 700 << 10;
constexpr int kAnalysisRows = 8, kSynthesisRows = 16;
// Fields whose coefficients are moved together: their planes are often a power of two apart, so that the
// same entry of all of them falls into one set of the cache.
constexpr int64_t kFieldBlock = 8;

// Fields per unit: as many as fit the cache, at least 8, tiles of about equal size.
SFNO_INLINE int64_t fields_per_unit(const Job& job, int64_t compute_bytes) {
  const int64_t per_field = kOrders * (2 * job.latitudes.padded + job.lmax + 24) * 2 *
                            compute_bytes * job.components;
  int64_t fit = kTileBytes / per_field / 8 * 8;
  if (fit < 8) fit = 8;
  const int64_t tiles = (job.batch + fit - 1) / fit;
  return (job.batch + tiles - 1) / tiles;
}

template <typename T>
struct BatchScratch {
  int64_t columns;   // of T; [component][field][re, im], padded to whole registers
  int64_t component; // columns of one component
  int degrees;       // rows per order in `stage`
  T* X;              // [kOrders][parity][padded][columns]: folded fields
  T* stage;          // [kOrders][degrees][columns]: coefficients
  T* functions;      // [parity][rows][padded]
  T* block;          // [kSynthesisRows][columns]
  double* state;

  static constexpr int64_t kWidth = SFNO_VECTOR_BYTES / sizeof(T);

  BatchScratch(const Job& job, int64_t fields, void* memory) {
    measure(job, fields);
    auto* p = static_cast<char*>(memory);
    X = take<T>(p, x_size(job));
    stage = take<T>(p, stage_size());
    functions = take<T>(p, int64_t{2} * kSynthesisRows * job.latitudes.padded);
    block = take<T>(p, kSynthesisRows * columns);
    state = take<double>(p, int64_t{LegendreBlocks<T, 8>::kState} * job.latitudes.padded);
  }
  static int64_t bytes(const Job& job, int64_t fields) {
    BatchScratch s;
    s.measure(job, fields);
    return (s.x_size(job) + s.stage_size() + int64_t{2} * kSynthesisRows * job.latitudes.padded +
            kSynthesisRows * s.columns) * static_cast<int64_t>(sizeof(T)) +
           int64_t{8} * LegendreBlocks<T, 8>::kState * job.latitudes.padded + 5 * 64;
  }
  T* x_of(const Job& job, int order, int parity) const {
    return X + (int64_t{order} * 2 + parity) * job.latitudes.padded * columns;
  }
  T* stage_row(int order, int n) const { return stage + (int64_t{order} * degrees + n) * columns; }

 private:
  BatchScratch() = default;
  void measure(const Job& job, int64_t fields) {
    component = (2 * fields + 15) / 16 * 16;  // transposes move 8 complex numbers
    columns = (component * job.components + kWidth - 1) / kWidth * kWidth;
    degrees = job.lmax + 1 + 2 * kSynthesisRows + 1;
  }
  int64_t x_size(const Job& job) const {
    return int64_t{kOrders} * 2 * job.latitudes.padded * columns;
  }
  int64_t stage_size() const { return int64_t{kOrders} * degrees * columns; }
  template <typename U>
  static U* take(char*& p, int64_t count) {
    U* result = reinterpret_cast<U*>(p);
    p += (count * static_cast<int64_t>(sizeof(U)) + 63) / 64 * 64;
    return result;
  }
};

// out = up A_up + down A_down - i im B, for `count` / 2 fields.
template <typename T>
SFNO_INLINE void mix(int64_t count, T up, const T* A_up, T down, const T* A_down, T im, const T* B,
                     T* out) {
  for (int64_t c = 0; c < count; c += 2) {
    out[c] = up * A_up[c] + down * A_down[c] + im * B[c + 1];
    out[c + 1] = up * A_up[c + 1] + down * A_down[c + 1] - im * B[c];
  }
}

// Degree l of the vector harmonics, s and t, of the group's i-th order from the sums over Q_l (see
// series.h), for the fields whose columns start at `column`.
template <typename T>
void vector_degree(const Job& job, const BatchScratch<T>& scratch, int i, int m, int l,
                   int64_t column, T* s, T* t) {
  constexpr int64_t n = 2 * kFieldBlock;
  const T scale = static_cast<T>(job.degree_scale[l]);
  const int64_t to_B = scratch.component;
  if (m == 0) {
    const T d = -scale * static_cast<T>(__builtin_sqrt(1.0 * l * (l + 1)));
    const T* A = scratch.stage_row(i, larger(l - 1, 0)) + column;
    const T* B = A + to_B;
    mix<T>(n, d, A, T(0), A, T(0), A, s);
    mix<T>(n, -d, B, T(0), B, T(0), B, t);
    return;
  }
  const VectorDegrees v = vector_degrees(job, m);
  const T up = scale * static_cast<T>(l * v.eps(l + 1));
  const T down = l > m ? -scale * static_cast<T>((l + 1) * v.eps(l)) : T(0);
  const T im = scale * static_cast<T>(v.sign * m);
  const T* A = scratch.stage_row(i, l - m) + column;
  const T* A_up = A + scratch.columns;
  const T* A_down = l > m ? A - scratch.columns : A;
  mix<T>(n, up, A_up, down, A_down, im, A + to_B, s);
  mix<T>(n, -up, A_up + to_B, -down, A_down + to_B, im, A, t);
}

// Coefficients of a group of orders from `stage` to the output.
template <typename D, typename T>
void write_coefficients(const Job& job, const BatchScratch<T>& scratch, int64_t fields, int m0,
                        int orders, D* out) {
  const int width = smaller(kOrders, job.mmax - m0);
  const int64_t plane = int64_t{job.lmax} * job.mmax * 2;
  alignas(64) T mixed[2][kOrders][2 * kFieldBlock];
  const T* source[2][kOrders];
  for (int64_t b = 0; b < fields; b += kFieldBlock) {
    const int64_t some = fields - b < kFieldBlock ? fields - b : kFieldBlock;
    for (int l = 0; l < job.lmax; ++l) {
      for (int i = 0; i < kOrders; ++i) {
        const bool inside = i < orders && m0 + i <= l;
        source[0][i] = source[1][i] = nullptr;
        if (inside && job.components == 1) {
          source[0][i] = scratch.stage_row(i, l - m0 - i) + 2 * b;
        } else if (inside) {
          source[0][i] = mixed[0][i];
          source[1][i] = mixed[1][i];
          vector_degree(job, scratch, i, m0 + i, l, 2 * b, mixed[0][i], mixed[1][i]);
        }
      }
      for (int c = 0; c < job.components; ++c) {
        scatter_orders<T, D>(
            source[c], width, some, job.mmax,
            out + (b * job.components + c) * plane + (int64_t{l} * job.mmax + m0) * 2,
            plane * job.components);
      }
    }
  }
}

// The other way; the row behind the last degree becomes zero.
template <typename D, typename T>
void read_coefficients(const Job& job, const BatchScratch<T>& scratch, int64_t fields, int m0,
                       int orders, const D* in) {
  const int64_t plane = int64_t{job.lmax} * job.mmax * 2;
  T* target[kOrders];
  for (int64_t b = 0; b < fields && orders > 0; b += kFieldBlock) {
    const int64_t some = fields - b < kFieldBlock ? fields - b : kFieldBlock;
    for (int l = m0; l < job.lmax; ++l) {
      const int n = smaller(orders, l - m0 + 1);
      for (int c = 0; c < job.components; ++c) {
        for (int i = 0; i < n; ++i) {
          target[i] = scratch.stage_row(i, l - m0 - i) + c * scratch.component + 2 * b;
        }
        gather_orders<D, T>(
            in + (b * job.components + c) * plane + (int64_t{l} * job.mmax + m0) * 2,
            plane * job.components, n, some, job.mmax, target);
      }
    }
  }
  for (int i = 0; i < orders; ++i) {
    T* last = scratch.stage_row(i, job.lmax - m0 - i);
    for (int64_t c = 0; c < scratch.columns; ++c) last[c] = 0;
  }
}

template <typename D, typename T>
void analysis_batch(const Job& job, int64_t field, int64_t fields, int m0, void* memory) {
  const BatchScratch<T> scratch(job, fields, memory);
  const Latitudes& lat = job.latitudes;
  const bool vector = job.components == 2;
  const int orders = active_orders(job, m0);
  const int64_t rows = int64_t{job.nlat} * job.nfreq * 2;
  for (int c = 0; c < job.components && orders > 0; ++c) {
    fold_batch<D, T>(static_cast<const D*>(job.input) + (field * job.components + c) * rows,
                     rows * job.components, fields, job, m0, orders,
                     vector && m0 == 0 ? lat.sine : nullptr, scratch.X + c * scratch.component,
                     scratch.columns);
  }
  for (int i = 0; i < orders; ++i) {
    const OrderFunctions f(job, m0 + i);
    LegendreBlocks<T, kAnalysisRows> functions(*f.table, f.power, lat, scratch.state,
                                               scratch.functions);
    for (int k = 0; k < f.steps(); k += kAnalysisRows) {
      const int active = functions.next_block(k);
      for (int tile = 0; tile < 2 * kAnalysisRows; tile += kTileRows) {
        const int parity = tile / kAnalysisRows, r0 = tile % kAnalysisRows;
        T scale[kTileRows];
        T* out[kTileRows];
        for (int r = 0; r < kTileRows; ++r) {
          const int n = 2 * (k + r0 + r) + parity, l = f.first + n;
          double d = f.table->alpha[parity][k + r0 + r] * order_sign(job, m0 + i);
          if (!vector && l < job.lmax) d *= job.degree_scale[l];
          scale[r] = static_cast<T>(d);
          out[r] = scratch.stage_row(i, n);
        }
        product_rows(functions.row(parity, r0), lat.padded, active, scratch.x_of(job, i, parity),
                     scratch.columns, scale, out);
      }
    }
  }
  write_coefficients(job, scratch, fields, m0, orders,
                     static_cast<D*>(job.output) +
                         field * job.components * int64_t{job.lmax} * job.mmax * 2);
}

// The coefficients of kSynthesisRows functions q_k of one parity, from step k on, for all fields.
template <typename T>
void series_block(const Job& job, const BatchScratch<T>& scratch, const OrderFunctions& f, int i,
                  int m, int k, int parity, T* block) {
  const int last = job.lmax - m;  // a row of zeros behind the coefficients
  const int64_t half = scratch.component;
  const auto scale = [&](double alpha, int l) {
    return l >= m && l < job.lmax ? alpha * job.degree_scale[l] : 0.0;
  };
  for (int r = 0; r < kSynthesisRows; ++r) {
    const int n = 2 * (k + r) + parity, l = f.first + n;
    const double alpha = order_sign(job, m) * f.table->alpha[parity][k + r];
    T* A = block + r * scratch.columns;
    T* B = A + half;
    if (job.components == 1) {
      const T d = static_cast<T>(scale(alpha, l));
      const T* a = scratch.stage_row(i, smaller(n, last));
      for (int64_t c = 0; c < scratch.columns; ++c) A[c] = d * a[c];
    } else if (m == 0) {
      const T d = static_cast<T>(-scale(alpha, l) * __builtin_sqrt(1.0 * l * (l + 1)));
      const T* s = scratch.stage_row(i, smaller(l, last));
      const T* t = s + half;
      mix<T>(half, d, s, T(0), s, T(0), s, A);
      mix<T>(half, -d, t, T(0), t, T(0), t, B);
    } else {
      const VectorDegrees v = vector_degrees(job, m);
      const T below = static_cast<T>(scale(alpha, l - 1) * (l - 1) * v.eps(l));
      const T above = static_cast<T>(-scale(alpha, l + 1) * (l + 2) * v.eps(l + 1));
      const T im = static_cast<T>(v.sign * m * scale(alpha, l));
      const T* s = scratch.stage_row(i, smaller(n, last));
      const T* s_below = scratch.stage_row(i, n > 0 ? smaller(n - 1, last) : last);
      const T* s_above = scratch.stage_row(i, smaller(n + 1, last));
      // A = D s + i m t,  B = i m s - D t
      mix<T>(half, below, s_below, above, s_above, -im, s + half, A);
      mix<T>(half, -below, s_below + half, -above, s_above + half, -im, s, B);
    }
  }
}

template <typename D, typename T>
void synthesis_batch(const Job& job, int64_t field, int64_t fields, int m0, void* memory) {
  const BatchScratch<T> scratch(job, fields, memory);
  const Latitudes& lat = job.latitudes;
  const bool vector = job.components == 2;
  const int orders = active_orders(job, m0);
  const int width = smaller(kOrders, job.nfreq - m0);
  const int64_t rows = int64_t{job.nlat} * job.nfreq * 2;
  const int64_t C = scratch.columns;
  read_coefficients(job, scratch, fields, m0, orders,
                    static_cast<const D*>(job.input) +
                        field * job.components * int64_t{job.lmax} * job.mmax * 2);
  for (int i = 0; i < orders; ++i) {
    const OrderFunctions f(job, m0 + i);
    T* S = scratch.x_of(job, i, 0);
    for (int64_t c = 0; c < int64_t{2} * lat.padded * C; ++c) S[c] = 0;
    LegendreBlocks<T, kSynthesisRows> functions(*f.table, f.power, lat, scratch.state,
                                                scratch.functions);
    for (int k = 0; k < f.steps(); k += kSynthesisRows) {
      const int active = functions.next_block(k);
      for (int parity = 0; parity < 2; ++parity) {
        series_block(job, scratch, f, i, m0 + i, k, parity, scratch.block);
        T* out = scratch.x_of(job, i, parity);
        for (int j = 0; j < active; j += kTileRows) {
          product_transposed(functions.row(parity, 0) + j, lat.padded, kSynthesisRows,
                             scratch.block, C, out + int64_t{j} * C);
        }
      }
    }
  }
  for (int c = 0; c < job.components; ++c) {
    unfold_batch<D, T>(scratch.X + c * scratch.component, C, fields, job, m0, orders, width,
                       vector && m0 == 0 ? lat.sine : nullptr,
                       static_cast<D*>(job.output) + (field * job.components + c) * rows,
                       rows * job.components);
  }
}

}  // namespace sfno::SFNO_ISA
