#include "weft_linked.h"

weft_library weft_linked(void) {
  const weft_library functions = {weft_api_version, weft_open, weft_open_memory, weft_close, weft_describe,
                                  weft_input, weft_output, weft_run, weft_release};
  return functions;
}
