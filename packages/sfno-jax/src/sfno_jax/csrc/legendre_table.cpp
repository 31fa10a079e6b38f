#include "legendre_table.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <list>
#include <mutex>

namespace sfno {
namespace {

// Room behind the last step, so that kernels may run to the end of a block of steps.
constexpr int kPadding = 40;
constexpr size_t kCacheEntries = 16;
constexpr size_t kCacheBytes = size_t{256} << 20;

#if LDBL_MANT_DIG == 64  // x87: cheap, and rounds the coefficients correctly
using Wide = long double;
#else
using Wide = double;
#endif

Wide epsilon(int l, int m) {
  if (l <= m) return 0;
  const Wide l2 = Wide(l) * l;
  return std::sqrt((Wide(l - m) * (l + m)) / (4 * l2 - 1));
}

size_t padded_steps(int lmax, int m) { return static_cast<size_t>((lmax - m + 1) / 2 + kPadding); }

// Fills a, b, b_polar and alpha for the degrees m+parity, m+parity+2, ...
void fill_steps(const std::vector<Wide>& eps, int parity, size_t steps, double* a, double* b,
                double* b_polar, double* alpha) {
  // q_0 = P_mm or x P_mm, so alpha_0 = 1 or 1/eps_{m+1}; alpha_1 is free.
  Wide previous = parity == 0 ? Wide(1) : 1 / eps[1];
  Wide current = previous;
  alpha[0] = static_cast<double>(previous);
  for (size_t k = 0; k < steps; ++k) {
    const size_t n = 2 * k + static_cast<size_t>(parity);  // l = m + n
    const Wide up = eps[n + 1] * eps[n + 2];
    // `previous`, `current` are alpha_{k-1}, alpha_k, except in the first step.
    Wide next = current;
    if (k > 0) next = previous * (eps[n] * eps[n - 1]) / up;
    const Wide ak = current / (next * up);
    const Wide c = eps[n + 1] * eps[n + 1] + eps[n] * eps[n];
    a[k] = static_cast<double>(ak);
    b[k] = static_cast<double>(-ak * c);
    b_polar[k] = static_cast<double>(ak * (1 - c));
    if (k + 1 < steps) alpha[k + 1] = static_cast<double>(next);
    previous = current;
    current = next;
  }
}

}  // namespace

LegendreTable::LegendreTable(int lmax, int mmax) : orders_(static_cast<size_t>(mmax)) {
  const auto rounded = [](size_t n) { return (n + 7) / 8 * 8; };
  size_t total = 8;
  for (int m = 0; m < mmax; ++m) {
    const size_t steps = padded_steps(lmax, m);
    total += 8 * rounded(steps) + rounded(2 * steps + 4);
  }
  storage_.resize(total);
  double* p = storage_.data();
  Wide log2_sectoral = -std::log2(4 * std::acos(Wide(-1))) / 2;  // P_00 = 1/sqrt(4 pi)
  std::vector<Wide> eps;
  for (int m = 0; m < mmax; ++m) {
    if (m > 0) log2_sectoral += std::log2(Wide(2 * m + 1) / Wide(2 * m)) / 2;
    const size_t steps = padded_steps(lmax, m);
    OrderTable& order = orders_[static_cast<size_t>(m)];
    order.log2_sectoral = static_cast<double>(log2_sectoral);
    eps.resize(2 * steps + 4);
    for (size_t n = 0; n < eps.size(); ++n) {
      eps[n] = epsilon(m + static_cast<int>(n), m);
      p[n] = static_cast<double>(eps[n]);
    }
    order.eps = p;
    p += rounded(2 * steps + 4);
    for (int parity = 0; parity < 2; ++parity) {
      double* column[4];
      for (double*& c : column) {
        c = p;
        p += rounded(steps);
      }
      fill_steps(eps, parity, steps, column[0], column[1], column[2], column[3]);
      order.a[parity] = column[0];
      order.b[parity] = column[1];
      order.b_polar[parity] = column[2];
      order.alpha[parity] = column[3];
    }
  }
}

std::shared_ptr<const LegendreTable> LegendreTable::get(int lmax, int mmax) {
  struct Entry {
    int lmax, mmax;
    std::shared_ptr<const LegendreTable> table;
  };
  static std::mutex mutex;
  static std::list<Entry> cache;  // most recently used first
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = std::find_if(cache.begin(), cache.end(), [&](const Entry& e) {
    return e.lmax == lmax && e.mmax == mmax;
  });
  if (found != cache.end()) {
    cache.splice(cache.begin(), cache, found);
    return cache.front().table;
  }
  cache.push_front({lmax, mmax, std::make_shared<const LegendreTable>(lmax, mmax)});
  size_t bytes = 0, entries = 0;
  for (auto it = cache.begin(); it != cache.end();) {
    bytes += it->table->bytes();
    ++entries;
    const bool drop = it != cache.begin() && (entries > kCacheEntries || bytes > kCacheBytes);
    it = drop ? cache.erase(it) : std::next(it);
  }
  return cache.front().table;
}

}  // namespace sfno
