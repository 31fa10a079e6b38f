// What one call of a handler asks for, in plain data that every translation unit agrees on.
//
//   analysis    a_lm  = d_l s_m sum_k w_k P_lm(x_k) F_m(k)
//   synthesis   G_m(k) = w_k sum_l d_l s_m P_lm(x_k) a_lm
//
// with P_lm = sqrt((2l+1)/(4 pi) (l-m)!/(l+m)!) P_l^m without the Condon-Shortley phase, d =
// degree_scale, s_m = (-1)^m when csphase is set. There are no complex conjugates: one is the
// transpose of the other. The vector transforms do the same with D = dP/dtheta, E = m P/sin(theta):
//
//   analysis    s = sum_k w_k (D Vt - i E Vl),   t = sum_k w_k (-D Vl - i E Vt)
//   synthesis   Vt = sum_l (s D + i t E),        Vl = sum_l (i s E - t D)
//
// `conjugate` replaces i by -i, which turns each into the transpose of the other.
#pragma once

#include <cstdint>

namespace sfno {

// Coefficients of the recurrences of one order m; see legendre_table.h.
struct OrderTable {
  const double* a[2];      // [parity of l-m][step]
  const double* b[2];      // for z = x^2
  const double* b_polar[2];  // for z = x^2 - 1 = -sin^2(theta), where it is the more accurate one
  const double* alpha[2];  // P_{m+2k+parity} = alpha[k] q_k
  const double* eps;       // eps[n] = eps_{m+n} = sqrt((l^2-m^2)/(4l^2-1)), l = m+n
  double log2_sectoral;    // log2 of P_mm / sin^m(theta)
};

// The northern latitudes (equator included), ordered from the equator to the pole, padded to a
// multiple of kLatitudeUnit by repeating the last one with zero weights.
struct Latitudes {
  int count;   // without padding
  int padded;
  const double* x;          // cos(colatitude)
  const double* x2;         // x^2
  const double* minus_s2;   // -sin^2
  const double* sine;       // sin(colatitude)
  const double* log2_sine;  // log2 of it, -1e7 at a pole
  const double* weight_north;
  const double* weight_south;  // 0 on the equator, which is its own mirror image
};

constexpr int kLatitudeUnit = 8;

struct Job {
  const void* input;
  void* output;
  int64_t batch;      // transforms; a vector transform counts once
  int components;     // 1 scalar, 2 vector
  int nlat, nfreq, lmax, mmax;
  bool single_precision;
  bool csphase;
  bool conjugate;
  const double* degree_scale;
  const OrderTable* orders;  // max(mmax, 2) of them
  Latitudes latitudes;
};

struct PackedKernels;  // packed_job.h
struct MlpKernels;     // mlp_job.h

// The kernels compiled for one instruction set. Work is cut into units, which may run in any order
// and on any thread without changing a bit of the result.
struct Kernels {
  const char* name;
  int64_t (*unit_count)(const Job&, bool analysis);
  int64_t (*scratch_bytes)(const Job&, bool analysis);
  void (*analysis_unit)(const Job&, int64_t unit, void* scratch);
  void (*synthesis_unit)(const Job&, int64_t unit, void* scratch);
  const PackedKernels* packed_single;
  const PackedKernels* packed_double;
  const MlpKernels* mlp;
};

}  // namespace sfno
