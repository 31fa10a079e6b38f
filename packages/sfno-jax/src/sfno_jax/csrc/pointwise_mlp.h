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
  float *x, *g, *hidden, *dhidden, *result, *turned;

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
    dhidden = take(job.hidden);
    result = take(larger(job.in, job.out));
    turned = take(larger(job.in, job.out));
  }
  static int64_t bytes(const MlpJob& job) {
    return (job.in + job.out + 2 * (job.hidden + larger(job.in, job.out))) * int64_t{4} * kPointStride;
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

// Channels (channels, points) of a tile to (points, channels).
inline void transpose_tile(const float* from, int channels, float* to) {
  using C = Complexes<float>;
  for (int c = 0; c < channels; c += kFloats) {
    for (int i = 0; i < kPoints; i += kFloats) {
      Floats v[2][C::kCount];  // pairs of points
      for (int half = 0; half < 2; ++half) {
        for (int r = 0; r < C::kCount; ++r) {
          v[half][r] = C::load(from + int64_t{c + half * C::kCount + r} * kPointStride + i);
        }
        C::transpose(v[half]);
      }
      for (int r = 0; r < C::kCount; ++r) {
        deinterleave(v[0][r], v[1][r]);
        for (int k = 0; k < 2; ++k) C::store(to + int64_t{i + 2 * r + k} * channels + c, v[k][r]);
      }
    }
  }
}

// W += A B^T, sums over the points of a tile, for A (rows, points) and B^T (points, columns).
inline void add_outer(const float* A, int rows, const float* B, int columns, float* W) {
  for (int r = 0; r < rows; r += kTileRows) {
    const float* a = A + int64_t{r} * kPointStride;
    float* out[kTileRows];
    for (int c = 0; c < columns; c += 2 * kFloats) {
      for (int i = 0; i < kTileRows; ++i) out[i] = W + int64_t{r + i} * columns + c;
      if (c + kFloats < columns) {
        product_tile<float, 2, true, true>(a, kPointStride, kPoints, B + c, columns, nullptr, out);
      } else {
        product_tile<float, 1, true, true>(a, kPointStride, kPoints, B + c, columns, nullptr, out);
      }
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
  transpose_tile(s.x, job.in, s.turned);
  add_outer(s.dhidden, job.hidden, s.turned, job.in, dw1);
  transpose_tile(s.g, job.out, s.turned);
  add_outer(s.hidden, job.hidden, s.turned, job.out, dw2);
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
