// The handlers of the packed transforms and products.
#pragma once

#include <vector>

#include "xla/ffi/api/ffi.h"

namespace sfno {

struct NamedHandler {
  const char* name;
  XLA_FFI_Error* (*handler)(XLA_FFI_CallFrame*);
};

std::vector<NamedHandler> packed_handlers();

}  // namespace sfno
