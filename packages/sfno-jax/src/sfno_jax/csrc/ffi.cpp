// The handlers that XLA calls, and the Python module that hands them over.
#include <nanobind/nanobind.h>

#include <string>

#include "dispatch.h"
#include "job.h"
#include "latitude_table.h"
#include "legendre_table.h"
#include "mlp_ffi.h"
#include "packed_ffi.h"
#include "parallel.h"
#include "threads.h"
#include "xla/ffi/api/ffi.h"

namespace sfno {
namespace {

namespace ffi = xla::ffi;
using Doubles = ffi::Span<const double>;

ffi::Error invalid(const std::string& message) {
  return ffi::Error(ffi::ErrorCode::kInvalidArgument, "sfno-jax: " + message);
}

ffi::Error transform(bool analysis, int components, ffi::ThreadPool& pool,
                     const ffi::AnyBuffer& input, ffi::AnyBuffer& output, Doubles cosine,
                     Doubles sine, Doubles weights, Doubles degree_scale, int64_t lmax,
                     int64_t mmax, int64_t nfreq, int64_t csphase, int64_t conjugate) {
  const auto nlat = static_cast<int64_t>(cosine.size());
  const ffi::DataType type = input.element_type();
  if ((type != ffi::DataType::C64 && type != ffi::DataType::C128) ||
      output.element_type() != type) {
    return invalid("the Legendre transform takes complex64 or complex128");
  }
  if (nlat < 1 || static_cast<int64_t>(weights.size()) != nlat || lmax < 1 || mmax < 1 ||
      nfreq < 1 || static_cast<int64_t>(degree_scale.size()) != lmax ||
      (sine.size() != 0 && static_cast<int64_t>(sine.size()) != nlat)) {
    return invalid("tables and sizes of the Legendre transform disagree");
  }
  const int64_t grid = nlat * nfreq * components, spectral = lmax * mmax * components;
  const auto in_count = static_cast<int64_t>(input.element_count());
  const int64_t batch = in_count / (analysis ? grid : spectral);
  if (in_count != batch * (analysis ? grid : spectral) ||
      static_cast<int64_t>(output.element_count()) != batch * (analysis ? spectral : grid)) {
    return invalid("the shape of an array does not match the plan of the Legendre transform");
  }
  if (batch == 0) return ffi::Error::Success();

  const LatitudeTable latitudes(cosine.begin(), sine.size() == 0 ? nullptr : sine.begin(),
                                weights.begin(), static_cast<int>(nlat));
  // One degree and one order more than asked for: the vector harmonics need them.
  const auto table = LegendreTable::get(static_cast<int>(lmax) + 1,
                                        static_cast<int>(mmax < 2 ? 2 : mmax));
  Job job{};
  job.input = input.untyped_data();
  job.output = output.untyped_data();
  job.batch = batch;
  job.components = components;
  job.nlat = static_cast<int>(nlat);
  job.nfreq = static_cast<int>(nfreq);
  job.lmax = static_cast<int>(lmax);
  job.mmax = static_cast<int>(mmax);
  job.single_precision = type == ffi::DataType::C64;
  job.csphase = csphase != 0;
  job.conjugate = conjugate != 0;
  job.degree_scale = degree_scale.begin();
  job.orders = table->orders();
  job.latitudes = latitudes.view();

  const Kernels& k = kernels();
  const auto bytes = static_cast<size_t>(k.scratch_bytes(job, analysis));
  const auto unit = analysis ? k.analysis_unit : k.synthesis_unit;
  const double work = 1.0 * batch * components * lmax * mmax * nlat;
  const int64_t threads = work < kWorthAThread ? 1 : thread_limit(pool.num_threads());
  parallel_for(pool, threads - 1, k.unit_count(job, analysis),
               [&](int64_t i) { unit(job, i, thread_scratch(bytes)); });
  return ffi::Error::Success();
}

template <bool kAnalysis, int kComponents>
ffi::Error execute(ffi::ThreadPool pool, ffi::AnyBuffer input, ffi::Result<ffi::AnyBuffer> output,
                   Doubles cosine, Doubles sine, Doubles weights, Doubles degree_scale,
                   int64_t lmax, int64_t mmax, int64_t nfreq, int64_t csphase,
                   int64_t conjugate) {
  return transform(kAnalysis, kComponents, pool, input, *output, cosine, sine, weights,
                   degree_scale, lmax, mmax, nfreq, csphase, conjugate);
}

auto binding() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::ThreadPool>()
      .Arg<ffi::AnyBuffer>()
      .Ret<ffi::AnyBuffer>()
      .Attr<Doubles>("cos_colatitude")
      .Attr<Doubles>("sin_colatitude")
      .Attr<Doubles>("weights")
      .Attr<Doubles>("degree_scale")
      .Attr<int64_t>("lmax")
      .Attr<int64_t>("mmax")
      .Attr<int64_t>("nfreq")
      .Attr<int64_t>("csphase")
      .Attr<int64_t>("conjugate");
}

XLA_FFI_DEFINE_HANDLER(legendre_analysis, (execute<true, 1>), binding());
XLA_FFI_DEFINE_HANDLER(legendre_synthesis, (execute<false, 1>), binding());
XLA_FFI_DEFINE_HANDLER(vector_analysis, (execute<true, 2>), binding());
XLA_FFI_DEFINE_HANDLER(vector_synthesis, (execute<false, 2>), binding());

}  // namespace
}  // namespace sfno

namespace nb = nanobind;

NB_MODULE(_sfno_native, module) {
  module.doc() = "Legendre transforms as XLA FFI handlers.";
  module.def("isa", [] { return sfno::kernels().name; },
             "Instruction set of the kernels in use: v4 (AVX-512), v3 (AVX2), v2 or generic.");
  module.def("handlers", [] {
    nb::dict handlers;
    const auto add = [&](const char* name, XLA_FFI_Error* (*handler)(XLA_FFI_CallFrame*)) {
      handlers[name] = nb::capsule(reinterpret_cast<void*>(handler));
    };
    add("sfno_jax_legendre_analysis", sfno::legendre_analysis);
    add("sfno_jax_legendre_synthesis", sfno::legendre_synthesis);
    add("sfno_jax_vector_analysis", sfno::vector_analysis);
    add("sfno_jax_vector_synthesis", sfno::vector_synthesis);
    for (const auto& more : {sfno::packed_handlers(), sfno::mlp_handlers()}) {
      for (const sfno::NamedHandler& h : more) add(h.name, h.handler);
    }
    return handlers;
  }, "Capsules of the handlers by the name they are registered under.");
}
