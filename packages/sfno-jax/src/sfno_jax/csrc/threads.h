// How many threads work for a call, and the scratch memory that each keeps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace sfno {

// Memory that grows to what was asked for: fresh pages cost more than the work of a small transform.
class ScratchMemory {
 public:
  void* get(size_t bytes) {
    if (size_ < bytes) {
      memory_.reset();
      size_ = 0;
      memory_.reset(::operator new(bytes, std::align_val_t(64)));
      size_ = bytes;
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(void* p) const { ::operator delete(p, std::align_val_t(64)); }
  };
  std::unique_ptr<void, Free> memory_;
  size_t size_ = 0;
};

// Scratch memory of this thread, kept between calls.
void* thread_scratch(size_t bytes);

// Threads that may work for one call: the pool's, no more than the caller's CPU affinity (taskset,
// cgroup cpusets) allows, no more than SFNO_JAX_NUM_THREADS.
int64_t thread_limit(int64_t pool_threads);

// Below about this many multiply-adds (some 30 microseconds) waking another thread costs more.
constexpr double kWorthAThread = 4e5;

}  // namespace sfno
