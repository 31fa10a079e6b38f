// gelu(a) = a Phi(a) and its derivative Phi(a) + a phi(a), for registers of float32;
// Phi(a) = (1 + erf(a / sqrt 2)) / 2, phi(a) = exp(-a^2 / 2) / sqrt(2 pi).
#pragma once

#include "simd.h"

namespace sfno::SFNO_ISA {

using Floats = Simd<float>::Full;
using Ints = int32_t __attribute__((vector_size(SFNO_VECTOR_BYTES)));

SFNO_INLINE Floats choose(Ints mask, Floats yes, Floats no) {
  return reinterpret_cast<Floats>((mask & reinterpret_cast<Ints>(yes)) | (~mask & reinterpret_cast<Ints>(no)));
}

// Rational minimax approximation on [-4, 4], beyond which erf is +-1 in float32 (as in Eigen and XLA; 4 ulp).
SFNO_INLINE Floats erf(Floats x) {
  const Floats limit = 4.0f - Floats{};
  x = choose(x > limit, limit, choose(x < -limit, -limit, x));
  const Floats z = x * x;
  Floats p = z * -2.72614225801306e-10f + 2.77068142495902e-08f;
  p = p * z - 2.10102402082508e-06f;
  p = p * z - 5.69250639462346e-05f;
  p = p * z - 7.34990630326855e-04f;
  p = p * z - 2.95459980854025e-03f;
  p = p * z - 1.60960333262415e-02f;
  Floats q = z * -1.45660718464996e-05f - 2.13374055278905e-04f;
  q = q * z - 1.68282697438203e-03f;
  q = q * z - 7.37332916720468e-03f;
  q = q * z - 1.42647390514189e-02f;
  return x * p / q;
}

// exp(y) for y <= 0, 0 below -87: 2^n exp(r) with |r| <= ln(2) / 2 and Taylor's series of exp(r).
SFNO_INLINE Floats exp_negative(Floats y) {
  constexpr float kRound = 0x1.8p23f;  // adding it leaves the nearest integer in the low bits
  const Floats least = -87.0f - Floats{};
  const Ints below = y < least;
  y = choose(below, least, y);
  const Floats shifted = y * 1.44269504088896341f + kRound;
  const Floats n = shifted - kRound;
  const Floats r = (y - n * 0.693359375f) + n * 2.12194440e-4f;
  Floats p = r * (1.0f / 5040) + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const Ints exponent = (reinterpret_cast<Ints>(shifted) + 127) << 23;
  return choose(below, Floats{}, p * reinterpret_cast<Floats>(exponent));
}

SFNO_INLINE Floats normal_cdf(Floats a) { return erf(a * 0.707106781186547524f) * 0.5f + 0.5f; }

SFNO_INLINE Floats normal_density(Floats a) { return exp_negative(a * a * -0.5f) * 0.398942280401432678f; }

}  // namespace sfno::SFNO_ISA
