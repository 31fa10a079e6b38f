// Handlers of the pointwise network, called by XLA.
#include "mlp_ffi.h"

#include <string>
#include <vector>

#include "dispatch.h"
#include "mlp_job.h"
#include "parallel.h"
#include "threads.h"

namespace sfno {
namespace {

namespace ffi = xla::ffi;
using Floats = ffi::Buffer<ffi::F32>;

constexpr int64_t kUnits = 32;
constexpr int64_t kChannelBlock = 16;

// The job of x (batch, in, points), w1 (hidden, in), b1 (hidden), w2 (out, hidden); units 0 where they disagree.
MlpJob job_of(const Floats& x, const Floats& w1, const Floats& b1, const Floats& w2) {
  MlpJob job{};
  const auto xs = x.dimensions(), w1s = w1.dimensions(), b1s = b1.dimensions(), w2s = w2.dimensions();
  if (xs.size() != 3 || w1s.size() != 2 || b1s.size() != 1 || w2s.size() != 2 || w1s[1] != xs[1] ||
      b1s[0] != w1s[0] || w2s[1] != w1s[0] || xs[1] % kChannelBlock != 0 || w1s[0] % kChannelBlock != 0 ||
      w2s[0] % kChannelBlock != 0) {
    return job;
  }
  job.x = x.typed_data();
  job.w1 = w1.typed_data();
  job.b1 = b1.typed_data();
  job.w2 = w2.typed_data();
  job.batch = xs[0];
  job.points = xs[2];
  job.in = static_cast<int>(xs[1]);
  job.hidden = static_cast<int>(w1s[0]);
  job.out = static_cast<int>(w2s[0]);
  const int64_t tiles = kernels().mlp->tiles(job);
  job.units = tiles < kUnits ? tiles : kUnits;
  return job;
}

ffi::Error disagree() {
  return ffi::Error(ffi::ErrorCode::kInvalidArgument, "sfno-jax: shapes of the pointwise network disagree");
}

void run(ffi::ThreadPool& pool, const MlpJob& job) {
  const MlpKernels& k = *kernels().mlp;
  const auto bytes = static_cast<size_t>(k.scratch_bytes(job));
  const double work = 1.0 * job.batch * job.points * job.hidden * (job.in + job.out);
  const int64_t helpers = work < kWorthAThread ? 0 : thread_limit(pool.num_threads()) - 1;
  parallel_for(pool, helpers, job.units, [&](int64_t i) { k.unit(job, i, thread_scratch(bytes)); });
}

ffi::Error forward(ffi::ThreadPool pool, Floats x, Floats w1, Floats b1, Floats w2, Floats residual,
                   ffi::Result<Floats> y) {
  MlpJob job = job_of(x, w1, b1, w2);
  const int64_t size = job.batch * job.out * job.points;
  const auto added = static_cast<int64_t>(residual.element_count());  // 0: none
  if (job.units == 0 || static_cast<int64_t>(y->element_count()) != size || (added != 0 && added != size)) {
    return disagree();
  }
  job.residual = added == 0 ? nullptr : residual.typed_data();
  job.output = y->typed_data();
  run(pool, job);
  return ffi::Error::Success();
}

ffi::Error gradients(ffi::ThreadPool pool, Floats x, Floats w1, Floats b1, Floats w2, Floats cotangent,
                     ffi::Result<Floats> dx, ffi::Result<Floats> dw1, ffi::Result<Floats> db1,
                     ffi::Result<Floats> dw2) {
  MlpJob job = job_of(x, w1, b1, w2);
  const auto count = [](ffi::Result<Floats>& r) { return static_cast<int64_t>(r->element_count()); };
  const int64_t n1 = int64_t{job.hidden} * job.in, n2 = int64_t{job.out} * job.hidden, size = n1 + job.hidden + n2;
  if (job.units == 0 || static_cast<int64_t>(cotangent.element_count()) != job.batch * job.out * job.points ||
      count(dx) != job.batch * job.in * job.points || count(dw1) != n1 || count(db1) != job.hidden ||
      count(dw2) != n2) {
    return disagree();
  }
  thread_local ScratchMemory partial;
  job.cotangent = cotangent.typed_data();
  job.output = dx->typed_data();
  job.partial = static_cast<float*>(partial.get(static_cast<size_t>(job.units * size) * sizeof(float)));
  run(pool, job);
  const auto sum = [&](float* out, int64_t first, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = 0;
    for (int64_t unit = 0; unit < job.units; ++unit) {
      const float* from = job.partial + unit * size + first;
      for (int64_t i = 0; i < n; ++i) out[i] += from[i];
    }
  };
  sum(dw1->typed_data(), 0, n1);
  sum(db1->typed_data(), n1, job.hidden);
  std::vector<float> turned(static_cast<size_t>(n2));  // (hidden, out)
  sum(turned.data(), n1 + job.hidden, n2);
  for (int o = 0; o < job.out; ++o)
    for (int f = 0; f < job.hidden; ++f) dw2->typed_data()[int64_t{o} * job.hidden + f] = turned[int64_t{f} * job.out + o];
  return ffi::Error::Success();
}

auto arguments() {
  return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Floats>().Arg<Floats>().Arg<Floats>().Arg<Floats>();
}

XLA_FFI_DEFINE_HANDLER(mlp_forward, forward, arguments().Arg<Floats>().Ret<Floats>());
XLA_FFI_DEFINE_HANDLER(mlp_gradients, gradients,
                       arguments().Arg<Floats>().Ret<Floats>().Ret<Floats>().Ret<Floats>().Ret<Floats>());

}  // namespace

std::vector<NamedHandler> mlp_handlers() {
  return {{"sfno_jax_mlp", mlp_forward}, {"sfno_jax_mlp_gradients", mlp_gradients}};
}

}  // namespace sfno
