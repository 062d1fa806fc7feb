#include "weft_library.h"
