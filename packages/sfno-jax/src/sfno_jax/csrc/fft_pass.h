// One pass of Stockham's self-sorting FFT. A pass of radix r takes s interleaved transforms of length r m to r s
// interleaved ones of length m,
//     y[q + s (r p + k)] = w^(p k) sum_j x[q + s (p + m j)] exp(-2 pi i j k / r),   w = exp(-2 pi i / (r m)),
// for 0 <= p < m, 0 <= q < s, 0 <= k < r; s starts at 1 and ends at the length of the whole transform.
#pragma once

namespace sfno {

template <typename T>
struct FftPass {
  int radix;
  int m;
  const T* twiddles;  // [m][radix - 1] (re, im): w^(p k), k >= 1
  const T* roots;     // [radix] (re, im): exp(-2 pi i j / radix)
};

}  // namespace sfno
