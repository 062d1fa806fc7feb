/* The runtime as one translation unit, for libweft and for exports. */
#include "core.h"

#include "text.c"

#include "processor.c"

#include "tensors.c"

#include "plan.c"

#include "formulas.c"

#include "segments.c"

#include "plans.c"

#include "program.c"
