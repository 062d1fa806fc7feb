/* The functions of weft.h that a program is linked with. */
#ifndef WEFT_LINKED_H
#define WEFT_LINKED_H

#include "weft_library.h"

weft_library weft_linked(void);

#endif
