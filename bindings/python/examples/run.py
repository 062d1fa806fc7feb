"""Runs a model with one float32 input and one float32 output of two dimensions on rows from a file.

python run.py LIBRARY ARCHIVE|- INPUT OUTPUT

LIBRARY is libweft, and ARCHIVE a file of `weft compile`; or LIBRARY is a file of `weft export`, and ARCHIVE is "-".
INPUT and OUTPUT hold the numbers, row by row, and nothing else.
"""

import sys

import numpy as np
import weft_native

library, archive, source, result = sys.argv[1:]
try:
    program = weft_native.load(library, None if archive == "-" else archive)
    rows = np.fromfile(source, np.float32).reshape(-1, program.inputs[0].shape[1])
    program(rows).tofile(result)
except weft_native.WeftError as error:
    sys.exit(str(error))
