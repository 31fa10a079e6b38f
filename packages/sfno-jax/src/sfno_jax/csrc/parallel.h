// Independent units of work over XLA's thread pool.
//
// The calling thread takes part, so a pool that is busy or empty slows nothing but the other threads:
// helpers that start after the last unit was taken find nothing to do. Units are claimed through an
// atomic counter and the caller waits only for units in flight.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <type_traits>

namespace sfno {

// Calls work(unit) for unit = 0 ... count-1 on the caller and up to `helpers` tasks of `pool`.
template <typename Pool, typename Work>
void parallel_for(Pool& pool, int64_t helpers, int64_t count, const Work& work) {
  if (helpers > count - 1) helpers = count - 1;
  if (helpers <= 0) {
    for (int64_t unit = 0; unit < count; ++unit) work(unit);
    return;
  }
  struct State {
    std::atomic<int64_t> next{0}, done{0};
    std::mutex mutex;
    std::condition_variable finished;
  };
  // Shared: a helper may start after this call has returned.
  auto state = std::make_shared<State>();
  const auto drain = [state, count, &work] {
    int64_t mine = 0;
    for (int64_t unit; (unit = state->next.fetch_add(1)) < count; ++mine) work(unit);
    if (mine > 0 && state->done.fetch_add(mine) + mine == count) {
      const std::lock_guard<std::mutex> lock(state->mutex);
      state->finished.notify_all();
    }
  };
  for (int64_t i = 0; i < helpers; ++i) pool.Schedule(std::decay_t<decltype(drain)>(drain));
  drain();
  // Units are short: look a while before sleeping.
  for (int spin = 0; spin < 20000 && state->done.load() < count; ++spin) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  std::unique_lock<std::mutex> lock(state->mutex);
  state->finished.wait(lock, [&] { return state->done.load() == count; });
}

}  // namespace sfno
