// Transforms of one field at a time, in float64 whatever the type of the data.
#pragma once

#include "fold.h"
#include "job.h"
#include "prefetch.h"
#include "series.h"
#include "single_order.h"

namespace sfno::SFNO_ISA {

// Rows of coefficients, each a few instructions; often a multiple of 4 KB apart, so that all fall into
// one set of the first cache, which has some eight to twelve lines.
constexpr int64_t kRowsAhead = 4;

// Scratch memory of one unit: kOrders orders of one field.
struct SingleScratch {
  int64_t steps;    // room for steps of the recurrence
  Vec* sums;        // [steps][4]
  double* lanes;    // [components][kOrders][lane_size]
  double* tile;     // [components][degree l][kGroup]: coefficients as in memory, in float64
  double* A;        // [components][degree l-m] complex: coefficients of Q_l for vector harmonics
  double* series;   // [steps][4]

  SingleScratch(const Job& job, void* memory) : steps(room(job)) {
    double* p = static_cast<double*>(memory);
    sums = reinterpret_cast<Vec*>(p);
    p += steps * 4 * kLanes;
    lanes = p;
    p += lanes_of(job, job.components);
    tile = p;
    p += tile_of(job.components);
    A = p;
    p += A_of(job.components);
    series = p;
  }
  static int64_t bytes(const Job& job) {
    SingleScratch s;
    s.steps = room(job);
    return 8 * (s.steps * 4 * (kLanes + 1) + s.lanes_of(job, job.components) +
                s.tile_of(job.components) + s.A_of(job.components));
  }
  // Sizes of, and so offsets behind, so many components.
  SFNO_INLINE int64_t lanes_of(const Job& job, int components) const {
    return components * kOrders * lane_size(job.latitudes);
  }
  SFNO_INLINE int64_t tile_of(int components) const { return components * 2 * steps * kGroup; }
  SFNO_INLINE int64_t A_of(int components) const { return components * 4 * steps; }

 private:
  SingleScratch() = default;
  static int64_t room(const Job& job) { return (job.lmax + 1) / 2 + 8; }
};

// The functions behind order m of a job: their table, first degree, number, and power of the sine.
struct OrderFunctions {
  const OrderTable* table;
  int first, degrees, power;

  OrderFunctions(const Job& job, int m) {
    const bool vector = job.components == 2;
    const int order = vector && m == 0 ? 1 : m;
    table = job.orders + order;
    first = order;
    degrees = larger(0, job.lmax + (vector ? 1 : 0) - order);
    power = vector ? order - 1 : order;
  }
  SFNO_INLINE int steps() const { return (degrees + 1) / 2; }
};

SFNO_INLINE double order_sign(const Job& job, int m) { return job.csphase && m % 2 ? -1.0 : 1.0; }

// (-1)^m for the numbers of a group of orders (whose first order is even).
class GroupSigns {
 public:
  explicit GroupSigns(const Job& job) {
    for (int p = 0; p < kGroup; ++p) signs_[p] = order_sign(job, p / 2);
  }
  SFNO_INLINE Vec of(int p) const { return load(signs_ + p); }

 private:
  alignas(64) double signs_[kGroup];
};

// Orders of the group that are transformed at all.
SFNO_INLINE int active_orders(const Job& job, int m0) {
  const int end = smaller(smaller(job.mmax, job.nfreq), job.lmax);
  return smaller(kOrders, larger(0, end - m0));
}

SFNO_INLINE VectorDegrees vector_degrees(const Job& job, int m) {
  return {job.orders[m], m, job.lmax, job.conjugate ? -1.0 : 1.0};
}

template <typename T>
void analysis_single(const Job& job, int64_t field, int m0, void* memory) {
  SingleScratch scratch(job, memory);
  const Latitudes& lat = job.latitudes;
  const int orders = active_orders(job, m0);
  const int width = smaller(kOrders, job.mmax - m0);
  const int64_t rows = int64_t{job.nlat} * job.nfreq * 2;
  const int64_t plane = int64_t{job.lmax} * job.mmax * 2;
  const T* in = static_cast<const T*>(job.input) + field * job.components * rows;
  T* out = static_cast<T*>(job.output) + field * job.components * plane;
  const bool vector = job.components == 2;
  for (int c = 0; c < job.components; ++c) {
    if (orders > 0) {
      fold(in + c * rows, job.nlat, job.nfreq, lat, m0, orders,
           vector && m0 == 0 ? lat.sine : nullptr, scratch.lanes + scratch.lanes_of(job, c));
    }
    // Entries m > l, and orders that are not transformed, stay zero.
    double* tile = scratch.tile + scratch.tile_of(c);
    const int end = orders < width ? job.lmax : smaller(job.lmax, m0 + kOrders);
    for (int i = smaller(m0, end) * kGroup; i < end * kGroup; i += kLanes) store(tile + i, Vec{});
  }
  for (int i = 0; i < orders; ++i) {
    const OrderFunctions f(job, m0 + i);
    for (int c = 0; c < job.components; ++c) {
      const double* lanes = scratch.lanes + scratch.lanes_of(job, c) + i * lane_size(lat);
      Dot dot{lanes, scratch.sums};
      run_order<kAnalysisBlock>(*f.table, f.steps(), f.power, lat, dot);
      if (dot.write) dot.pass(0, f.steps(), false);  // nothing counted anywhere
      if (f.steps() % 2) {
        for (int p = 0; p < 4; ++p) scratch.sums[4 * f.steps() + p] = Vec{};
      }
      if (vector) {
        degrees_of_sums(*f.table, scratch.sums, f.degrees, scratch.A + scratch.A_of(c), 2);
      } else {
        degrees_of_sums(*f.table, scratch.sums, f.degrees,
                        scratch.tile + (m0 + i) * kGroup + 2 * i, kGroup);
      }
    }
    if (vector) {
      double* s = scratch.tile + (m0 + i) * kGroup + 2 * i;
      vector_of_degrees(vector_degrees(job, m0 + i), scratch.A, scratch.A + scratch.A_of(1), s,
                        s + scratch.tile_of(1), kGroup);
    }
  }
  const GroupSigns signs(job);
  for (int c = 0; c < job.components; ++c) {
    const double* tile = scratch.tile + scratch.tile_of(c);
    for (int l = 0; l < job.lmax; ++l) {
      T* row = out + c * plane + (int64_t{l} * job.mmax + m0) * 2;
      prefetch<1>(row + 2 * kRowsAhead * job.mmax, width);
      for (int p = 0; p < 2 * width; p += kLanes) {
        const Vec a = l < m0 ? Vec{} : load(tile + l * kGroup + p) * signs.of(p);
        store_row(row + p, l < m0 ? a : a * job.degree_scale[l], 2 * width - p);
      }
    }
  }
}

template <typename T>
void synthesis_single(const Job& job, int64_t field, int m0, void* memory) {
  SingleScratch scratch(job, memory);
  const Latitudes& lat = job.latitudes;
  const int orders = active_orders(job, m0);
  const int width = smaller(kOrders, job.nfreq - m0);
  const int64_t rows = int64_t{job.nlat} * job.nfreq * 2;
  const int64_t plane = int64_t{job.lmax} * job.mmax * 2;
  const T* in = static_cast<const T*>(job.input) + field * job.components * plane;
  T* out = static_cast<T*>(job.output) + field * job.components * rows;
  const bool vector = job.components == 2;
  const GroupSigns signs(job);
  for (int c = 0; c < job.components && orders > 0; ++c) {
    double* tile = scratch.tile + scratch.tile_of(c);
    for (int l = m0; l < job.lmax; ++l) {
      const T* row = in + c * plane + (int64_t{l} * job.mmax + m0) * 2;
      prefetch<0>(row + 2 * kRowsAhead * job.mmax, orders);
      for (int p = 0; p < 2 * orders; p += kLanes) {
        store(tile + l * kGroup + p,
              load_row(row + p, 2 * orders - p) * signs.of(p) * job.degree_scale[l]);
      }
    }
  }
  for (int i = 0; i < orders; ++i) {
    const OrderFunctions f(job, m0 + i);
    const double* s = scratch.tile + (m0 + i) * kGroup + 2 * i;
    if (vector) {
      degrees_of_vector(vector_degrees(job, m0 + i), s, s + scratch.tile_of(1), kGroup, scratch.A,
                        scratch.A + scratch.A_of(1));
    }
    for (int c = 0; c < job.components; ++c) {
      if (vector) {
        series_of_degrees(*f.table, scratch.A + scratch.A_of(c), 2, f.degrees, scratch.series);
      } else {
        series_of_degrees(*f.table, s, kGroup, f.degrees, scratch.series);
      }
      double* lanes = scratch.lanes + scratch.lanes_of(job, c) + i * lane_size(lat);
      for (int64_t j = 0; j < lane_size(lat); j += kLanes) store(lanes + j, Vec{});
      Sum<kSynthesisBlock> sum;
      sum.series = scratch.series;
      sum.field = lanes;
      run_order<kSynthesisBlock>(*f.table, f.steps(), f.power, lat, sum);
    }
  }
  for (int c = 0; c < job.components; ++c) {
    unfold(scratch.lanes + scratch.lanes_of(job, c), job.nlat, job.nfreq, lat, m0, orders, width,
           vector && m0 == 0 ? lat.sine : nullptr, out + c * rows);
  }
}

}  // namespace sfno::SFNO_ISA
