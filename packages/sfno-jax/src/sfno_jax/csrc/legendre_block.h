// Blocks of the Legendre functions themselves, for transforms of many fields at once.
//
// A block holds `Rows` consecutive degrees of either parity at all latitudes, as rows over latitudes
// in the type of the matrix product; both chains (from P_mm and from x P_mm) run in float64.
// Latitudes are ordered from the equator to the pole, so the ones that count are a prefix: the
// product leaves out the rest (the polar skip).
#pragma once

#include "job.h"
#include "recurrence.h"
#include "simd.h"

namespace sfno::SFNO_ISA {

template <typename T, int Rows>
class LegendreBlocks {
 public:
  // Doubles of state per latitude: q and its predecessor for either parity, scale, register status.
  static constexpr int kState = 6;

  LegendreBlocks(const OrderTable& order, int power, const Latitudes& lat, double* state, T* rows)
      : order_(order), lat_(lat), state_(state), rows_(rows) {
    for (int j = 0; j < lat.padded; j += kLanes) {
      Vec q, scale;
      sectoral_start(order.log2_sectoral, power, load(lat.log2_sine + j), q, scale);
      store(at(0, j), q);
      store(at(1, j), q * load(lat.x + j));
      store(at(2, j), Vec{});
      store(at(3, j), Vec{});
      store(at(4, j), scale);
      *at(5, j) = kSkipped;
    }
  }

  // Computes rows for steps first ... first+Rows-1 of both chains and moves the state behind them.
  // Returns the number of latitudes that count, a multiple of kLatitudeUnit.
  int next_block(int first) {
    int active = 0;
    for (int j = 0; j < lat_.padded; j += kLanes) {
      if (advance(first, j)) active = j + kLanes;
    }
    const int rounded = (active + kLatitudeUnit - 1) / kLatitudeUnit * kLatitudeUnit;
    for (int j = active; j < rounded; j += kLanes) {
      for (int r = 0; r < 2 * Rows; ++r) write(rows_ + r * lat_.padded + j, Vec{});
    }
    return rounded;
  }

  // Row r of a parity.
  const T* row(int parity, int r) const { return rows_ + (parity * Rows + r) * lat_.padded; }

 private:
  static constexpr double kSkipped = 0, kUnscaled = 1, kScaled = 2;

  double* at(int part, int j) const { return state_ + part * lat_.padded + j; }

  static SFNO_INLINE void write(T* p, Vec v) {
    using Out = typename Simd<T>::PerLane;
    *reinterpret_cast<Out*>(p) = __builtin_convertvector(v, Out);
  }

  template <bool Write>
  SFNO_INLINE void chain(int first, int j, int parity, Vec& q, Vec& previous) const {
    const bool polar = lat_.x[j] > 0.7;
    const double* a = order_.a[parity] + first;
    const double* b = (polar ? order_.b_polar : order_.b)[parity] + first;
    const Vec z = load((polar ? lat_.minus_s2 : lat_.x2) + j);
    T* out = rows_ + parity * Rows * lat_.padded + j;
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r += 2) {
      if (Write) write(out + r * lat_.padded, q);
      previous = (broadcast(a[r]) * z + broadcast(b[r])) * q - previous;
      if (Write) write(out + (r + 1) * lat_.padded, previous);
      q = (broadcast(a[r + 1]) * z + broadcast(b[r + 1])) * previous - q;
    }
  }

  // One register of latitudes through a block; false when none of its lanes counts.
  bool advance(int first, int j) {
    Vec q0 = load(at(0, j)), q1 = load(at(1, j));
    Vec p0 = load(at(2, j)), p1 = load(at(3, j));
    double& status = *at(5, j);
    if (status == kUnscaled) {
      chain<true>(first, j, 0, q0, p0);
      chain<true>(first, j, 1, q1, p1);
      save(j, q0, q1, p0, p1);
      return true;
    }
    Vec scale = load(at(4, j));
    if (status == kSkipped) {
      // Where the functions are negligible they grow, so the end of a block tells.
      Vec e0 = q0, e1 = q1, f0 = p0, f1 = p1, s = scale;
      bool counts = significant(q0, scale) || significant(q1, scale);
      if (!counts) {
        chain<false>(first, j, 0, e0, f0);
        chain<false>(first, j, 1, e1, f1);
        grow(e0, e1, f0, f1, s);
        counts = significant(e0, s) || significant(e1, s);
      }
      if (!counts) {
        save(j, e0, e1, f0, f1);
        store(at(4, j), s);
        return false;
      }
      status = any(scale < 0.0) ? kScaled : kUnscaled;
      if (status == kUnscaled) return advance(first, j);
    }
    advance_scaled(first, j, q0, q1, p0, p1, scale);
    if (!any(scale < 0.0)) status = kUnscaled;
    return true;
  }

  // Some lanes are scaled and do not count, others do: look at every step.
  void advance_scaled(int first, int j, Vec q0, Vec q1, Vec p0, Vec p1, Vec& scale) {
    const Vec z = load(lat_.x2 + j);
    for (int r = 0; r < Rows; ++r) {
      grow(q0, q1, p0, p1, scale);
      const IntVec hidden = scale < 0.0;
      write(rows_ + r * lat_.padded + j, select(hidden, Vec{}, q0));
      write(rows_ + (Rows + r) * lat_.padded + j, select(hidden, Vec{}, q1));
      const int k = first + r;
      const Vec n0 = (z * order_.a[0][k] + order_.b[0][k]) * q0 - p0;
      const Vec n1 = (z * order_.a[1][k] + order_.b[1][k]) * q1 - p1;
      p0 = q0;
      p1 = q1;
      q0 = n0;
      q1 = n1;
    }
    grow(q0, q1, p0, p1, scale);
    save(j, q0, q1, p0, p1);
    store(at(4, j), scale);
  }

  // Moves lanes that outgrew their scale one scale up; both chains share it.
  static SFNO_INLINE void grow(Vec& q0, Vec& q1, Vec& p0, Vec& p1, Vec& scale) {
    const IntVec scaled = scale < 0.0;
    if (!any(scaled)) return;
    const IntVec grown = scaled & ((absolute(q0) > 1.0) | (absolute(q1) > 1.0));
    if (!any(grown)) return;
    q0 = select(grown, q0 * kScaleDown, q0);
    q1 = select(grown, q1 * kScaleDown, q1);
    p0 = select(grown, p0 * kScaleDown, p0);
    p1 = select(grown, p1 * kScaleDown, p1);
    scale = select(grown, scale + 1.0, scale);
  }

  SFNO_INLINE void save(int j, Vec q0, Vec q1, Vec p0, Vec p1) const {
    store(at(0, j), q0);
    store(at(1, j), q1);
    store(at(2, j), p0);
    store(at(3, j), p1);
  }

  const OrderTable& order_;
  const Latitudes& lat_;
  double* state_;
  T* rows_;
};

}  // namespace sfno::SFNO_ISA
