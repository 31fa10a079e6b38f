// Transforms between real fields and packed coefficients, in which a degree's orders, a sample's channels and
// a channel block's real and imaginary parts lie together:
//
//     fields  (batch, channels, nlat, nlon)    coefficients  (modes, batch, 2, channels)
//
// Mode (l, m), m <= min(l, mmax - 1), is row mode_row(l) + m. With P, w, d, s_m of job.h and a factor o_m per order,
//
//   analysis    a_lm = d_l s_m o_m sum_k w_k P_lm(x_k) sum_j f(k, j) exp(-2 pi i j m / nlon)
//   synthesis   f(k, j) = w_k Re sum_lm d_l s_m o_m P_lm(x_k) a_lm exp(2 pi i j m / nlon)
//
// As real linear maps of (Re a, Im a) each is the transpose of the other. A synthesis may add to a field, in place too.
//
// Between the two stages, FFT and Legendre sums, stands a stack [order][parity][latitude][sample][2][channels] of
// folded Fourier coefficients, for a tile of samples.
#pragma once

#include "fft_pass.h"
#include "job.h"

namespace sfno {

struct PackedJob {
  Job base;  // input, output, batch (samples), sizes, degree_scale, orders, latitudes
  int channels, nlon;
  const double* order_scale;
  const void* onto;  // the field that a synthesis is added to, or null
  const FftPass<float>* passes_single;
  const FftPass<double>* passes_double;
  int passes;
  // the tile of samples in work
  void* stack;
  int64_t sample, samples;
};

// The product of packed coefficients with a complex matrix per degree, W (out, in, lmax, 2), and its transposes:
// kMix v = W u, kMixTransposed u = W^H v (the transpose of v = W u as a real map), kOuter W = sum v u^H.
enum class Product { kMix, kMixTransposed, kOuter };

struct ProductJob {
  Product product;
  const void* a;  // coefficients: u, v, u
  const void* b;  // W, W, v
  void* output;
  int64_t batch;
  int lmax, mmax, in, out;
  bool single_precision;
};

constexpr int kDegreesPerUnit = 8;  // of W that share a cache line

// Always inlined: kernels of unlike instruction sets must not share a copy (see simd.h).
#define SFNO_ALWAYS inline __attribute__((always_inline))

SFNO_ALWAYS int64_t orders_of(int l, int mmax) { return l + 1 < mmax ? l + 1 : mmax; }
// Modes below degree l.
SFNO_ALWAYS int64_t mode_row(int64_t l, int64_t mmax) {
  return l <= mmax ? l * (l + 1) / 2 : mmax * (mmax + 1) / 2 + (l - mmax) * mmax;
}

struct PackedKernels {
  int64_t (*stack_bytes)(const PackedJob&, int64_t samples);
  int64_t (*scratch_bytes)(const PackedJob&);
  // Units of the FFTs are (sample of the tile, northern latitude), those of the Legendre sums are orders.
  void (*analyse_rows)(const PackedJob&, int64_t unit, void* scratch);
  void (*analyse_order)(const PackedJob&, int64_t unit, void* scratch);
  void (*synthesise_order)(const PackedJob&, int64_t unit, void* scratch);
  void (*synthesise_rows)(const PackedJob&, int64_t unit, void* scratch);
  int64_t (*product_scratch_bytes)(const ProductJob&);
  void (*product_unit)(const ProductJob&, int64_t unit, void* scratch);
};

}  // namespace sfno
