// The pointwise network y = W2 gelu(W1 x + b1) + r of fields (batch, channels, points), and its gradients.
//
// Both work on tiles of points whose hidden values stay in the cache and are never written out: the gradients compute
// them again. With a = W1 x + b1, h = gelu(a) and the cotangent g of y,
//     dh = W2^T g,  da = gelu'(a) dh,  dx = W1^T da,  dW1 = da x^T,  db1 = sum da,  dW2 = g h^T.
#pragma once

#include <cstdint>

namespace sfno {

struct MlpJob {
  const float *x, *w1, *b1, *w2;
  const float* residual;   // r, or null; may be y's memory
  const float* cotangent;  // null: compute y, else the gradients
  float* output;           // y, or dx
  float* partial;          // [unit][dW1, db1, dW2^T]: sums over the unit's points
  int64_t batch, points;
  int in, hidden, out;
  int64_t units;  // runs of tiles, the same for any number of threads
};

struct MlpKernels {
  int64_t (*tiles)(const MlpJob&);
  int64_t (*scratch_bytes)(const MlpJob&);
  void (*unit)(const MlpJob&, int64_t unit, void* scratch);
};

}  // namespace sfno
