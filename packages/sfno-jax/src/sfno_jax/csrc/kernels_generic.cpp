#define SFNO_ISA generic
#define SFNO_VECTOR_BYTES 16
#include "kernels.h"
