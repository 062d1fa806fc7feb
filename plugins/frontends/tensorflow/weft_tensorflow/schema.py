"""TensorFlow's protocol buffers, as far as a model needs them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from weft_frontend.protos import messages

if TYPE_CHECKING:
    from google.protobuf.message import Message

_MESSAGES = """
SavedModel: saved_model_schema_version 1 int64; meta_graphs 2 MetaGraphDef*

MetaGraphDef: meta_info_def 1 MetaInfo; graph_def 2 GraphDef; saver_def 3 SaverDef;
    collection_def 4 CollectionEntry*; signature_def 5 SignatureEntry*; asset_file_def 6 AssetFile*

CollectionEntry: key 1 string; value 2 CollectionDef

CollectionDef: node_list 1 NodeList

NodeList: value 1 string*

AssetFile: tensor_info 1 TensorInfo; filename 2 string

MetaInfo: tags 4 string*; tensorflow_version 5 string

SaverDef: filename_tensor_name 1 string; restore_op_name 3 string

SignatureEntry: key 1 string; value 2 SignatureDef

SignatureDef: inputs 1 TensorInfoEntry*; outputs 2 TensorInfoEntry*; method_name 3 string

TensorInfoEntry: key 1 string; value 2 TensorInfo

TensorInfo: name 1 string; dtype 2 int32; tensor_shape 3 TensorShape

TensorShape: dim 2 Dim*; unknown_rank 3 bool

Dim: size 1 int64; name 2 string

GraphDef: node 1 NodeDef*; library 2 FunctionLibrary; version 3 int32; versions 4 Versions

Versions: producer 1 int32; min_consumer 2 int32

NodeDef: name 1 string; op 2 string; input 3 string*; device 4 string; attr 5 AttrEntry*

AttrEntry: key 1 string; value 2 AttrValue

AttrValue: list 1 ListValue; s 2 bytes; i 3 int64; f 4 float; b 5 bool; type 6 int32; shape 7 TensorShape;
    tensor 8 TensorProto; func 10 NameAttrList; placeholder 9 string

ListValue: s 2 bytes*; i 3 int64*; f 4 float*; b 5 bool*; type 6 int32*; shape 7 TensorShape*; tensor 8 TensorProto*;
    func 9 NameAttrList*

NameAttrList: name 1 string; attr 2 AttrEntry*

TensorProto: dtype 1 int32; tensor_shape 2 TensorShape; tensor_content 4 bytes; float_val 5 float* [packed];
    double_val 6 double* [packed]; int_val 7 int32* [packed]; string_val 8 bytes*; int64_val 10 int64* [packed];
    bool_val 11 bool* [packed]; half_val 13 int32* [packed]; uint32_val 16 uint32* [packed];
    uint64_val 17 uint64* [packed]

FunctionLibrary: function 1 FunctionDef*

FunctionDef: signature 1 OpDef; node_def 3 NodeDef*; ret 4 NameEntry*; attr 5 AttrEntry*; control_ret 6 NameEntry*

NameEntry: key 1 string; value 2 string

OpDef: name 1 string; input_arg 2 ArgDef*; output_arg 3 ArgDef*

ArgDef: name 1 string; type 3 int32

BundleHeader: num_shards 1 int32; endianness 2 int32; version 3 Versions

BundleEntry: dtype 1 int32; shape 2 TensorShape; shard_id 3 int32; offset 4 int64; size 5 int64; crc32c 6 fixed32;
    slices 7 Slice*

Slice: extent 1 Extent*

Extent: start 1 int64; length 2 int64
"""


@cache
def schema() -> Mapping[str, type[Message]]:
    """TensorFlow's messages, by name."""
    return messages("weft_tensorflow", _MESSAGES)


__all__ = ["schema"]
