// Chooses the kernels for the processor at hand.
#pragma once

#include "job.h"

namespace sfno {

// The widest instruction set that the processor has; the environment variable SFNO_JAX_ISA (v2, v3
// or v4, read once) may ask for a narrower one.
const Kernels& kernels();

}  // namespace sfno
