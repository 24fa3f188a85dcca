// What the interposed functions share.
#pragma once

#include "runtime.h"

namespace guanaco {

// Null without a plan in force.
Runtime* active_runtime();
// The engine's own function of this name: found in the library that called us, and not `own`; else the next library's.
void* engine_function(const void* caller, const char* name, const void* own);

}  // namespace guanaco
