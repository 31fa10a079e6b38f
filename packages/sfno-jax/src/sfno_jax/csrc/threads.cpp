#include "threads.h"

#include <cstdlib>

#if defined(__linux__)
#include <sched.h>
#endif

namespace sfno {

void* thread_scratch(size_t bytes) {
  thread_local ScratchMemory memory;
  return memory.get(bytes);
}

int64_t thread_limit(int64_t pool_threads) {
  int64_t limit = pool_threads;
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) < limit) {
    limit = CPU_COUNT(&set);
  }
#endif
  if (const char* text = std::getenv("SFNO_JAX_NUM_THREADS")) {
    const int64_t wanted = std::atoll(text);
    if (wanted > 0 && wanted < limit) limit = wanted;
  }
  return limit;
}

}  // namespace sfno
