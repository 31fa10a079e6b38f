// The kernels of mlp_job.h: points are the columns of the products.
#pragma once

#include "gelu.h"
#include "matrix_product.h"
#include "mlp_job.h"
#include "transpose.h"

namespace sfno::SFNO_ISA {

constexpr int kPoints = 256;             // of a tile
constexpr int kPointStride = kPoints + 16;  // of a channel of it, off the powers of two that share a cache set
constexpr int kFloats = SFNO_VECTOR_BYTES / 4;

inline int64_t mlp_tiles(const MlpJob& job) { return job.batch * ((job.points + kPoints - 1) / kPoints); }

struct MlpScratch {
  float *x, *g, *hidden, *slope, *dhidden, *result;

  MlpScratch(const MlpJob& job, void* memory) {
    float* p = static_cast<float*>(memory);
    const auto take = [&p](int channels) {
      float* start = p;
      p += int64_t{channels} * kPointStride;
      return start;
    };
    x = take(job.in);
    g = take(job.out);
    hidden = take(job.hidden);
    slope = take(job.hidden);
    dhidden = take(job.hidden);
    result = take(larger(job.in, job.out));
  }
  static int64_t bytes(const MlpJob& job) {
    return (job.in + job.out + 3 * job.hidden + larger(job.in, job.out)) * int64_t{4} * kPointStride;
  }
};

// Channels of a tile into `to`, the columns behind `count` zero.
SFNO_INLINE void load_tile(const float* from, int channels, int64_t points, int count, float* to) {
  for (int c = 0; c < channels; ++c, from += points, to += kPointStride) {
    for (int i = 0; i < count; ++i) to[i] = from[i];
    for (int i = count; i < kPoints; ++i) to[i] = 0;
  }
}
SFNO_INLINE void add_tile(const float* from, int channels, int64_t points, int count, float* to) {
  for (int c = 0; c < channels; ++c, from += points, to += kPointStride) {
    for (int i = 0; i < count; ++i) to[i] += from[i];
  }
}
SFNO_INLINE void store_tile(const float* from, int channels, int64_t points, int count, float* to) {
  for (int c = 0; c < channels; ++c, from += kPointStride, to += points) {
    for (int i = 0; i < count; ++i) to[i] = from[i];
  }
}

// C = P X, or P^T X where kTransposed, for P of `stride` columns and all points of a tile.
template <bool kTransposed>
void tile_product(const float* P, int64_t stride, int rows, int inner, const float* X, float* C) {
  for (int r = 0; r < rows; r += kTileRows) {
    const float* p = P + (kTransposed ? r : r * stride);
    for (int c = 0; c < kPoints; c += 2 * kFloats) {
      float* out[kTileRows];
      for (int i = 0; i < kTileRows; ++i) out[i] = C + int64_t{r + i} * kPointStride + c;
      product_tile<float, 2, false, !kTransposed>(p, stride, inner, X + c, kPointStride, nullptr, out);
    }
  }
}

constexpr int kDotRows = SFNO_VECTOR_BYTES == 16 ? 2 : 4, kDotColumns = kFloats / kDotRows;

// Sums over the lanes of as many registers as there are lanes; that of register j is lane reversed(j).
template <int kCount>
SFNO_INLINE Floats sum_all_lanes(Floats* v) {
  if constexpr (kCount > 1) {
    for (int i = 0; i < kCount / 2; ++i) {
      deinterleave(v[i], v[i + kCount / 2]);
      v[i] += v[i + kCount / 2];
    }
    return sum_all_lanes<kCount / 2>(v);
  } else {
    return v[0];
  }
}
SFNO_INLINE int reversed(int j) {
  int result = 0;
  for (int bit = 1; bit < kFloats; bit *= 2) result = 2 * result + (j & bit ? 1 : 0);
  return result;
}

// W += A B^T, sums over the points of a tile; W has `columns` columns.
inline void tile_outer(const float* A, int rows, const float* B, int columns, float* W) {
  for (int r = 0; r < rows; r += kDotRows) {
    for (int c = 0; c < columns; c += kDotColumns) {
      Floats sum[kFloats];
#pragma GCC unroll 16
      for (int i = 0; i < kFloats; ++i) sum[i] = Floats{};
      for (int p = 0; p < kPoints; p += kFloats) {
        Floats b[kDotColumns];
#pragma GCC unroll 4
        for (int k = 0; k < kDotColumns; ++k) {
          b[k] = *reinterpret_cast<const Floats*>(B + int64_t{c + k} * kPointStride + p);
        }
#pragma GCC unroll 4
        for (int i = 0; i < kDotRows; ++i) {
          const Floats a = *reinterpret_cast<const Floats*>(A + int64_t{r + i} * kPointStride + p);
#pragma GCC unroll 4
          for (int k = 0; k < kDotColumns; ++k) sum[i * kDotColumns + k] += a * b[k];
        }
      }
      const Floats total = sum_all_lanes<kFloats>(sum);
      for (int i = 0; i < kDotRows; ++i)
        for (int k = 0; k < kDotColumns; ++k)
          W[int64_t{r + i} * columns + c + k] += total[reversed(i * kDotColumns + k)];
    }
  }
}

inline void mlp_tile(const MlpJob& job, const MlpScratch& s, int64_t sample, int64_t point, int count) {
  load_tile(job.x + sample * job.in * job.points + point, job.in, job.points, count, s.x);
  tile_product<false>(job.w1, job.in, job.hidden, job.in, s.x, s.hidden);
  for (int f = 0; f < job.hidden; ++f) {
    float* row = s.hidden + int64_t{f} * kPointStride;
    for (int i = 0; i < kPoints; i += kFloats) {
      Floats& a = *reinterpret_cast<Floats*>(row + i);
      a += job.b1[f];
      a *= normal_cdf(a);
    }
  }
  tile_product<false>(job.w2, job.hidden, job.out, job.hidden, s.hidden, s.result);
  const int64_t offset = sample * job.out * job.points + point;
  if (job.residual) add_tile(job.residual + offset, job.out, job.points, count, s.result);
  store_tile(s.result, job.out, job.points, count, job.output + offset);
}

inline void mlp_gradient_tile(const MlpJob& job, const MlpScratch& s, int64_t sample, int64_t point, int count,
                              float* dw1, float* db1, float* dw2) {
  load_tile(job.x + sample * job.in * job.points + point, job.in, job.points, count, s.x);
  load_tile(job.cotangent + sample * job.out * job.points + point, job.out, job.points, count, s.g);
  tile_product<false>(job.w1, job.in, job.hidden, job.in, s.x, s.hidden);
  tile_product<true>(job.w2, job.hidden, job.hidden, job.out, s.g, s.dhidden);
  for (int f = 0; f < job.hidden; ++f) {
    float* row = s.hidden + int64_t{f} * kPointStride;
    float* drow = s.dhidden + int64_t{f} * kPointStride;
    Floats sum{};
    for (int i = 0; i < kPoints; i += kFloats) {
      Floats& h = *reinterpret_cast<Floats*>(row + i);
      Floats& d = *reinterpret_cast<Floats*>(drow + i);
      const Floats a = h + job.b1[f], cdf = normal_cdf(a);
      h = a * cdf;
      d *= cdf + a * normal_density(a);
      sum += d;
    }
    float total = 0;
    for (int i = 0; i < kFloats; ++i) total += sum[i];
    db1[f] += total;
  }
  tile_outer(s.g, job.out, s.hidden, job.hidden, dw2);
  tile_outer(s.dhidden, job.hidden, s.x, job.in, dw1);
  tile_product<true>(job.w1, job.in, job.in, job.hidden, s.dhidden, s.result);
  store_tile(s.result, job.in, job.points, count, job.output + sample * job.in * job.points + point);
}

inline void mlp_unit(const MlpJob& job, int64_t unit, void* memory) {
  const MlpScratch scratch(job, memory);
  const int64_t tiles = mlp_tiles(job), per_sample = tiles / job.batch;
  const int64_t first = tiles * unit / job.units, last = tiles * (unit + 1) / job.units;
  const int64_t w1 = int64_t{job.hidden} * job.in, w2 = int64_t{job.out} * job.hidden;
  float* dw1 = nullptr;
  if (job.cotangent) {
    dw1 = job.partial + unit * (w1 + job.hidden + w2);
    for (int64_t i = 0; i < w1 + job.hidden + w2; ++i) dw1[i] = 0;
  }
  for (int64_t tile = first; tile < last; ++tile) {
    const int64_t sample = tile / per_sample, point = tile % per_sample * kPoints;
    const int count = job.points - point < kPoints ? static_cast<int>(job.points - point) : kPoints;
    if (job.cotangent) {
      mlp_gradient_tile(job, scratch, sample, point, count, dw1, dw1 + w1, dw1 + w1 + job.hidden);
    } else {
      mlp_tile(job, scratch, sample, point, count);
    }
  }
}

}  // namespace sfno::SFNO_ISA
