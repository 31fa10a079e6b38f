// Between rows of Fourier coefficients and latitude lanes, folding north onto south.
//
// P_lm(-x) = (-1)^(l-m) P_lm(x), so even l-m need only F(x) + F(-x) and odd ones F(x) - F(-x). Orders
// are moved kOrders at a time: that many complex numbers of a row are one or two cache lines. Blocks of
// kLanes latitudes by kLanes numbers are transposed in registers.
#pragma once

#include "job.h"
#include "prefetch.h"
#include "simd.h"
#include "transpose.h"

namespace sfno::SFNO_ISA {

constexpr int kOrders = 8;
constexpr int kGroup = 2 * kOrders;  // real numbers of a group of orders

// `count` numbers of a row as doubles, the rest of the register zero.
SFNO_INLINE Vec load_row(const double* p, int count) {
  if (count >= kLanes) return load(p);
  Vec v{};
  for (int i = 0; i < count; ++i) v[i] = p[i];
  return v;
}
SFNO_INLINE Vec load_row(const float* p, int count) {
  if (count >= kLanes) {
    return __builtin_convertvector(*reinterpret_cast<const Simd<float>::PerLane*>(p), Vec);
  }
  Vec v{};
  for (int i = 0; i < count; ++i) v[i] = static_cast<double>(p[i]);
  return v;
}
template <typename T>
SFNO_INLINE void store_row(T* p, Vec v, int count) {
  using Out = typename Simd<T>::PerLane;
  if (count >= kLanes) {
    *reinterpret_cast<Out*>(p) = __builtin_convertvector(v, Out);
  } else {
    for (int i = 0; i < count; ++i) p[i] = static_cast<T>(v[i]);
  }
}

// Lane memory of one order: [register of latitudes][even re, even im, x odd re, x odd im][kLanes].
SFNO_INLINE int64_t lane_size(const Latitudes& lat) { return int64_t{4} * lat.padded; }

// rows [nlat][nfreq] of complex T to lanes [orders][lane_size]. `first_factor`: null, or a factor per
// latitude for the group's first order.
template <typename T>
void fold(const T* rows, int nlat, int nfreq, const Latitudes& lat, int m0, int orders,
          const double* first_factor, double* lanes) {
  for (int j = 0; j < lat.padded; j += kLanes) {
    for (int r = kLanes; r < smaller(2 * kLanes, lat.count - j); ++r) {
      const int row = lat.count - 1 - (j + r);
      prefetch<0>(rows + (int64_t{row} * nfreq + m0) * 2, orders);
      prefetch<0>(rows + (int64_t{nlat - 1 - row} * nfreq + m0) * 2, orders);
    }
    for (int c0 = 0; c0 < 2 * orders; c0 += kLanes) {
      Vec even[kLanes], odd[kLanes];
      for (int r = 0; r < kLanes; ++r) {
        const int row = lat.count - 1 - smaller(j + r, lat.count - 1);
        const T* north = rows + (int64_t{row} * nfreq + m0) * 2 + c0;
        const T* south = rows + (int64_t{nlat - 1 - row} * nfreq + m0) * 2 + c0;
        const Vec n = load_row(north, 2 * orders - c0) * lat.weight_north[j + r];
        const Vec s = load_row(south, 2 * orders - c0) * lat.weight_south[j + r];
        even[r] = n + s;
        odd[r] = (n - s) * lat.x[j + r];
      }
      transpose(even);
      transpose(odd);
      for (int c = c0; c < smaller(c0 + kLanes, 2 * orders); c += 2) {
        double* out = lanes + c / 2 * lane_size(lat) + 4 * j;
        Vec f = broadcast(1.0);
        if (c == 0 && first_factor) f = load(first_factor + j);
        store(out, f * even[c - c0]);
        store(out + kLanes, f * even[c - c0 + 1]);
        store(out + 2 * kLanes, f * odd[c - c0]);
        store(out + 3 * kLanes, f * odd[c - c0 + 1]);
      }
    }
  }
}

// The transpose of fold; columns m0 + orders ... m0 + width are set to zero.
template <typename T>
void unfold(const double* lanes, int nlat, int nfreq, const Latitudes& lat, int m0, int orders,
            int width, const double* first_factor, T* rows) {
  for (int j = 0; j < lat.padded; j += kLanes) {
    const Vec x = load(lat.x + j);
    const Vec wn = load(lat.weight_north + j), ws = load(lat.weight_south + j);
    for (int r = kLanes; r < smaller(2 * kLanes, lat.count - j); ++r) {
      const int row = lat.count - 1 - (j + r);
      prefetch<1>(rows + (int64_t{row} * nfreq + m0) * 2, width);
      prefetch<1>(rows + (int64_t{nlat - 1 - row} * nfreq + m0) * 2, width);
    }
    for (int c0 = 0; c0 < 2 * width; c0 += kLanes) {
      Vec up[kLanes], down[kLanes];
      for (int c = c0; c < c0 + kLanes; c += 2) {
        const double* in = lanes + c / 2 * lane_size(lat) + 4 * j;
        for (int part = 0; part < 2; ++part) {
          Vec even{}, odd{};
          if (c < 2 * orders) {
            even = load(in + part * kLanes);
            odd = x * load(in + (2 + part) * kLanes);
            if (c == 0 && first_factor) {
              const Vec f = load(first_factor + j);
              even *= f;
              odd *= f;
            }
          }
          up[c - c0 + part] = wn * (even + odd);
          down[c - c0 + part] = ws * (even - odd);
        }
      }
      transpose(up);
      transpose(down);
      for (int r = 0; r < smaller(kLanes, lat.count - j); ++r) {
        const int row = lat.count - 1 - (j + r), mirror = nlat - 1 - row;
        store_row(rows + (int64_t{row} * nfreq + m0) * 2 + c0, up[r], 2 * width - c0);
        if (mirror != row) {
          store_row(rows + (int64_t{mirror} * nfreq + m0) * 2 + c0, down[r], 2 * width - c0);
        }
      }
    }
  }
}

}  // namespace sfno::SFNO_ISA
