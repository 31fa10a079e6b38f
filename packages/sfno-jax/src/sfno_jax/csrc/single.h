// Transforms of one field at a time, in float64 whatever the type of the data.
#pragma once

#include "fold.h"
#include "job.h"
#include "series.h"
#include "single_order.h"

namespace sfno::SFNO_ISA {

// Scratch memory of one unit: kOrders orders of one field.
struct SingleScratch {
  int degrees;      // room per order, in complex numbers
  double* lanes;    // [components][kOrders][4 * padded]
  double* stage;    // [components][kOrders][degrees] complex
  double* mixed;    // the same, for vector harmonics
  Vec* sums;        // [steps][4]
  double* series;   // [steps][4]

  SFNO_INLINE int64_t lanes_size(const Job& job) const {
    return int64_t{kOrders} * 4 * job.latitudes.padded;
  }
  SFNO_INLINE int64_t stage_size() const { return int64_t{kOrders} * degrees * 2; }

  static int64_t bytes(const Job& job) {
    const int degrees = room(job);
    const int64_t doubles = int64_t{job.components} * kOrders * 4 * job.latitudes.padded +
                            int64_t{2} * job.components * kOrders * degrees * 2 +
                            int64_t{2} * degrees * (kLanes + 1) + 64;
    return doubles * 8;
  }
  SingleScratch(const Job& job, void* memory) : degrees(room(job)) {
    double* p = static_cast<double*>(memory);
    const int64_t steps = degrees / 2;
    sums = reinterpret_cast<Vec*>(p);
    p += steps * 4 * kLanes;
    lanes = p;
    p += lanes_size(job) * job.components;
    series = p;
    p += steps * 4;
    stage = p;
    p += stage_size() * job.components;
    mixed = p;
  }

 private:
  static int room(const Job& job) { return (job.lmax + 8) / 8 * 8 + 8; }
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
  const T* in = static_cast<const T*>(job.input) + field * job.components * rows;
  T* out = static_cast<T*>(job.output) + field * job.components * int64_t{job.lmax} * job.mmax * 2;
  const bool vector = job.components == 2;
  if (orders > 0) {
    for (int c = 0; c < job.components; ++c) {
      fold(in + c * rows, job.nlat, job.nfreq, lat, m0, orders,
           vector && m0 == 0 ? lat.sine : nullptr, scratch.lanes + c * scratch.lanes_size(job));
    }
  }
  for (int i = 0; i < orders; ++i) {
    const OrderFunctions f(job, m0 + i);
    for (int c = 0; c < job.components; ++c) {
      const int64_t at = c * scratch.lanes_size(job) + int64_t{i} * 4 * lat.padded;
      for (int k = 0; k < 4 * (f.steps() + 1); ++k) scratch.sums[k] = Vec{};
      Dot dot{scratch.lanes + at, scratch.sums};
      run_order<kAnalysisBlock>(*f.table, f.steps(), f.power, lat, dot);
      degrees_of_sums(*f.table, scratch.sums, f.degrees,
                      scratch.stage + c * scratch.stage_size() + int64_t{i} * scratch.degrees * 2);
    }
    if (vector) {
      const double* A = scratch.stage + int64_t{i} * scratch.degrees * 2;
      double* s = scratch.mixed + int64_t{i} * scratch.degrees * 2;
      vector_of_degrees(vector_degrees(job, m0 + i), A, A + scratch.stage_size(), s,
                        s + scratch.stage_size());
    }
  }
  for (int c = 0; c < job.components; ++c) {
    const double* stage = (vector ? scratch.mixed : scratch.stage) + c * scratch.stage_size();
    T* plane = out + c * int64_t{job.lmax} * job.mmax * 2;
    for (int l = 0; l < job.lmax; ++l) {
      T* row = plane + (int64_t{l} * job.mmax + m0) * 2;
      for (int i = 0; i < width; ++i) {
        const int m = m0 + i;
        const bool inside = i < orders && m <= l;
        const double scale = inside ? job.degree_scale[l] * order_sign(job, m) : 0.0;
        const double* a = stage + (int64_t{i} * scratch.degrees + (inside ? l - m : 0)) * 2;
        row[2 * i] = inside ? static_cast<T>(scale * a[0]) : T(0);
        row[2 * i + 1] = inside ? static_cast<T>(scale * a[1]) : T(0);
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
  const int64_t plane_size = int64_t{job.lmax} * job.mmax * 2;
  const T* in = static_cast<const T*>(job.input) + field * job.components * plane_size;
  T* out = static_cast<T*>(job.output) + field * job.components * rows;
  const bool vector = job.components == 2;
  for (int c = 0; c < job.components && orders > 0; ++c) {
    double* stage = (vector ? scratch.mixed : scratch.stage) + c * scratch.stage_size();
    for (int l = m0; l < job.lmax; ++l) {
      const T* row = in + c * plane_size + (int64_t{l} * job.mmax + m0) * 2;
      for (int i = 0; i < smaller(orders, l - m0 + 1); ++i) {
        const int m = m0 + i;
        const double scale = job.degree_scale[l] * order_sign(job, m);
        double* a = stage + (int64_t{i} * scratch.degrees + l - m) * 2;
        a[0] = scale * static_cast<double>(row[2 * i]);
        a[1] = scale * static_cast<double>(row[2 * i + 1]);
      }
    }
  }
  for (int i = 0; i < orders; ++i) {
    const OrderFunctions f(job, m0 + i);
    double* A = scratch.stage + int64_t{i} * scratch.degrees * 2;
    if (vector) {
      const double* s = scratch.mixed + int64_t{i} * scratch.degrees * 2;
      degrees_of_vector(vector_degrees(job, m0 + i), s, s + scratch.stage_size(), A,
                        A + scratch.stage_size());
    }
    for (int c = 0; c < job.components; ++c) {
      double* a = A + c * scratch.stage_size();
      a[2 * f.degrees] = a[2 * f.degrees + 1] = 0;
      series_of_degrees(*f.table, a, f.degrees, scratch.series);
      double* lanes = scratch.lanes + c * scratch.lanes_size(job) + int64_t{i} * 4 * lat.padded;
      for (int j = 0; j < 4 * lat.padded; j += kLanes) store(lanes + j, Vec{});
      Sum<kSynthesisBlock> sum;
      sum.series = scratch.series;
      sum.field = lanes;
      run_order<kSynthesisBlock>(*f.table, f.steps(), f.power, lat, sum);
    }
  }
  for (int c = 0; c < job.components; ++c) {
    unfold(scratch.lanes + c * scratch.lanes_size(job), job.nlat, job.nfreq, lat, m0, orders, width,
           vector && m0 == 0 ? lat.sine : nullptr, out + c * rows);
  }
}

}  // namespace sfno::SFNO_ISA
