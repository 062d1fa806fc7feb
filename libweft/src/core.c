/* The runtime as one translation unit, for libweft and for exports. */
#include "core.h"

#include "text.c"

#include "json.c"

#include "processor.c"

#include "tensors.c"

#include "manifest.c"

#include "segments.c"

#include "plans.c"

#include "program.c"
