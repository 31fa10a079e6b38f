// Handlers of the packed transforms and of their products, called by XLA.
#include "packed_ffi.h"

#include <string>

#include "dispatch.h"
#include "fft_table.h"
#include "latitude_table.h"
#include "legendre_table.h"
#include "packed_job.h"
#include "parallel.h"
#include "threads.h"

namespace sfno {
namespace {

namespace ffi = xla::ffi;
using Doubles = ffi::Span<const double>;

// Stack of folded Fourier coefficients that a tile of samples may fill [bytes]: part of a shared cache.
constexpr int64_t kStackBytes = int64_t{6} << 20;
constexpr int64_t kLanesOfAnyType = 16;

ffi::Error invalid(const std::string& message) {
  return ffi::Error(ffi::ErrorCode::kInvalidArgument, "sfno-jax: " + message);
}

const PackedKernels& packed_kernels(bool single_precision) {
  return single_precision ? *kernels().packed_single : *kernels().packed_double;
}

bool is_real(ffi::DataType type) { return type == ffi::DataType::F32 || type == ffi::DataType::F64; }

// `onto` is a field that a synthesis is added to, or empty.
ffi::Error transform(bool analysis, ffi::ThreadPool& pool, const ffi::AnyBuffer& input, const ffi::AnyBuffer& onto,
                     ffi::AnyBuffer& output, Doubles cosine, Doubles sine, Doubles weights, Doubles degree_scale,
                     Doubles order_scale, int64_t lmax, int64_t mmax, int64_t nlon, int64_t csphase) {
  const auto type = input.element_type();
  const auto fields = (analysis ? input : output).dimensions();
  const auto packed = (analysis ? output : input).dimensions();
  if (!is_real(type) || output.element_type() != type || fields.size() != 3 || packed.size() != 4) {
    return invalid("the packed transform takes real (batch, channels, points) and (modes, batch, 2, channels)");
  }
  const auto nlat = static_cast<int64_t>(cosine.size());
  const int64_t batch = fields[0], channels = fields[1];
  if (nlat < 1 || lmax < 1 || mmax < 1 || nlon < 1 || fields[2] != nlat * nlon || channels % kLanesOfAnyType != 0 ||
      packed[0] != mode_row(lmax, mmax) || packed[1] != batch || packed[2] != 2 || packed[3] != channels ||
      static_cast<int64_t>(weights.size()) != nlat || static_cast<int64_t>(degree_scale.size()) != lmax ||
      static_cast<int64_t>(order_scale.size()) != mmax || static_cast<int64_t>(sine.size()) != nlat ||
      !FftTable<float>::supports(nlon)) {
    return invalid("tables and sizes of the packed transform disagree");
  }
  const bool added = onto.element_count() != 0;
  if (added && (analysis || onto.element_type() != type || onto.element_count() != output.element_count())) {
    return invalid("what a packed synthesis is added to is another field than its result");
  }
  if (batch == 0 || channels == 0) return ffi::Error::Success();

  const LatitudeTable latitudes(cosine.begin(), sine.begin(), weights.begin(), static_cast<int>(nlat));
  const auto table = LegendreTable::get(static_cast<int>(lmax), static_cast<int>(mmax));
  PackedJob job{};
  job.base.input = input.untyped_data();
  job.base.output = output.untyped_data();
  job.base.batch = batch;
  job.base.components = 1;
  job.base.nlat = static_cast<int>(nlat);
  job.base.nfreq = static_cast<int>(nlon / 2 + 1);
  job.base.lmax = static_cast<int>(lmax);
  job.base.mmax = static_cast<int>(mmax);
  job.base.single_precision = type == ffi::DataType::F32;
  job.base.csphase = csphase != 0;
  job.base.degree_scale = degree_scale.begin();
  job.base.orders = table->orders();
  job.base.latitudes = latitudes.view();
  job.channels = static_cast<int>(channels);
  job.nlon = static_cast<int>(nlon);
  job.order_scale = order_scale.begin();
  job.onto = added ? onto.untyped_data() : nullptr;
  const auto single = FftTable<float>::get(job.nlon);
  const auto twice = FftTable<double>::get(job.nlon);
  job.passes_single = single->passes().data();
  job.passes_double = twice->passes().data();
  job.passes = static_cast<int>(single->passes().size());

  const PackedKernels& k = packed_kernels(job.base.single_precision);
  const int64_t fit = kStackBytes / k.stack_bytes(job, 1);
  const int64_t tiles = fit < 1 ? batch : (batch + fit - 1) / fit, tile = (batch + tiles - 1) / tiles;
  thread_local ScratchMemory stack;
  job.stack = stack.get(static_cast<size_t>(k.stack_bytes(job, tile)));
  const double work = 1.0 * batch * channels * lmax * mmax * nlat;
  const int64_t helpers = work < kWorthAThread ? 0 : thread_limit(pool.num_threads()) - 1;
  for (job.sample = 0; job.sample < batch; job.sample += tile) {
    job.samples = batch - job.sample < tile ? batch - job.sample : tile;
    const auto bytes = static_cast<size_t>(k.scratch_bytes(job));
    const int64_t rows = job.samples * job.base.latitudes.padded;
    const auto run = [&](auto unit, int64_t count) {
      parallel_for(pool, helpers, count, [&](int64_t i) { unit(job, i, thread_scratch(bytes)); });
    };
    if (analysis) {
      run(k.analyse_rows, rows);
      run(k.analyse_order, mmax);
    } else {
      run(k.synthesise_order, mmax);
      run(k.synthesise_rows, rows);
    }
  }
  return ffi::Error::Success();
}

template <bool kAnalysis>
ffi::Error execute(ffi::ThreadPool pool, ffi::AnyBuffer input, ffi::AnyBuffer onto, ffi::Result<ffi::AnyBuffer> output,
                   Doubles cosine, Doubles sine, Doubles weights, Doubles degree_scale, Doubles order_scale,
                   int64_t lmax, int64_t mmax, int64_t nlon, int64_t csphase) {
  return transform(kAnalysis, pool, input, onto, *output, cosine, sine, weights, degree_scale, order_scale, lmax, mmax,
                   nlon, csphase);
}

template <Product kProduct>
ffi::Error multiply(ffi::ThreadPool pool, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::Result<ffi::AnyBuffer> output,
                    int64_t lmax, int64_t mmax) {
  const auto type = a.element_type();
  if (!is_real(type) || b.element_type() != type || output->element_type() != type) {
    return invalid("the product per degree takes arrays of one real type");
  }
  // u (modes, batch, 2, in), v (modes, batch, 2, out), W (out, in, lmax, 2)
  const auto u = (kProduct == Product::kMixTransposed ? *output : a).dimensions();
  const auto v = (kProduct == Product::kMix ? *output : kProduct == Product::kOuter ? b : a).dimensions();
  const auto w = (kProduct == Product::kOuter ? *output : b).dimensions();
  const int64_t modes = lmax < 1 || mmax < 1 ? -1 : mode_row(lmax, mmax);
  if (u.size() != 4 || v.size() != 4 || w.size() != 4 || u[0] != modes || v[0] != modes || u[1] != v[1] || u[2] != 2 ||
      v[2] != 2 || w[0] != v[3] || w[1] != u[3] || w[2] != lmax || w[3] != 2 || u[3] % kLanesOfAnyType != 0 ||
      v[3] % kLanesOfAnyType != 0) {
    return invalid("shapes of the product per degree disagree");
  }
  ProductJob job{};
  job.product = kProduct;
  job.a = a.untyped_data();
  job.b = b.untyped_data();
  job.output = output->untyped_data();
  job.batch = u[1];
  job.lmax = static_cast<int>(lmax);
  job.mmax = static_cast<int>(mmax);
  job.in = static_cast<int>(u[3]);
  job.out = static_cast<int>(v[3]);
  job.single_precision = type == ffi::DataType::F32;
  const PackedKernels& k = packed_kernels(job.single_precision);
  const auto bytes = static_cast<size_t>(k.product_scratch_bytes(job));
  const int64_t units = (lmax + kDegreesPerUnit - 1) / kDegreesPerUnit;
  const double work = 4.0 * modes * job.batch * job.in * job.out;
  const int64_t helpers = work < kWorthAThread ? 0 : thread_limit(pool.num_threads()) - 1;
  // High degrees, which have more orders, first.
  parallel_for(pool, helpers, units, [&](int64_t i) { k.product_unit(job, units - 1 - i, thread_scratch(bytes)); });
  return ffi::Error::Success();
}

auto transform_binding() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::ThreadPool>()
      .Arg<ffi::AnyBuffer>()
      .Arg<ffi::AnyBuffer>()
      .Ret<ffi::AnyBuffer>()
      .Attr<Doubles>("cos_colatitude")
      .Attr<Doubles>("sin_colatitude")
      .Attr<Doubles>("weights")
      .Attr<Doubles>("degree_scale")
      .Attr<Doubles>("order_scale")
      .Attr<int64_t>("lmax")
      .Attr<int64_t>("mmax")
      .Attr<int64_t>("nlon")
      .Attr<int64_t>("csphase");
}

auto product_binding() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::ThreadPool>()
      .Arg<ffi::AnyBuffer>()
      .Arg<ffi::AnyBuffer>()
      .Ret<ffi::AnyBuffer>()
      .Attr<int64_t>("lmax")
      .Attr<int64_t>("mmax");
}

XLA_FFI_DEFINE_HANDLER(packed_analysis, execute<true>, transform_binding());
XLA_FFI_DEFINE_HANDLER(packed_synthesis, execute<false>, transform_binding());
XLA_FFI_DEFINE_HANDLER(packed_mix, multiply<Product::kMix>, product_binding());
XLA_FFI_DEFINE_HANDLER(packed_mix_transposed, multiply<Product::kMixTransposed>, product_binding());
XLA_FFI_DEFINE_HANDLER(packed_outer, multiply<Product::kOuter>, product_binding());

}  // namespace

std::vector<NamedHandler> packed_handlers() {
  return {{"sfno_jax_packed_analysis", packed_analysis},
          {"sfno_jax_packed_synthesis", packed_synthesis},
          {"sfno_jax_packed_mix", packed_mix},
          {"sfno_jax_packed_mix_transposed", packed_mix_transposed},
          {"sfno_jax_packed_outer", packed_outer}};
}

}  // namespace sfno
