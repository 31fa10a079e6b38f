#define SFNO_ISA v4
#define SFNO_VECTOR_BYTES 64
#include "kernels.h"
