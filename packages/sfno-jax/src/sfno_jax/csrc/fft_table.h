// The passes of a complex FFT of n points, n a product of 2, 3, 5 and 7.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "fft_pass.h"

namespace sfno {

template <typename T>
class FftTable {
 public:
  explicit FftTable(int n);
  int size() const { return n_; }
  const std::vector<FftPass<T>>& passes() const { return passes_; }

  // Whether n has no other prime factors.
  static bool supports(int64_t n);
  // A shared table from a bounded cache; safe to call from any thread.
  static std::shared_ptr<const FftTable> get(int n);

 private:
  int n_;
  std::vector<T> storage_;
  std::vector<FftPass<T>> passes_;
};

}  // namespace sfno
