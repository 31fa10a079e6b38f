// Between arrays whose last axis is the order m and matrices whose last axis is the field.
//
// In memory a row of Fourier or spectral coefficients of one field is contiguous in m; the matrix
// products want the fields contiguous. Blocks of kLanes orders by kLanes fields of complex64 (64 bits
// each) are transposed in registers.
#pragma once

#include "job.h"
#include "simd.h"

namespace sfno::SFNO_ISA {

// Transposes a kLanes x kLanes block of 64-bit elements.
SFNO_INLINE void transpose(Vec* v) {
#if SFNO_VECTOR_BYTES == 64
  Vec t[8], u[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = __builtin_shufflevector(v[i], v[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
    t[i + 1] = __builtin_shufflevector(v[i], v[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int k = 0; k < 2; ++k) {
      u[i + k] = __builtin_shufflevector(t[i + k], t[i + k + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      u[i + k + 2] = __builtin_shufflevector(t[i + k], t[i + k + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  for (int k = 0; k < 4; ++k) {
    v[k] = __builtin_shufflevector(u[k], u[k + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    v[k + 4] = __builtin_shufflevector(u[k], u[k + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
#elif SFNO_VECTOR_BYTES == 32
  Vec t[4];
  for (int i = 0; i < 4; i += 2) {
    t[i] = __builtin_shufflevector(v[i], v[i + 1], 0, 4, 2, 6);
    t[i + 1] = __builtin_shufflevector(v[i], v[i + 1], 1, 5, 3, 7);
  }
  for (int k = 0; k < 2; ++k) {
    v[k] = __builtin_shufflevector(t[k], t[k + 2], 0, 1, 4, 5);
    v[k + 2] = __builtin_shufflevector(t[k], t[k + 2], 2, 3, 6, 7);
  }
#else
  const Vec a = v[0], b = v[1];
  v[0] = __builtin_shufflevector(a, b, 0, 2);
  v[1] = __builtin_shufflevector(a, b, 1, 3);
#endif
}

using FloatVec = Simd<float>::Full;  // kLanes complex64 numbers

SFNO_INLINE void store_as(float* p, FloatVec v) {
  *reinterpret_cast<Simd<float>::FullUnaligned*>(p) = v;
}
SFNO_INLINE void store_as(double* p, FloatVec v) {
  for (int i = 0; i < 2 * kLanes; ++i) p[i] = static_cast<double>(v[i]);
}
SFNO_INLINE FloatVec load_as_float(const float* p) {
  return *reinterpret_cast<const Simd<float>::FullUnaligned*>(p);
}
SFNO_INLINE FloatVec load_as_float(const double* p) {
  FloatVec v;
  for (int i = 0; i < 2 * kLanes; ++i) v[i] = static_cast<float>(p[i]);
  return v;
}

// `count` <= kLanes complex numbers, the rest zero.
SFNO_INLINE FloatVec load_some(const float* p, int count) {
  if (count >= kLanes) return load_as_float(p);
  FloatVec v{};
  __builtin_memcpy(&v, p, sizeof(float) * 2 * static_cast<size_t>(count));
  return v;
}
SFNO_INLINE void store_some(float* p, FloatVec v, int count) {
  if (count >= kLanes) {
    store_as(p, v);
  } else {
    __builtin_memcpy(p, &v, sizeof(float) * 2 * static_cast<size_t>(count));
  }
}

// Rows of Fourier coefficients are visited a cache line at a time, one line in every row of every field:
// a pattern no hardware prefetcher follows.
constexpr int kAhead = 3;

template <typename D>
SFNO_INLINE void prefetch(const D* p, int orders) {
  __builtin_prefetch(p);
  __builtin_prefetch(p + 2 * orders - 1);
}

template <typename D>
SFNO_INLINE void prefetch_to_write(const D* p, int orders) {
  __builtin_prefetch(p, 1);
  __builtin_prefetch(p + 2 * orders - 1, 1);
}

// out[order][...fields] <- in[field * stride + order], complex.
template <typename D, typename T>
void gather_orders(const D* in, int64_t stride, int orders, int64_t fields, int64_t row, T* const* out) {
  for (int64_t b = 0; b < fields; ++b) prefetch(in + b * stride + kAhead * 2 * row, orders);
  if constexpr (sizeof(D) == 4) {
    for (int i = 0; i < orders; i += kLanes) {
      for (int64_t b = 0; b < fields; b += kLanes) {
        Vec v[kLanes];
        for (int r = 0; r < kLanes; ++r) {
          const int count = b + r < fields ? smaller(orders - i, kLanes) : 0;
          v[r] = reinterpret_cast<Vec>(load_some(in + (b + r) * stride + 2 * i, count));
        }
        transpose(v);
        for (int r = 0; r < smaller(kLanes, orders - i); ++r) {
          store_as(out[i + r] + 2 * b, reinterpret_cast<FloatVec>(v[r]));
        }
      }
    }
  } else {
    for (int64_t b = 0; b < fields; ++b) {
      for (int i = 0; i < orders; ++i) {
        out[i][2 * b] = static_cast<T>(in[b * stride + 2 * i]);
        out[i][2 * b + 1] = static_cast<T>(in[b * stride + 2 * i + 1]);
      }
    }
  }
}

// out[field * stride + order] <- in[order][...fields]; a null row of `in` is zero.
template <typename T, typename D>
void scatter_orders(const T* const* in, int orders, int64_t fields, int64_t row, D* out, int64_t stride) {
  for (int64_t b = 0; b < fields; ++b) prefetch_to_write(out + b * stride + kAhead * 2 * row, orders);
  if constexpr (sizeof(D) == 4) {
    for (int i = 0; i < orders; i += kLanes) {
      for (int64_t b = 0; b < fields; b += kLanes) {
        Vec v[kLanes];
        for (int r = 0; r < kLanes; ++r) {
          const T* row = i + r < orders ? in[i + r] : nullptr;
          v[r] = row ? reinterpret_cast<Vec>(load_as_float(row + 2 * b)) : Vec{};
        }
        transpose(v);
        for (int r = 0; r < kLanes && b + r < fields; ++r) {
          store_some(out + (b + r) * stride + 2 * i, reinterpret_cast<FloatVec>(v[r]),
                     smaller(orders - i, kLanes));
        }
      }
    }
  } else {
    for (int64_t b = 0; b < fields; ++b) {
      for (int i = 0; i < orders; ++i) {
        out[b * stride + 2 * i] = in[i] ? static_cast<D>(in[i][2 * b]) : D(0);
        out[b * stride + 2 * i + 1] = in[i] ? static_cast<D>(in[i][2 * b + 1]) : D(0);
      }
    }
  }
}

// Rows of Fourier coefficients of `fields` fields to X[order][parity][latitude][column], folding
// north onto south.
template <typename D, typename T>
void fold_batch(const D* rows, int64_t stride, int64_t fields, const Job& job, int m0, int orders,
                const double* first_factor, T* X, int64_t columns) {
  const Latitudes& lat = job.latitudes;
  const int64_t parity_size = int64_t{lat.padded} * columns;
  for (int j = 0; j < lat.padded; ++j) {
    const int row = lat.count - 1 - smaller(j, lat.count - 1);
    const D* north = rows + (int64_t{row} * job.nfreq + m0) * 2;
    const D* south = rows + (int64_t{job.nlat - 1 - row} * job.nfreq + m0) * 2;
    const D wn = static_cast<D>(lat.weight_north[j]), ws = static_cast<D>(lat.weight_south[j]);
    const T f = first_factor ? static_cast<T>(first_factor[j]) : T(1);
    T* out = X + int64_t{j} * columns;
    if (j + kAhead < lat.count) {
      for (int64_t b = 0; b < fields; ++b) {
        prefetch(north + b * stride - int64_t{kAhead} * job.nfreq * 2, orders);
        prefetch(south + b * stride + int64_t{kAhead} * job.nfreq * 2, orders);
      }
    }
    if constexpr (sizeof(D) == 4) {
      for (int i = 0; i < orders; i += kLanes) {
        const int count = smaller(orders - i, kLanes);
        for (int64_t b = 0; b < fields; b += kLanes) {
          Vec even[kLanes], odd[kLanes];
          for (int r = 0; r < kLanes; ++r) {
            const int some = b + r < fields ? count : 0;
            const FloatVec n = load_some(north + (b + r) * stride + 2 * i, some) * wn;
            const FloatVec s = load_some(south + (b + r) * stride + 2 * i, some) * ws;
            even[r] = reinterpret_cast<Vec>(n + s);
            odd[r] = reinterpret_cast<Vec>(n - s);
          }
          transpose(even);
          transpose(odd);
          for (int r = 0; r < count; ++r) {
            T* o = out + int64_t{2} * (i + r) * parity_size + 2 * b;
            store_as(o, reinterpret_cast<FloatVec>(even[r]));
            store_as(o + parity_size, reinterpret_cast<FloatVec>(odd[r]));
          }
        }
      }
    } else {
      for (int64_t b = 0; b < fields; ++b) {
        for (int i = 0; i < orders; ++i) {
          T* o = out + int64_t{2} * i * parity_size + 2 * b;
          for (int c = 0; c < 2; ++c) {
            const T n = wn * static_cast<T>(north[b * stride + 2 * i + c]);
            const T s = ws * static_cast<T>(south[b * stride + 2 * i + c]);
            o[c] = n + s;
            o[parity_size + c] = n - s;
          }
        }
      }
    }
    if (first_factor) {
      for (int parity = 0; parity < 2; ++parity)
        for (int64_t c = 0; c < 2 * fields; ++c) out[parity * parity_size + c] *= f;
    }
  }
}

// The transpose of fold_batch; columns m0 + orders ... m0 + width are set to zero.
template <typename D, typename T>
void unfold_batch(T* X, int64_t columns, int64_t fields, const Job& job, int m0, int orders,
                  int width, const double* first_factor, D* rows, int64_t stride) {
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
        prefetch_to_write(north + b * stride - int64_t{kAhead} * job.nfreq * 2, width);
        prefetch_to_write(south + b * stride + int64_t{kAhead} * job.nfreq * 2, width);
      }
    }
    if (first_factor && orders > 0) {
      const T f = static_cast<T>(first_factor[j]);
      for (int parity = 0; parity < 2; ++parity)
        for (int64_t c = 0; c < 2 * fields; ++c) in[parity * parity_size + c] *= f;
    }
    if constexpr (sizeof(D) == 4) {
      for (int i = 0; i < width; i += kLanes) {
        const int count = smaller(width - i, kLanes);
        for (int64_t b = 0; b < fields; b += kLanes) {
          Vec up[kLanes], down[kLanes];
          for (int r = 0; r < kLanes; ++r) {
            FloatVec even{}, odd{};
            if (i + r < orders) {
              const T* p = in + int64_t{2} * (i + r) * parity_size + 2 * b;
              even = load_as_float(p);
              odd = load_as_float(p + parity_size);
            }
            up[r] = reinterpret_cast<Vec>((even + odd) * wn);
            down[r] = reinterpret_cast<Vec>((even - odd) * ws);
          }
          transpose(up);
          transpose(down);
          for (int r = 0; r < kLanes && b + r < fields; ++r) {
            D* n = north + (b + r) * stride + 2 * i;
            store_some(n, reinterpret_cast<FloatVec>(up[r]), count);
            if (north != south) {
              store_some(south + (b + r) * stride + 2 * i, reinterpret_cast<FloatVec>(down[r]),
                         count);
            }
          }
        }
      }
    } else {
      for (int64_t b = 0; b < fields; ++b) {
        for (int i = 0; i < width; ++i) {
          const T* p = in + int64_t{2} * (i < orders ? i : 0) * parity_size + 2 * b;
          for (int c = 0; c < 2; ++c) {
            const T even = i < orders ? p[c] : T(0), odd = i < orders ? p[parity_size + c] : T(0);
            north[b * stride + 2 * i + c] = static_cast<D>(wn * (even + odd));
            if (north != south) south[b * stride + 2 * i + c] = static_cast<D>(ws * (even - odd));
          }
        }
      }
    }
  }
}

}  // namespace sfno::SFNO_ISA
