// Transposes of blocks of numbers or of complex numbers in registers.
#pragma once

#include "simd.h"

namespace sfno::SFNO_ISA {

// Transposes kLanes x kLanes elements of 64 bits: doubles, or complex64 numbers.
SFNO_INLINE void transpose(Vec* v) {
#if SFNO_VECTOR_BYTES == 64
  Vec t[8], u[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = __builtin_shufflevector(v[i], v[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
    t[i + 1] = __builtin_shufflevector(v[i], v[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int k = 0; k < 2; ++k) {
      u[i + k] = __builtin_shufflevector(t[i + k], t[i + k + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      u[i + k + 2] = __builtin_shufflevector(t[i + k], t[i + k + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  for (int k = 0; k < 4; ++k) {
    v[k] = __builtin_shufflevector(u[k], u[k + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    v[k + 4] = __builtin_shufflevector(u[k], u[k + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
#elif SFNO_VECTOR_BYTES == 32
  Vec t[4];
  for (int i = 0; i < 4; i += 2) {
    t[i] = __builtin_shufflevector(v[i], v[i + 1], 0, 4, 2, 6);
    t[i + 1] = __builtin_shufflevector(v[i], v[i + 1], 1, 5, 3, 7);
  }
  for (int k = 0; k < 2; ++k) {
    v[k] = __builtin_shufflevector(t[k], t[k + 2], 0, 1, 4, 5);
    v[k + 2] = __builtin_shufflevector(t[k], t[k + 2], 2, 3, 6, 7);
  }
#else
  const Vec a = v[0], b = v[1];
  v[0] = __builtin_shufflevector(a, b, 0, 2);
  v[1] = __builtin_shufflevector(a, b, 1, 3);
#endif
}

// Transposes kLanes/2 x kLanes/2 elements of 128 bits: complex128 numbers.
SFNO_INLINE void transpose_pairs([[maybe_unused]] Vec* v) {
#if SFNO_VECTOR_BYTES == 64
  Vec t[4];
  for (int i = 0; i < 4; i += 2) {
    t[i] = __builtin_shufflevector(v[i], v[i + 1], 0, 1, 8, 9, 4, 5, 12, 13);
    t[i + 1] = __builtin_shufflevector(v[i], v[i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
  }
  for (int k = 0; k < 2; ++k) {
    v[k] = __builtin_shufflevector(t[k], t[k + 2], 0, 1, 2, 3, 8, 9, 10, 11);
    v[k + 2] = __builtin_shufflevector(t[k], t[k + 2], 4, 5, 6, 7, 12, 13, 14, 15);
  }
#elif SFNO_VECTOR_BYTES == 32
  const Vec a = v[0], b = v[1];
  v[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
  v[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
#endif
}

// Even and odd elements of the concatenation of a and b, and the inverse.
#define SFNO_SHUFFLE_(...) __builtin_shufflevector(a, b, __VA_ARGS__)
template <typename V>
SFNO_INLINE void deinterleave(V& first, V& second) {
  const V a = first, b = second;
  constexpr int n = sizeof(V) / sizeof(a[0]);
  if constexpr (n == 2) {
    first = SFNO_SHUFFLE_(0, 2);
    second = SFNO_SHUFFLE_(1, 3);
  } else if constexpr (n == 4) {
    first = SFNO_SHUFFLE_(0, 2, 4, 6);
    second = SFNO_SHUFFLE_(1, 3, 5, 7);
  } else if constexpr (n == 8) {
    first = SFNO_SHUFFLE_(0, 2, 4, 6, 8, 10, 12, 14);
    second = SFNO_SHUFFLE_(1, 3, 5, 7, 9, 11, 13, 15);
  } else {
    first = SFNO_SHUFFLE_(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    second = SFNO_SHUFFLE_(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  }
}
template <typename V>
SFNO_INLINE void interleave(V& first, V& second) {
  const V a = first, b = second;
  constexpr int n = sizeof(V) / sizeof(a[0]);
  if constexpr (n == 2) {
    first = SFNO_SHUFFLE_(0, 2);
    second = SFNO_SHUFFLE_(1, 3);
  } else if constexpr (n == 4) {
    first = SFNO_SHUFFLE_(0, 4, 1, 5);
    second = SFNO_SHUFFLE_(2, 6, 3, 7);
  } else if constexpr (n == 8) {
    first = SFNO_SHUFFLE_(0, 8, 1, 9, 2, 10, 3, 11);
    second = SFNO_SHUFFLE_(4, 12, 5, 13, 6, 14, 7, 15);
  } else {
    first = SFNO_SHUFFLE_(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    second = SFNO_SHUFFLE_(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  }
}
#undef SFNO_SHUFFLE_

// A register of complex numbers of real type D.
template <typename D>
struct Complexes {
  static constexpr int kCount = SFNO_VECTOR_BYTES / (2 * sizeof(D));
  using Register = typename Simd<D>::Full;
  using Memory = typename Simd<D>::FullUnaligned;

  // `count` complex numbers, the rest zero.
  static SFNO_INLINE Register load(const D* p, int count = kCount) {
    if (count >= kCount) return *reinterpret_cast<const Memory*>(p);
    Register v{};
    for (int i = 0; i < 2 * count; ++i) v[i] = p[i];
    return v;
  }
  static SFNO_INLINE void store(D* p, Register v, int count = kCount) {
    if (count >= kCount) {
      *reinterpret_cast<Memory*>(p) = v;
    } else {
      for (int i = 0; i < 2 * count; ++i) p[i] = v[i];
    }
  }
  // Conversion from and to another real type; whole registers only.
  template <typename T>
  static SFNO_INLINE Register load_from(const T* p) {
    if constexpr (sizeof(T) == sizeof(D)) {
      return *reinterpret_cast<const Memory*>(p);
    } else {
      static_assert(sizeof(T) == 8 && sizeof(D) == 4);
      using Half = typename Simd<float>::PerLane;
      Register v;
      *reinterpret_cast<Half*>(&v) = __builtin_convertvector(sfno::SFNO_ISA::load(p), Half);
      *(reinterpret_cast<Half*>(&v) + 1) =
          __builtin_convertvector(sfno::SFNO_ISA::load(p + kLanes), Half);
      return v;
    }
  }
  template <typename T>
  static SFNO_INLINE void store_to(T* p, Register v) {
    if constexpr (sizeof(T) == sizeof(D)) {
      *reinterpret_cast<Memory*>(p) = v;
    } else {
      static_assert(sizeof(T) == 8 && sizeof(D) == 4);
      using Half = typename Simd<float>::PerLane;
      sfno::SFNO_ISA::store(p, __builtin_convertvector(*reinterpret_cast<Half*>(&v), Vec));
      sfno::SFNO_ISA::store(p + kLanes,
                            __builtin_convertvector(*(reinterpret_cast<Half*>(&v) + 1), Vec));
    }
  }
  // kCount registers of kCount complex numbers.
  static SFNO_INLINE void transpose(Register* v) {
    Vec bits[kCount];  // the same bits, as the type that the transposes are written for
    for (int i = 0; i < kCount; ++i) bits[i] = reinterpret_cast<Vec>(v[i]);
    if constexpr (sizeof(D) == 4) {
      sfno::SFNO_ISA::transpose(bits);
    } else {
      transpose_pairs(bits);
    }
    for (int i = 0; i < kCount; ++i) v[i] = reinterpret_cast<Register>(bits[i]);
  }
};

}  // namespace sfno::SFNO_ISA
