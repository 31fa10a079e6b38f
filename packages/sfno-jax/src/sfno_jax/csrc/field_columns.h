// Between arrays whose last axis is the order m and matrices whose last axis is the field.
//
// In memory a row of Fourier or spectral coefficients of one field (real type D) is contiguous in m; the
// matrix products (real type T) want the fields contiguous. Square blocks are transposed in registers.
#pragma once

#include "job.h"
#include "prefetch.h"
#include "simd.h"
#include "transpose.h"

namespace sfno::SFNO_ISA {

// out[order][field] <- in[field * stride + order], complex. `row`: distance to the next row of a field.
template <typename D, typename T>
void gather_orders(const D* in, int64_t stride, int orders, int64_t fields, int64_t row,
                   T* const* out) {
  using C = Complexes<D>;
  for (int64_t b = 0; b < fields; ++b) prefetch<0>(in + b * stride + kAhead * 2 * row, orders);
  for (int i = 0; i < orders; i += C::kCount) {
    const int count = smaller(orders - i, C::kCount);
    for (int64_t b = 0; b < fields; b += C::kCount) {
      typename C::Register v[C::kCount];
      for (int r = 0; r < C::kCount; ++r) {
        v[r] = C::load(in + (b + r) * stride + 2 * i, b + r < fields ? count : 0);
      }
      C::transpose(v);
      for (int r = 0; r < count; ++r) C::store_to(out[i + r] + 2 * b, v[r]);
    }
  }
}

// out[field * stride + order] <- in[order][field]; a null row of `in` is zero.
template <typename T, typename D>
void scatter_orders(const T* const* in, int orders, int64_t fields, int64_t row, D* out,
                    int64_t stride) {
  using C = Complexes<D>;
  for (int64_t b = 0; b < fields; ++b) prefetch<1>(out + b * stride + kAhead * 2 * row, orders);
  for (int i = 0; i < orders; i += C::kCount) {
    const int count = smaller(orders - i, C::kCount);
    for (int64_t b = 0; b < fields; b += C::kCount) {
      typename C::Register v[C::kCount];
      for (int r = 0; r < C::kCount; ++r) {
        v[r] = r < count && in[i + r] ? C::load_from(in[i + r] + 2 * b) : typename C::Register{};
      }
      C::transpose(v);
      for (int r = 0; r < C::kCount && b + r < fields; ++r) {
        C::store(out + (b + r) * stride + 2 * i, v[r], count);
      }
    }
  }
}

// Rows of Fourier coefficients of `fields` fields to X[order][parity][latitude][column], folding north
// onto south. `first_factor`: null, or a factor per latitude for the first order.
template <typename D, typename T>
void fold_batch(const D* rows, int64_t stride, int64_t fields, const Job& job, int m0, int orders,
                const double* first_factor, T* X, int64_t columns) {
  using C = Complexes<D>;
  const Latitudes& lat = job.latitudes;
  const int64_t parity_size = int64_t{lat.padded} * columns;
  for (int j = 0; j < lat.padded; ++j) {
    const int row = lat.count - 1 - smaller(j, lat.count - 1);
    const D* north = rows + (int64_t{row} * job.nfreq + m0) * 2;
    const D* south = rows + (int64_t{job.nlat - 1 - row} * job.nfreq + m0) * 2;
    const D wn = static_cast<D>(lat.weight_north[j]), ws = static_cast<D>(lat.weight_south[j]);
    T* out = X + int64_t{j} * columns;
    if (j + kAhead < lat.count) {
      for (int64_t b = 0; b < fields; ++b) {
        prefetch<0>(north + b * stride - int64_t{kAhead} * job.nfreq * 2, orders);
        prefetch<0>(south + b * stride + int64_t{kAhead} * job.nfreq * 2, orders);
      }
    }
    for (int i = 0; i < orders; i += C::kCount) {
      const int count = smaller(orders - i, C::kCount);
      for (int64_t b = 0; b < fields; b += C::kCount) {
        typename C::Register even[C::kCount], odd[C::kCount];
        for (int r = 0; r < C::kCount; ++r) {
          const int some = b + r < fields ? count : 0;
          const auto n = C::load(north + (b + r) * stride + 2 * i, some) * wn;
          const auto s = C::load(south + (b + r) * stride + 2 * i, some) * ws;
          even[r] = n + s;
          odd[r] = n - s;
        }
        C::transpose(even);
        C::transpose(odd);
        for (int r = 0; r < count; ++r) {
          T* o = out + int64_t{2} * (i + r) * parity_size + 2 * b;
          C::store_to(o, even[r]);
          C::store_to(o + parity_size, odd[r]);
        }
      }
    }
    if (first_factor) {
      const T f = static_cast<T>(first_factor[j]);
      for (int parity = 0; parity < 2; ++parity)
        for (int64_t c = 0; c < 2 * fields; ++c) out[parity * parity_size + c] *= f;
    }
  }
}

// The transpose of fold_batch; columns m0 + orders ... m0 + width are set to zero. Spoils X.
template <typename D, typename T>
void unfold_batch(T* X, int64_t columns, int64_t fields, const Job& job, int m0, int orders,
                  int width, const double* first_factor, D* rows, int64_t stride) {
  using C = Complexes<D>;
  const Latitudes& lat = job.latitudes;
  const int64_t parity_size = int64_t{lat.padded} * columns;
  for (int j = 0; j < lat.count; ++j) {
    const int row = lat.count - 1 - j;
    D* north = rows + (int64_t{row} * job.nfreq + m0) * 2;
    D* south = rows + (int64_t{job.nlat - 1 - row} * job.nfreq + m0) * 2;
    const D wn = static_cast<D>(lat.weight_north[j]), ws = static_cast<D>(lat.weight_south[j]);
    T* in = X + int64_t{j} * columns;
    if (j + kAhead < lat.count) {
      for (int64_t b = 0; b < fields; ++b) {
        prefetch<1>(north + b * stride - int64_t{kAhead} * job.nfreq * 2, width);
        prefetch<1>(south + b * stride + int64_t{kAhead} * job.nfreq * 2, width);
      }
    }
    if (first_factor && orders > 0) {
      const T f = static_cast<T>(first_factor[j]);
      for (int parity = 0; parity < 2; ++parity)
        for (int64_t c = 0; c < 2 * fields; ++c) in[parity * parity_size + c] *= f;
    }
    for (int i = 0; i < width; i += C::kCount) {
      const int count = smaller(width - i, C::kCount);
      for (int64_t b = 0; b < fields; b += C::kCount) {
        typename C::Register up[C::kCount], down[C::kCount];
        for (int r = 0; r < C::kCount; ++r) {
          typename C::Register even{}, odd{};
          if (i + r < orders) {
            const T* p = in + int64_t{2} * (i + r) * parity_size + 2 * b;
            even = C::load_from(p);
            odd = C::load_from(p + parity_size);
          }
          up[r] = (even + odd) * wn;
          down[r] = (even - odd) * ws;
        }
        C::transpose(up);
        C::transpose(down);
        for (int r = 0; r < C::kCount && b + r < fields; ++r) {
          C::store(north + (b + r) * stride + 2 * i, up[r], count);
          if (north != south) C::store(south + (b + r) * stride + 2 * i, down[r], count);
        }
      }
    }
  }
}

}  // namespace sfno::SFNO_ISA
