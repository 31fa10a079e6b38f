// The handlers of the packed transforms and products.
#pragma once

#include <vector>

#include "named_handler.h"

namespace sfno {

std::vector<NamedHandler> packed_handlers();

}  // namespace sfno
