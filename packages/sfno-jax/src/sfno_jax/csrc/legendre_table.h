// Coefficients of the two-step recurrence for normalised associated Legendre functions.
//
// With eps_l = sqrt((l^2 - m^2)/(4 l^2 - 1)) the orthonormal functions obey
//     x P_l = eps_{l+1} P_{l+1} + eps_l P_{l-1},
// and, applying it twice,
//     eps_{l+1} eps_{l+2} P_{l+2} = (x^2 - eps_{l+1}^2 - eps_l^2) P_l - eps_l eps_{l-1} P_{l-2}.
// Writing P_{m+2k+p} = alpha_k q_k (p = 0 or 1) with alpha_{k+1} chosen to make the last
// coefficient one, a step costs two multiply-adds (Ishioka 2018, J. Meteor. Soc. Japan 96, 241-249,
// doi:10.2151/jmsj.2018-019):
//     q_{k+1} = (a_k x^2 + b_k) q_k - q_{k-1},
//     a_k = alpha_k / (alpha_{k+1} eps_{l+1} eps_{l+2}),   b_k = -a_k (eps_{l+1}^2 + eps_l^2),
//     alpha_{k+1} = alpha_{k-1} eps_l eps_{l-1} / (eps_{l+1} eps_{l+2}),   l = m + 2k + p.
// Near the poles x^2 = 1 - sin^2(theta) loses digits, so there the same step is taken as
//     q_{k+1} = (a_k (-sin^2) + (a_k + b_k)) q_k - q_{k-1}.
#pragma once

#include <memory>
#include <vector>

#include "job.h"

namespace sfno {

class LegendreTable {
 public:
  LegendreTable(int lmax, int mmax);
  const OrderTable* orders() const { return orders_.data(); }
  size_t bytes() const { return storage_.size() * sizeof(double); }

  // A shared table from a bounded cache; safe to call from any thread.
  static std::shared_ptr<const LegendreTable> get(int lmax, int mmax);

 private:
  std::vector<double> storage_;
  std::vector<OrderTable> orders_;
};

}  // namespace sfno
