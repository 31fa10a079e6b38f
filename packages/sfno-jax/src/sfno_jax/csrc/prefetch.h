// Rows of coefficients are visited a cache line or two at a time, the same ones in every row: a stride
// that no hardware prefetcher follows, so the rows to come are asked for by hand.
#pragma once

#include "simd.h"

namespace sfno::SFNO_ISA {

constexpr int kAhead = 3;  // rows, where rows are visited one by one

// Asks for `orders` complex numbers from p on; kWrite = 1 when they will be overwritten.
template <int kWrite, typename D>
SFNO_INLINE void prefetch(const D* p, int orders) {
  __builtin_prefetch(p, kWrite);
  if (sizeof(D) == 8) __builtin_prefetch(p + 8, kWrite);
  __builtin_prefetch(p + 2 * orders - 1, kWrite);
}

}  // namespace sfno::SFNO_ISA
