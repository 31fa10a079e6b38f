#define SFNO_ISA v2
#define SFNO_VECTOR_BYTES 16
#include "kernels.h"
