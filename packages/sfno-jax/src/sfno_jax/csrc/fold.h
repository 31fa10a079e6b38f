// Between rows of Fourier coefficients and latitude lanes, folding north onto south.
//
// P_lm(-x) = (-1)^(l-m) P_lm(x), so even l-m need only F(x) + F(-x) and odd ones F(x) - F(-x). Orders
// are moved kOrders at a time: that many complex numbers of a row are one or two cache lines.
#pragma once

#include "job.h"
#include "simd.h"

namespace sfno::SFNO_ISA {

constexpr int kOrders = 8;

// Position of latitude j of part c (even re, even im, x*odd re, x*odd im) in lane memory.
SFNO_INLINE int lane(int j, int c) { return (j / kLanes * 4 + c) * kLanes + j % kLanes; }

// rows: [nlat][nfreq] complex T; lanes: [orders][4 * padded]. `factor`: [orders] null or a factor per
// latitude.
template <typename T>
void fold(const T* rows, int nlat, int nfreq, const Latitudes& lat, int m0, int orders,
          const double* first_factor, double* lanes) {
  for (int j = 0; j < lat.padded; ++j) {
    const int row = lat.count - 1 - smaller(j, lat.count - 1);
    const T* north = rows + (static_cast<int64_t>(row) * nfreq + m0) * 2;
    const T* south = rows + (static_cast<int64_t>(nlat - 1 - row) * nfreq + m0) * 2;
    const double wn = lat.weight_north[j], ws = lat.weight_south[j], x = lat.x[j];
    for (int i = 0; i < orders; ++i) {
      const double f = i == 0 && first_factor ? first_factor[j] : 1.0;
      double* out = lanes + static_cast<int64_t>(i) * 4 * lat.padded;
      const double nr = f * wn * static_cast<double>(north[2 * i]);
      const double ni = f * wn * static_cast<double>(north[2 * i + 1]);
      const double sr = f * ws * static_cast<double>(south[2 * i]);
      const double si = f * ws * static_cast<double>(south[2 * i + 1]);
      out[lane(j, 0)] = nr + sr;
      out[lane(j, 1)] = ni + si;
      out[lane(j, 2)] = x * (nr - sr);
      out[lane(j, 3)] = x * (ni - si);
    }
  }
}

// The transpose of fold; columns m0 + orders ... m0 + width are set to zero.
template <typename T>
void unfold(const double* lanes, int nlat, int nfreq, const Latitudes& lat, int m0, int orders,
            int width, const double* first_factor, T* rows) {
  for (int j = 0; j < lat.count; ++j) {
    const int row = lat.count - 1 - j;
    T* north = rows + (static_cast<int64_t>(row) * nfreq + m0) * 2;
    T* south = rows + (static_cast<int64_t>(nlat - 1 - row) * nfreq + m0) * 2;
    const double wn = lat.weight_north[j], x = lat.x[j];
    const double ws = north == south ? wn : lat.weight_south[j];
    for (int i = 0; i < width; ++i) {
      double er = 0, ei = 0, od = 0, oi = 0;
      if (i < orders) {
        const double* in = lanes + static_cast<int64_t>(i) * 4 * lat.padded;
        const double f = i == 0 && first_factor ? first_factor[j] : 1.0;
        er = f * in[lane(j, 0)];
        ei = f * in[lane(j, 1)];
        od = f * x * in[lane(j, 2)];
        oi = f * x * in[lane(j, 3)];
      }
      north[2 * i] = static_cast<T>(wn * (er + od));
      north[2 * i + 1] = static_cast<T>(wn * (ei + oi));
      if (north != south) {
        south[2 * i] = static_cast<T>(ws * (er - od));
        south[2 * i + 1] = static_cast<T>(ws * (ei - oi));
      }
    }
  }
}

}  // namespace sfno::SFNO_ISA
