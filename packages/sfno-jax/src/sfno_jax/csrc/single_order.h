// One order m of one field: latitudes are the lanes of the registers.
//
// Only the even chain q_k ~ P_{m+2k} is computed. The odd degrees follow from
//     x P_l = eps_{l+1} P_{l+1} + eps_l P_{l-1}
// in coefficient space (Ishioka 2018): analysis sums q_k against the even part of the field and
// against x times its odd part, synthesis sums two series in q_k and multiplies the second by x. Two
// degrees thus cost six multiply-adds per northern latitude: two for q, four for the sums.
//
// `Series` memory is [step][4] (even re, even im, odd re, odd im); latitude memory ("lanes") is
// [register][4][kLanes].
#pragma once

#include "job.h"
#include "recurrence.h"
#include "simd.h"

namespace sfno::SFNO_ISA {

// Registers of latitudes handled together: enough to hide the latency of the recurrence, few enough
// to stay in the register file.
#if SFNO_VECTOR_BYTES == 64
constexpr int kAnalysisBlock = 8, kSynthesisBlock = 4;
#else
constexpr int kAnalysisBlock = 4, kSynthesisBlock = 2;
#endif
constexpr int kSkipSteps = 4;  // steps between two looks at the size of the skipped functions

// One step in place: previous <- (a z + b) q - previous; the caller then swaps their roles.
SFNO_INLINE Vec next(Vec a, Vec b, Vec z, Vec q, Vec previous) {
  return (a * z + b) * q - previous;
}

// kSkipSteps steps of N registers, without sums.
template <int N>
SFNO_INLINE void skip(const double* a, const double* b, Vec* q, Vec* previous, const double* z) {
  Vec now[N], old[N];
#pragma GCC unroll 8
  for (int v = 0; v < N; ++v) {
    now[v] = q[v];
    old[v] = previous[v];
  }
#pragma GCC unroll 4
  for (int k = 0; k < kSkipSteps; k += 2) {
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) {
      const Vec zv = load(z + v * kLanes);
      old[v] = next(broadcast(a[k]), broadcast(b[k]), zv, now[v], old[v]);
      now[v] = next(broadcast(a[k + 1]), broadcast(b[k + 1]), zv, old[v], now[v]);
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < N; ++v) {
    q[v] = now[v];
    previous[v] = old[v];
  }
}

// Sums over the latitudes of N registers: C[k] (+)= sum_v q_k F_v, left unreduced over the lanes. The
// first pass over the steps writes, the others add.
struct Dot {
  const double* field;  // lanes
  Vec* sums;            // [step][4]
  bool write = true;

  // Announces that steps < k0 stay without a sum, and that steps will be passed `once` or more often.
  SFNO_INLINE void pass(int k0, int steps, bool once) {
    if (!write) return;
    for (int i = 0; i < 4 * (once ? k0 : steps); ++i) sums[i] = Vec{};
    write = once;
  }
  SFNO_INLINE void passed() { write = false; }

  template <int N>
  SFNO_INLINE void step(int k, int v0, const Vec* q) {
    Vec* c = sums + 4 * k;
    Vec s0{}, s1{}, s2{}, s3{};
    if (!write) {
      s0 = c[0];
      s1 = c[1];
      s2 = c[2];
      s3 = c[3];
    }
    const double* f = field + v0 * 4 * kLanes;
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v, f += 4 * kLanes) {
      s0 += q[v] * load(f);
      s1 += q[v] * load(f + kLanes);
      s2 += q[v] * load(f + 2 * kLanes);
      s3 += q[v] * load(f + 3 * kLanes);
    }
    c[0] = s0;
    c[1] = s1;
    c[2] = s2;
    c[3] = s3;
  }
  template <int N>
  SFNO_INLINE void begin(int) {}
  template <int N>
  SFNO_INLINE void end(int) {}
};

// Sums over the steps: S_v += q_k c[k].
template <int Block>
struct Sum {
  const double* series;  // [step][4]
  double* field;         // lanes
  Vec s[Block][4];

  SFNO_INLINE void pass(int, int, bool) {}
  SFNO_INLINE void passed() {}

  template <int N>
  SFNO_INLINE void begin(int v0) {
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v)
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) s[v][c] = load(field + ((v0 + v) * 4 + c) * kLanes);
  }
  template <int N>
  SFNO_INLINE void step(int k, int, const Vec* q) {
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const Vec ck = broadcast(series[4 * k + c]);
#pragma GCC unroll 8
      for (int v = 0; v < N; ++v) s[v][c] += q[v] * ck;
    }
  }
  template <int N>
  SFNO_INLINE void end(int v0) {
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v)
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) store(field + ((v0 + v) * 4 + c) * kLanes, s[v][c]);
  }
};

// Steps k0 <= k < k1 of N registers from v0 on, all lanes unscaled. The sums use q_k before the step.
template <int N, typename Sums>
void run(const double* a, const double* b, int k0, int k1, Vec* q, Vec* previous, const double* z,
         int v0, Sums& shared) {
  Vec now[N], old[N], zv[N];
  Sums sums = shared;  // a local copy, so that it can live in registers
#pragma GCC unroll 8
  for (int v = 0; v < N; ++v) {
    now[v] = q[v];
    old[v] = previous[v];
    zv[v] = load(z + v * kLanes);
  }
  sums.template begin<N>(v0);
  int k = k0;
  for (; k + 1 < k1; k += 2) {
    sums.template step<N>(k, v0, now);
    const Vec a0 = broadcast(a[k]), b0 = broadcast(b[k]);
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) old[v] = next(a0, b0, zv[v], now[v], old[v]);
    sums.template step<N>(k + 1, v0, old);
    const Vec a1 = broadcast(a[k + 1]), b1 = broadcast(b[k + 1]);
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) now[v] = next(a1, b1, zv[v], old[v], now[v]);
  }
  if (k < k1) {
    sums.template step<N>(k, v0, now);
    const Vec a0 = broadcast(a[k]), b0 = broadcast(b[k]);
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) {
      const Vec newest = next(a0, b0, zv[v], now[v], old[v]);
      old[v] = now[v];
      now[v] = newest;
    }
  }
  sums.template end<N>(v0);
#pragma GCC unroll 8
  for (int v = 0; v < N; ++v) {
    q[v] = now[v];
    previous[v] = old[v];
  }
}

// One register some of whose lanes are still scaled while others count: every step looks. It happens
// only where one register spans pole and equator, on grids much coarser than lmax.
template <typename Sums>
void run_scaled(const double* a, const double* b, int k0, int k1, Vec q, Vec previous, Vec scale,
                const double* z, int v0, Sums& sums) {
  const Vec zv = load(z);
  sums.template begin<1>(v0);
  for (int k = k0; k < k1; ++k) {
    rescale(q, previous, scale);
    const Vec visible = select(scale < 0.0, Vec{}, q);
    sums.template step<1>(k, v0, &visible);
    const Vec newest = next(broadcast(a[k]), broadcast(b[k]), zv, q, previous);
    previous = q;
    q = newest;
  }
  sums.template end<1>(v0);
}

template <int N, typename Sums>
SFNO_INLINE void run_up_to(int n, const double* a, const double* b, int k0, int k1, Vec* q,
                           Vec* previous, const double* z, int v0, Sums& sums) {
  if (n == N) {
    run<N>(a, b, k0, k1, q, previous, z, v0, sums);
  } else if constexpr (N > 1) {
    run_up_to<N - 1>(n, a, b, k0, k1, q, previous, z, v0, sums);
  }
}

template <int N>
SFNO_INLINE void skip_up_to(int n, const double* a, const double* b, Vec* q, Vec* previous,
                            const double* z) {
  if (n == N) {
    skip<N>(a, b, q, previous, z);
  } else if constexpr (N > 1) {
    skip_up_to<N - 1>(n, a, b, q, previous, z);
  }
}

// Runs the even chain of one order over all latitudes, `Block` registers at a time: first without
// sums until the most equatorial register counts, then with one register more at each start.
template <int Block, typename Sums>
void run_order(const OrderTable& order, int steps, int power, const Latitudes& lat, Sums& sums) {
  const int registers = lat.padded / kLanes;
  const double* a = order.a[0];
  for (int v0 = 0; v0 < registers; v0 += Block) {
    const int n = smaller(Block, registers - v0);
    const bool polar = lat.x[(v0 + n / 2) * kLanes] > 0.7;
    const double* b = polar ? order.b_polar[0] : order.b[0];
    const double* z = (polar ? lat.minus_s2 : lat.x2) + v0 * kLanes;
    Vec q[Block], previous[Block], scale[Block];
    int start[Block + 1];
    bool scaled[Block];
    bool any_scaled = false;
    for (int v = 0; v < n; ++v) {
      sectoral_start(order.log2_sectoral, power, load(lat.log2_sine + (v0 + v) * kLanes), q[v],
                     scale[v]);
      previous[v] = Vec{};
    }
    int started = 0;
    for (int k = 0; k < steps;) {
      for (int v = started; v < n; ++v) scaled[v] = rescale(q[v], previous[v], scale[v]);
      while (started < n && significant(q[started], scale[started])) {
        any_scaled |= scaled[started];
        start[started++] = k;
      }
      if (started == n) break;
      skip_up_to<Block>(n - started, a + k, b + k, q + started, previous + started,
                        z + started * kLanes);
      k += kSkipSteps;
    }
    if (started == 0) continue;
    sums.pass(start[0], steps, !any_scaled);
    if (any_scaled) {
      for (int v = 0; v < started; ++v) {
        run_scaled(a, b, start[v], steps, q[v], previous[v], scale[v], z + v * kLanes, v0 + v,
                   sums);
      }
      continue;
    }
    start[started] = steps;
    for (int v = 0; v < started; ++v) {
      if (start[v] < start[v + 1]) {
        run_up_to<Block>(v + 1, a, b, start[v], start[v + 1], q, previous, z, v0, sums);
      }
    }
    sums.passed();
  }
}

}  // namespace sfno::SFNO_ISA
