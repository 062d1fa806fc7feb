"""The messages of Caffe2's networks: names and numbers of fields are those of caffe2.proto."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from weft_frontend.protos import messages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.message import Message

DESCRIPTION = """
Net: name 1 string; op 2 Operator*; type 3 string; num_workers 4 int32; device_option 5 Device; arg 6 Argument*;
    external_input 7 string*; external_output 8 string*

Operator: input 1 string*; output 2 string*; name 3 string; type 4 string; arg 5 Argument*; device_option 6 Device;
    engine 7 string; control_input 8 string*; is_gradient_op 9 bool; debug_info 10 string; domain 11 string

Argument: name 1 string; f 2 float; i 3 int64; s 4 bytes; floats 5 float*; ints 6 int64*; strings 7 bytes*; n 8 Net;
    nets 9 Net*; t 10 Tensor; tensors 11 Tensor*

Tensor: dims 1 int64*; data_type 2 int32; name 7 string

Device: device_type 1 int32; device_id 2 int32; random_seed 3 uint32; node_name 4 string
"""


@cache
def schema() -> Mapping[str, type[Message]]:
    """The classes of the messages."""
    return messages("weft_caffe2", DESCRIPTION)
