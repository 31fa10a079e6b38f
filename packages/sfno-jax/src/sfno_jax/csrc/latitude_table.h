// The latitudes of one call in the order the kernels like: from the equator to the pole.
#pragma once

#include <cmath>
#include <vector>

#include "job.h"

namespace sfno {

class LatitudeTable {
 public:
  // cosine, sine and weights run from north to south and the cosines are antisymmetric. `sine` may
  // be null: it is then sqrt((1-x)(1+x)), which has few digits close to a pole.
  LatitudeTable(const double* cosine, const double* sine, const double* weights, int nlat) {
    const int count = (nlat + 1) / 2;
    const int padded = (count + kLatitudeUnit - 1) / kLatitudeUnit * kLatitudeUnit;
    storage_.assign(static_cast<size_t>(7 * padded + 8), 0.0);
    // Kernels read whole registers, so start on a cache line.
    const auto misaligned = reinterpret_cast<uintptr_t>(storage_.data()) % 64;
    double* p = storage_.data() + (misaligned ? (64 - misaligned) / sizeof(double) : 0);
    double* column[7];
    for (double*& c : column) {
      c = p;
      p += padded;
    }
    auto& [x, x2, minus_s2, s, log2_sine, north, south] = column;
    for (int j = 0; j < padded; ++j) {
      const int row = count - 1 - (j < count ? j : count - 1);
      const int mirror = nlat - 1 - row;
      x[j] = cosine[row];
      s[j] = sine ? sine[row] : std::sqrt((1 - x[j]) * (1 + x[j]));
      x2[j] = x[j] * x[j];
      minus_s2[j] = -s[j] * s[j];
      // log(sin) from whichever of sin and cos has the better relative accuracy
      const double log_sine = s[j] < 0.7 ? std::log(s[j]) : 0.5 * std::log1p(-x2[j]);
      log2_sine[j] = s[j] > 0 ? log_sine / std::log(2.0) : -1e7;
      if (j < count) {
        north[j] = weights[row];
        south[j] = mirror != row ? weights[mirror] : 0.0;
      }
    }
    view_ = {count, padded, x, x2, minus_s2, s, log2_sine, north, south};
  }

  const Latitudes& view() const { return view_; }

 private:
  std::vector<double> storage_;
  Latitudes view_{};
};

}  // namespace sfno
