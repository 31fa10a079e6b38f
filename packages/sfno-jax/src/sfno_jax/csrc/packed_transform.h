// The kernels of packed_job.h: FFT with the fields of a sample as lanes, Legendre sums with them as columns.
//
// The rows of a northern latitude and of its mirror image are folded before the FFT, w_n n + w_s s and
// w_n n - w_s s, and transformed together as the real and imaginary part of one complex row.
#pragma once

#include "legendre_block.h"
#include "matrix_product.h"
#include "packed_job.h"
#include "row_fft.h"
#include "series.h"
#include "single.h"
#include "transpose.h"

namespace sfno::SFNO_ISA {

template <typename T>
constexpr int kFields = SFNO_VECTOR_BYTES / sizeof(T);  // fields in a register

constexpr int kPackedRows = 16;  // functions of one parity in a block

// Sizes of a tile's stack. The distance of orders is kept away from powers of two, which would put all orders of a
// latitude into one set of the cache.
template <typename T>
struct Stack {
  int64_t columns, parity, order;
  int orders;
  T* data;

  Stack(const PackedJob& job, int64_t samples)
      : columns(samples * 2 * job.channels),
        parity(job.base.latitudes.padded * columns),
        order(2 * parity + 5 * 64 / static_cast<int64_t>(sizeof(T))),
        orders(smaller(smaller(job.base.mmax, job.base.nfreq), job.base.lmax)),
        data(static_cast<T*>(job.stack)) {}
  SFNO_INLINE T* at(int m, int parity_of, int latitude) const {
    return data + m * order + parity_of * parity + latitude * columns;
  }
};

template <typename T>
struct PackedScratch {
  Register<T>* z[2];  // [nlon][re, im]
  double* state;
  T* functions;  // [parity][kPackedRows][padded]
  T* block;      // [kPackedRows][columns]
  T* spare;      // [columns]: where rows beyond the last degree go

  PackedScratch(const PackedJob& job, void* memory) { layout(job, static_cast<char*>(memory)); }
  static int64_t bytes(const PackedJob& job) {
    PackedScratch s;
    return s.layout(job, nullptr) - static_cast<char*>(nullptr);
  }

 private:
  PackedScratch() = default;
  char* layout(const PackedJob& job, char* p) {
    const int64_t columns = Stack<T>(job, job.samples).columns, padded = job.base.latitudes.padded;
    take(z[0], p, 2 * (int64_t{job.nlon} + kFields<T>));
    take(z[1], p, 2 * (int64_t{job.nlon} + kFields<T>));
    take(state, p, LegendreBlocks<T, kPackedRows>::kState * padded);
    take(functions, p, 2 * kPackedRows * padded);
    take(block, p, kPackedRows * columns);
    take(spare, p, columns);
    return p;
  }
  template <typename U>
  static void take(U*& result, char*& p, int64_t count) {
    result = reinterpret_cast<U*>(p);
    p += (count * static_cast<int64_t>(sizeof(U)) + 63) / 64 * 64;
  }
};

// Where a unit's rows are: those of the first channel, `plane` apart from channel to channel.
template <typename T>
struct RowPair {
  int64_t north, south, plane;

  RowPair(const PackedJob& job, int64_t sample, int latitude) : plane(int64_t{job.base.nlat} * job.nlon) {
    const int row = job.base.latitudes.count - 1 - latitude;
    const int64_t first = sample * job.channels * plane;
    north = first + int64_t{row} * job.nlon;
    south = first + int64_t{job.base.nlat - 1 - row} * job.nlon;
  }
};

template <typename T>
const FftPass<T>* passes_of(const PackedJob& job) {
  if constexpr (sizeof(T) == 4) {
    return job.passes_single;
  } else {
    return job.passes_double;
  }
}

template <typename T>
void analyse_rows(const PackedJob& job, int64_t unit, void* memory) {
  using C = Complexes<T>;
  using V = Register<T>;
  const Latitudes& lat = job.base.latitudes;
  const PackedScratch<T> scratch(job, memory);
  const Stack<T> stack(job, job.samples);
  const int64_t sample = unit / lat.padded;
  const int j = static_cast<int>(unit % lat.padded), n = job.nlon;
  if (j >= lat.count) {  // padding
    for (int m = 0; m < stack.orders; ++m)
      for (int parity = 0; parity < 2; ++parity)
        for (int c = 0; c < 2 * job.channels; ++c) stack.at(m, parity, j)[sample * 2 * job.channels + c] = 0;
    return;
  }
  const RowPair<T> rows(job, job.sample + sample, j);
  const T* in = static_cast<const T*>(job.base.input);
  // One half: the spectra of two real rows are half of sums and differences.
  const T wn = static_cast<T>(0.5 * lat.weight_north[j]), ws = static_cast<T>(0.5 * lat.weight_south[j]);
  for (int c = 0; c < job.channels; c += kFields<T>) {
    const T* north = in + rows.north + c * rows.plane;
    const T* south = in + rows.south + c * rows.plane;
    V* z = scratch.z[0];
    for (int i = 0; i < n; i += 2 * C::kCount) {
      const int pairs = smaller((n - i) / 2, C::kCount);
      V even[2][C::kCount], odd[2][C::kCount];
      for (int half = 0; half < 2; ++half) {
        for (int r = 0; r < C::kCount; ++r) {
          const int64_t offset = (half * C::kCount + r) * rows.plane + i;
          const V a = C::load(north + offset, pairs) * wn, b = C::load(south + offset, pairs) * ws;
          even[half][r] = a + b;
          odd[half][r] = a - b;
        }
        C::transpose(even[half]);
        C::transpose(odd[half]);
      }
      V* out = z + 2 * i;
      for (int r = 0; r < C::kCount; ++r, out += 4) {
        deinterleave(even[0][r], even[1][r]);
        deinterleave(odd[0][r], odd[1][r]);
        out[0] = even[0][r];
        out[1] = odd[0][r];
        out[2] = even[1][r];
        out[3] = odd[1][r];
      }
    }
    z = fft<false, T>(passes_of<T>(job), job.passes, z, scratch.z[1]);
    // even = (Z_m + conj Z_{n-m}) / 2,  odd = (Z_m - conj Z_{n-m}) / 2i
    T* to = stack.at(0, 0, j) + sample * 2 * job.channels + c;
    for (int m = 0; m < stack.orders; ++m, to += stack.order) {
      const V* p = z + 2 * m;
      const V* q = z + 2 * (m == 0 ? 0 : n - m);
      *reinterpret_cast<V*>(to) = p[0] + q[0];
      *reinterpret_cast<V*>(to + job.channels) = p[1] - q[1];
      *reinterpret_cast<V*>(to + stack.parity) = p[1] + q[1];
      *reinterpret_cast<V*>(to + stack.parity + job.channels) = q[0] - p[0];
    }
  }
}

template <typename T>
void synthesise_rows(const PackedJob& job, int64_t unit, void* memory) {
  using C = Complexes<T>;
  using V = Register<T>;
  const Latitudes& lat = job.base.latitudes;
  const PackedScratch<T> scratch(job, memory);
  const Stack<T> stack(job, job.samples);
  const int64_t sample = unit / lat.padded;
  const int j = static_cast<int>(unit % lat.padded), n = job.nlon;
  if (j >= lat.count) return;
  const RowPair<T> rows(job, job.sample + sample, j);
  T* out = static_cast<T*>(job.base.output);
  const T* onto = static_cast<const T*>(job.onto);
  const T wn = static_cast<T>(lat.weight_north[j]), ws = static_cast<T>(lat.weight_south[j]);
  for (int c = 0; c < job.channels; c += kFields<T>) {
    V* z = scratch.z[0];
    // Re sum_m E_m exp(i m x) has the spectrum E_m / 2 at m and conj E_m / 2 at n - m (but for 0 and n / 2, which
    // are real and whole); the stack holds the halves. Z = even + i odd.
    const T* from = stack.at(0, 0, j) + sample * 2 * job.channels + c;
    for (int m = 0; m < stack.orders; ++m, from += stack.order) {
      const V er = *reinterpret_cast<const V*>(from), ei = *reinterpret_cast<const V*>(from + job.channels);
      const V dr = *reinterpret_cast<const V*>(from + stack.parity);
      const V di = *reinterpret_cast<const V*>(from + stack.parity + job.channels);
      if (m == 0 || 2 * m == n) {
        z[2 * m] = er;
        z[2 * m + 1] = dr;
      } else {
        z[2 * m] = er - di;
        z[2 * m + 1] = ei + dr;
        z[2 * (n - m)] = er + di;
        z[2 * (n - m) + 1] = dr - ei;
      }
    }
    for (int m = 2 * stack.orders; m < 2 * (n - stack.orders + 1); ++m) z[m] = V{};
    z = fft<true, T>(passes_of<T>(job), job.passes, z, scratch.z[1]);
    T* north = out + rows.north + c * rows.plane;
    T* south = out + rows.south + c * rows.plane;
    for (int i = 0; i < n; i += 2 * C::kCount) {
      const int pairs = smaller((n - i) / 2, C::kCount);
      V up[2][C::kCount], down[2][C::kCount];
      const V* p = z + 2 * i;
      for (int r = 0; r < C::kCount; ++r, p += 4) {
        for (int k = 0; k < 2; ++k) {
          up[k][r] = (p[2 * k] + p[2 * k + 1]) * wn;
          down[k][r] = (p[2 * k] - p[2 * k + 1]) * ws;
        }
        interleave(up[0][r], up[1][r]);
        interleave(down[0][r], down[1][r]);
      }
      for (int half = 0; half < 2; ++half) {
        C::transpose(up[half]);
        C::transpose(down[half]);
        for (int r = 0; r < C::kCount; ++r) {
          const int64_t offset = (half * C::kCount + r) * rows.plane + i;
          if (onto) {
            up[half][r] += C::load(onto + (north + offset - out), pairs);
            down[half][r] += C::load(onto + (south + offset - out), pairs);
          }
          C::store(north + offset, up[half][r], pairs);
          if (north != south) C::store(south + offset, down[half][r], pairs);
        }
      }
    }
  }
}

// Packed coefficients of (l, m) of the tile's samples.
template <typename T, typename P>
SFNO_INLINE T* packed_row(const PackedJob& job, P* packed, int l, int m) {
  const int64_t row = (mode_row(l, job.base.mmax) + m) * job.base.batch + job.sample;
  return static_cast<T*>(packed) + row * 2 * job.channels;
}

template <typename T>
void analyse_order(const PackedJob& job, int64_t unit, void* memory) {
  const int m = static_cast<int>(unit);
  const PackedScratch<T> scratch(job, memory);
  const Stack<T> stack(job, job.samples);
  const Latitudes& lat = job.base.latitudes;
  if (m >= stack.orders) {  // orders that the grid does not hold
    for (int l = m; l < job.base.lmax; ++l) {
      T* row = packed_row<T>(job, job.base.output, l, m);
      for (int64_t c = 0; c < stack.columns; ++c) row[c] = 0;
    }
    return;
  }
  const OrderFunctions f(job.base, m);
  const double factor = order_sign(job.base, m) * job.order_scale[m];
  LegendreBlocks<T, kPackedRows> functions(*f.table, f.power, lat, scratch.state, scratch.functions);
  for (int k = 0; k < f.steps(); k += kPackedRows) {
    const int active = functions.next_block(k);
    for (int tile = 0; tile < 2 * kPackedRows; tile += kTileRows) {
      const int parity = tile / kPackedRows, r0 = tile % kPackedRows;
      T scale[kTileRows];
      T* out[kTileRows];
      for (int r = 0; r < kTileRows; ++r) {
        const int step = k + r0 + r, l = m + 2 * step + parity;
        const bool inside = l < job.base.lmax;
        scale[r] = inside ? static_cast<T>(f.table->alpha[parity][step] * factor * job.base.degree_scale[l]) : T(0);
        out[r] = inside ? packed_row<T>(job, job.base.output, l, m) : scratch.spare;
      }
      if (out[0] == scratch.spare) continue;
      product_rows(functions.row(parity, r0), lat.padded, active, stack.at(m, parity, 0), stack.columns, scale, out);
    }
  }
}

template <typename T>
void synthesise_order(const PackedJob& job, int64_t unit, void* memory) {
  const int m = static_cast<int>(unit);
  const PackedScratch<T> scratch(job, memory);
  const Stack<T> stack(job, job.samples);
  const Latitudes& lat = job.base.latitudes;
  if (m >= stack.orders) return;
  const OrderFunctions f(job.base, m);
  const bool whole = m == 0 || 2 * m == job.nlon;
  const double factor = order_sign(job.base, m) * job.order_scale[m] * (whole ? 1.0 : 0.5);
  T* sums = stack.at(m, 0, 0);
  for (int64_t c = 0; c < 2 * stack.parity; ++c) sums[c] = 0;
  LegendreBlocks<T, kPackedRows> functions(*f.table, f.power, lat, scratch.state, scratch.functions);
  for (int k = 0; k < f.steps(); k += kPackedRows) {
    const int active = functions.next_block(k);
    for (int parity = 0; parity < 2; ++parity) {
      int rows = 0;
      for (; rows < kPackedRows; ++rows) {
        const int step = k + rows, l = m + 2 * step + parity;
        if (l >= job.base.lmax) break;
        const T d = static_cast<T>(f.table->alpha[parity][step] * factor * job.base.degree_scale[l]);
        const T* a = packed_row<const T>(job, job.base.input, l, m);
        T* row = scratch.block + rows * stack.columns;
        for (int64_t c = 0; c < stack.columns; ++c) row[c] = d * a[c];
      }
      for (int j = 0; j < active && rows > 0; j += kTileRows) {
        product_transposed(functions.row(parity, 0) + j, lat.padded, rows, scratch.block, stack.columns,
                           stack.at(m, parity, j));
      }
    }
  }
}

}  // namespace sfno::SFNO_ISA
