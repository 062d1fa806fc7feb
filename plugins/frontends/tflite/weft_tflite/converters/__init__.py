"""The converters, by family; importing this package registers them."""

from weft_tflite.converters import complex_numbers as complex_numbers
from weft_tflite.converters import control as control
from weft_tflite.converters import elementwise as elementwise
from weft_tflite.converters import indexing as indexing
from weft_tflite.converters import movement as movement
from weft_tflite.converters import network as network
from weft_tflite.converters import quantized as quantized
from weft_tflite.converters import quantized_more as quantized_more
from weft_tflite.converters import reduction as reduction
from weft_tflite.converters import shapes as shapes
from weft_tflite.converters import state as state
from weft_tflite.converters import tables as tables
