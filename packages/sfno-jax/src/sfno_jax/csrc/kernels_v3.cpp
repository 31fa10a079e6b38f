#define SFNO_ISA v3
#define SFNO_VECTOR_BYTES 32
#include "kernels.h"
