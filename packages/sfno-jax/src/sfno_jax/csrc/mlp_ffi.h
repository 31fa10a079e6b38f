// The handlers of the pointwise network.
#pragma once

#include <vector>

#include "named_handler.h"

namespace sfno {

std::vector<NamedHandler> mlp_handlers();

}  // namespace sfno
