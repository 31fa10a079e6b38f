// The table of functions of one instruction set. Included by kernels_*.cpp, each compiled with its
// own flags.
#pragma once

#include "batch.h"
#include "packed_product.h"
#include "packed_transform.h"
#include "pointwise_mlp.h"
#include "single.h"

namespace sfno::SFNO_ISA {

// From this many fields on, sharing the Legendre functions between them beats summing each field
// along the lanes (measured; see docs/decisions/004-native-legendre-kernel.md).
SFNO_INLINE bool use_batch(const Job& job) { return job.batch >= 4; }

// How the work of a job is cut: groups of orders by tiles of fields. Units of small m, the long ones,
// come first.
struct Units {
  int64_t fields, tiles, groups;

  Units(const Job& job, bool analysis)
      : fields(use_batch(job) ? fields_per_unit(job, compute_bytes(job)) : 1),
        tiles((job.batch + fields - 1) / fields),
        groups(((analysis ? job.mmax : job.nfreq) + kOrders - 1) / kOrders) {}

  static int64_t compute_bytes(const Job& job) {
    return job.single_precision && job.components == 1 ? 4 : 8;
  }
};

inline int64_t unit_count(const Job& job, bool analysis) {
  const Units units(job, analysis);
  return units.tiles * units.groups;
}

inline int64_t scratch_bytes(const Job& job, bool analysis) {
  if (!use_batch(job)) return SingleScratch::bytes(job);
  const Units units(job, analysis);
  return Units::compute_bytes(job) == 4 ? BatchScratch<float>::bytes(job, units.fields)
                                        : BatchScratch<double>::bytes(job, units.fields);
}

template <bool kAnalysis>
void run_unit(const Job& job, int64_t unit, void* scratch) {
  const Units units(job, kAnalysis);
  const int m0 = static_cast<int>(unit / units.tiles) * kOrders;
  const int64_t field = unit % units.tiles * units.fields;
  const int64_t left = job.batch - field, fields = left < units.fields ? left : units.fields;
  if (fields <= 0) return;
  const auto run = [&](auto single, auto batch) {
    use_batch(job) ? batch(job, field, fields, m0, scratch) : single(job, field, m0, scratch);
  };
  if (!job.single_precision) {
    kAnalysis ? run(analysis_single<double>, analysis_batch<double, double>)
              : run(synthesis_single<double>, synthesis_batch<double, double>);
  } else if (job.components == 2) {
    kAnalysis ? run(analysis_single<float>, analysis_batch<float, double>)
              : run(synthesis_single<float>, synthesis_batch<float, double>);
  } else {
    kAnalysis ? run(analysis_single<float>, analysis_batch<float, float>)
              : run(synthesis_single<float>, synthesis_batch<float, float>);
  }
}

template <typename T>
constexpr PackedKernels kPacked = {
    [](const PackedJob& job, int64_t samples) {
      const Stack<T> stack(job, samples);
      return stack.orders * stack.order * static_cast<int64_t>(sizeof(T));
    },
    PackedScratch<T>::bytes,
    analyse_rows<T>,
    analyse_order<T>,
    synthesise_order<T>,
    synthesise_rows<T>,
    product_scratch_bytes,
    product_unit<T>};

constexpr MlpKernels kMlp = {mlp_tiles, MlpScratch::bytes, mlp_unit};

}  // namespace sfno::SFNO_ISA

namespace sfno {
#define SFNO_STRING_(x) #x
#define SFNO_STRING(x) SFNO_STRING_(x)
#define SFNO_JOIN_(a, b) a##b
#define SFNO_JOIN(a, b) SFNO_JOIN_(a, b)
extern const Kernels SFNO_JOIN(kernels_, SFNO_ISA);
const Kernels SFNO_JOIN(kernels_, SFNO_ISA) = {
    SFNO_STRING(SFNO_ISA), SFNO_ISA::unit_count, SFNO_ISA::scratch_bytes, SFNO_ISA::run_unit<true>,
    SFNO_ISA::run_unit<false>, &SFNO_ISA::kPacked<float>, &SFNO_ISA::kPacked<double>,
    &SFNO_ISA::kMlp};
}  // namespace sfno
