// One SIMD register of doubles, written with the vector extensions of GCC and Clang, so that the
// same source serves SSE2, AVX2, AVX-512 and NEON.
//
// Everything lives in a namespace named after the instruction set (SFNO_ISA): the kernels are
// compiled once per instruction set, and the linker must never merge, say, an AVX-512 copy of an
// inline function with the baseline copy. For the same reason the kernels use no std:: templates.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#ifndef SFNO_ISA
#error "define SFNO_ISA (namespace) and SFNO_VECTOR_BYTES before including the kernels"
#endif

#define SFNO_INLINE inline __attribute__((always_inline))

namespace sfno::SFNO_ISA {

constexpr int kLanes = SFNO_VECTOR_BYTES / 8;  // doubles in a register

using Vec = double __attribute__((vector_size(SFNO_VECTOR_BYTES)));
using IntVec = int64_t __attribute__((vector_size(SFNO_VECTOR_BYTES)));

// Registers that may be read from any address.
using VecUnaligned = double __attribute__((vector_size(SFNO_VECTOR_BYTES), aligned(8), may_alias));

template <typename T>
struct Simd;  // a full register of T, and a register of T with kLanes elements

template <>
struct Simd<double> {
  using Full = Vec;
  using FullUnaligned = VecUnaligned;
  using PerLane = VecUnaligned;
};

template <>
struct Simd<float> {
  using Full = float __attribute__((vector_size(SFNO_VECTOR_BYTES)));
  using FullUnaligned = float
      __attribute__((vector_size(SFNO_VECTOR_BYTES), aligned(4), may_alias));
  using PerLane = float
      __attribute__((vector_size(SFNO_VECTOR_BYTES / 2), aligned(4), may_alias));
};

SFNO_INLINE Vec load(const double* p) { return *reinterpret_cast<const VecUnaligned*>(p); }
SFNO_INLINE void store(double* p, Vec v) { *reinterpret_cast<VecUnaligned*>(p) = v; }
SFNO_INLINE Vec broadcast(double s) { return s - Vec{}; }

// True when any lane of a comparison's result is set.
SFNO_INLINE bool any(IntVec mask) {
#if SFNO_VECTOR_BYTES == 64 && defined(__AVX512DQ__)
  return _mm512_movepi64_mask(reinterpret_cast<__m512i>(mask)) != 0;
#elif SFNO_VECTOR_BYTES == 32 && defined(__AVX2__)
  return _mm256_movemask_pd(reinterpret_cast<__m256d>(mask)) != 0;
#else
  int64_t bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= mask[i];
  return bits != 0;
#endif
}

SFNO_INLINE Vec select(IntVec mask, Vec yes, Vec no) {
  return reinterpret_cast<Vec>((mask & reinterpret_cast<IntVec>(yes)) |
                               (~mask & reinterpret_cast<IntVec>(no)));
}

SFNO_INLINE Vec absolute(Vec v) {
  return reinterpret_cast<Vec>(reinterpret_cast<IntVec>(v) & INT64_C(0x7fffffffffffffff));
}

template <int N>
struct Constant {
  static constexpr int value = N;
};

SFNO_INLINE int smaller(int a, int b) { return a < b ? a : b; }
SFNO_INLINE int larger(int a, int b) { return a > b ? a : b; }

}  // namespace sfno::SFNO_ISA
