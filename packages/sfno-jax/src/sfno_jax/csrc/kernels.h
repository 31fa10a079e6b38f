// The table of functions of one instruction set. Included by kernels_*.cpp, each compiled with its
// own flags.
#pragma once

#include "single.h"

namespace sfno::SFNO_ISA {

SFNO_INLINE int64_t groups(const Job& job, bool analysis) {
  return ((analysis ? job.mmax : job.nfreq) + kOrders - 1) / kOrders;
}

inline int64_t unit_count(const Job& job, bool analysis) {
  return groups(job, analysis) * job.batch;
}

inline int64_t scratch_bytes(const Job& job, bool) { return SingleScratch::bytes(job); }

// Units of small m, the long ones, come first.
inline void analysis_unit(const Job& job, int64_t unit, void* scratch) {
  const int m0 = static_cast<int>(unit / job.batch) * kOrders;
  const int64_t field = unit % job.batch;
  job.single_precision ? analysis_single<float>(job, field, m0, scratch)
                       : analysis_single<double>(job, field, m0, scratch);
}

inline void synthesis_unit(const Job& job, int64_t unit, void* scratch) {
  const int m0 = static_cast<int>(unit / job.batch) * kOrders;
  const int64_t field = unit % job.batch;
  job.single_precision ? synthesis_single<float>(job, field, m0, scratch)
                       : synthesis_single<double>(job, field, m0, scratch);
}

}  // namespace sfno::SFNO_ISA

namespace sfno {
#define SFNO_STRING_(x) #x
#define SFNO_STRING(x) SFNO_STRING_(x)
#define SFNO_JOIN_(a, b) a##b
#define SFNO_JOIN(a, b) SFNO_JOIN_(a, b)
extern const Kernels SFNO_JOIN(kernels_, SFNO_ISA);
const Kernels SFNO_JOIN(kernels_, SFNO_ISA) = {
    SFNO_STRING(SFNO_ISA), SFNO_ISA::unit_count, SFNO_ISA::scratch_bytes, SFNO_ISA::analysis_unit,
    SFNO_ISA::synthesis_unit};
}  // namespace sfno
