#include "dispatch.h"

#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace sfno {

#if defined(__x86_64__)
extern const Kernels kernels_v2, kernels_v3, kernels_v4;

namespace {

bool supported(const Kernels& k) {
  __builtin_cpu_init();
  if (&k == &kernels_v4) {
    return supported(kernels_v3) && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  }
  if (&k == &kernels_v3) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  }
  return true;
}

const Kernels& choose() {
  const char* wanted = std::getenv("SFNO_JAX_ISA");
  bool reached = wanted == nullptr;
  for (const Kernels* k : {&kernels_v4, &kernels_v3}) {
    reached = reached || std::strcmp(wanted, k->name) == 0;
    if (reached && supported(*k)) return *k;
  }
  return kernels_v2;
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}
#else
extern const Kernels kernels_generic;
const Kernels& kernels() { return kernels_generic; }
#endif

}  // namespace sfno
