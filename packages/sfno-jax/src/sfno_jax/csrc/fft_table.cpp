#include "fft_table.h"

#include <cmath>
#include <list>
#include <mutex>

namespace sfno {
namespace {

constexpr int kRadices[] = {4, 2, 3, 5, 7};
constexpr size_t kCacheEntries = 16;

}  // namespace

template <typename T>
bool FftTable<T>::supports(int64_t n) {
  if (n < 1) return false;
  for (const int r : kRadices) {
    while (n % r == 0) n /= r;
  }
  return n == 1;
}

template <typename T>
FftTable<T>::FftTable(int n) : n_(n) {
  std::vector<int> radices;
  size_t total = 0;
  for (int left = n; left > 1;) {
    for (const int r : kRadices) {
      if (left % r != 0) continue;
      total += 2 * static_cast<size_t>(left / r) * (r - 1) + 2 * r;
      radices.push_back(r);
      left /= r;
      break;
    }
  }
  storage_.resize(total);
  T* p = storage_.data();
  // exp(-2 pi i a / b)
  const auto root = [&p](int64_t a, int64_t b) {
    const double angle = 2 * std::acos(-1.0) * static_cast<double>(a % b) / static_cast<double>(b);
    *p++ = static_cast<T>(std::cos(angle));
    *p++ = static_cast<T>(-std::sin(angle));
  };
  int left = n;
  for (const int r : radices) {
    FftPass<T> pass{r, left / r, p, nullptr};
    for (int64_t q = 0; q < pass.m; ++q)
      for (int k = 1; k < r; ++k) root(q * k, left);
    pass.roots = p;
    for (int j = 0; j < r; ++j) root(j, r);
    passes_.push_back(pass);
    left /= r;
  }
}

template <typename T>
std::shared_ptr<const FftTable<T>> FftTable<T>::get(int n) {
  static std::mutex mutex;
  static std::list<std::shared_ptr<const FftTable>> cache;  // most recently used first
  const std::lock_guard<std::mutex> lock(mutex);
  for (auto it = cache.begin(); it != cache.end(); ++it) {
    if ((*it)->size() != n) continue;
    cache.splice(cache.begin(), cache, it);
    return cache.front();
  }
  cache.push_front(std::make_shared<const FftTable>(n));
  if (cache.size() > kCacheEntries) cache.pop_back();
  return cache.front();
}

template class FftTable<float>;
template class FftTable<double>;

}  // namespace sfno
