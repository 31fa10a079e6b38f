// Start values of the recurrence, and the exponent that keeps them from underflowing.
//
// P_mm(x) = C_m sin^m(theta) leaves the range of a double near the poles once m ln(1/sin) > 708, yet
// P_lm grows back to order one when l passes m / sin(theta). A lane therefore holds
//     q * 2^(kScaleBits * scale),   scale <= 0,
// and is rescaled whenever |q| passes one while scale < 0. A lane below 2^kNegligibleBits adds
// nothing that a double could hold, so whole registers of latitudes are left out of the sums until
// one of their lanes passes that limit: the "polar skip".
#pragma once

#include "job.h"
#include "simd.h"

namespace sfno::SFNO_ISA {

constexpr int kScaleBits = 900;
constexpr double kScaleDown = 0x1p-900;
constexpr double kNegligible = 0x1p-100;

// 2^y for y in [-kScaleBits, 0.5]: the integer part goes to the exponent bits, the fraction through
// the Taylor series of exp(f ln 2), |f| <= 1/2, whose 14th term is below 1e-17.
SFNO_INLINE Vec exp2(Vec y) {
  constexpr double kRound = 0x1.8p52;  // adding it leaves the nearest integer in the low bits
  const Vec shifted = y + kRound;
  const Vec t = (y - (shifted - kRound)) * 0.69314718055994530942;
  Vec p = broadcast(1.0 / 6227020800.0);
  constexpr double kInverseFactorial[] = {1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0,
                                          1.0 / 362880.0,    1.0 / 40320.0,    1.0 / 5040.0,
                                          1.0 / 720.0,       1.0 / 120.0,      1.0 / 24.0,
                                          1.0 / 6.0,         1.0 / 2.0,        1.0,
                                          1.0};
#pragma GCC unroll 16
  for (const double c : kInverseFactorial) p = p * t + c;
  const IntVec exponent = (reinterpret_cast<IntVec>(shifted) + 1023) << 52;
  return p * reinterpret_cast<Vec>(exponent);
}

// Starts q * 2^(kScaleBits scale) = 2^(log2_sectoral + power * log2_sine) for one register of lanes.
SFNO_INLINE void sectoral_start(double log2_sectoral, int power, Vec log2_sine, Vec& q,
                                Vec& scale) {
  const Vec y = log2_sine * static_cast<double>(power) + log2_sectoral;
  scale = Vec{};
  if (any(y < broadcast(-kScaleBits))) {
    // Lane by lane: rare, and there is no portable vector floor.
    Vec reduced = y;
    for (int i = 0; i < kLanes; ++i) {
      if (y[i] < -kScaleBits) {
        const double n = static_cast<double>(static_cast<int64_t>(-y[i] / kScaleBits));
        scale[i] = -n;
        reduced[i] = y[i] + n * kScaleBits;
      }
    }
    q = exp2(reduced);
  } else {
    q = exp2(y);
  }
}

// Moves lanes that outgrew their scale one scale up. Returns true when a lane is still scaled.
SFNO_INLINE bool rescale(Vec& q, Vec& previous, Vec& scale) {
  const IntVec scaled = scale < 0.0;
  if (!any(scaled)) return false;
  const IntVec grown = scaled & (absolute(q) > 1.0);
  if (any(grown)) {
    q = select(grown, q * kScaleDown, q);
    previous = select(grown, previous * kScaleDown, previous);
    scale = select(grown, scale + 1.0, scale);
  }
  return any(scale < 0.0);
}

SFNO_INLINE bool significant(Vec q, Vec scale) {
  return any((absolute(q) > kNegligible) & (scale == 0.0));
}

}  // namespace sfno::SFNO_ISA
