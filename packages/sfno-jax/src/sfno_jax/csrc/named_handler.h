// A handler under the name that it is registered with.
#pragma once

#include "xla/ffi/api/ffi.h"

namespace sfno {

struct NamedHandler {
  const char* name;
  XLA_FFI_Error* (*handler)(XLA_FFI_CallFrame*);
};

}  // namespace sfno
