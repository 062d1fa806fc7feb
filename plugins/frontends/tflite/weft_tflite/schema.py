"""The names and numbers of the TFLite schema (version 3c): operators, element types, tables of options.

A test compares them with the schema that LiteRT carries.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

_BUILTINS = """
ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE EMBEDDING_LOOKUP FLOOR
FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D LOCAL_RESPONSE_NORMALIZATION LOGISTIC LSH_PROJECTION LSTM
MAX_POOL_2D MUL RELU RELU_N1_TO_1 RELU6 RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH SVDF TANH CONCAT_EMBEDDINGS
SKIP_GRAM CALL CUSTOM EMBEDDING_LOOKUP_SPARSE PAD UNIDIRECTIONAL_SEQUENCE_RNN GATHER BATCH_TO_SPACE_ND
SPACE_TO_BATCH_ND TRANSPOSE MEAN SUB DIV SQUEEZE UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE BIDIRECTIONAL_SEQUENCE_RNN
EXP TOPK_V2 SPLIT LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST PRELU MAXIMUM ARG_MAX MINIMUM LESS NEG PADV2
GREATER GREATER_EQUAL LESS_EQUAL SELECT SLICE SIN TRANSPOSE_CONV SPARSE_TO_DENSE TILE EXPAND_DIMS EQUAL NOT_EQUAL LOG
SUM SQRT RSQRT SHAPE POW ARG_MIN FAKE_QUANT REDUCE_PROD REDUCE_MAX PACK LOGICAL_OR ONE_HOT LOGICAL_AND LOGICAL_NOT
UNPACK REDUCE_MIN FLOOR_DIV REDUCE_ANY SQUARE ZEROS_LIKE FILL FLOOR_MOD RANGE RESIZE_NEAREST_NEIGHBOR LEAKY_RELU
SQUARED_DIFFERENCE MIRROR_PAD ABS SPLIT_V UNIQUE CEIL REVERSE_V2 ADD_N GATHER_ND COS WHERE RANK ELU REVERSE_SEQUENCE
MATRIX_DIAG QUANTIZE MATRIX_SET_DIAG ROUND HARD_SWISH IF WHILE NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5
SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM BATCH_MATMUL PLACEHOLDER_FOR_GREATER_OP_CODES CUMSUM CALL_ONCE BROADCAST_TO
RFFT2D CONV_3D IMAG REAL COMPLEX_ABS HASHTABLE HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL
CONV_3D_TRANSPOSE VAR_HANDLE READ_VARIABLE ASSIGN_VARIABLE BROADCAST_ARGS RANDOM_STANDARD_NORMAL BUCKETIZE
RANDOM_UNIFORM MULTINOMIAL GELU DYNAMIC_UPDATE_SLICE RELU_0_TO_1 UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX
UNSORTED_SEGMENT_SUM ATAN2 UNSORTED_SEGMENT_MIN SIGN BITCAST BITWISE_XOR RIGHT_SHIFT STABLEHLO_LOGISTIC STABLEHLO_ADD
STABLEHLO_DIVIDE STABLEHLO_MULTIPLY STABLEHLO_MAXIMUM STABLEHLO_RESHAPE STABLEHLO_CLAMP STABLEHLO_CONCATENATE
STABLEHLO_BROADCAST_IN_DIM STABLEHLO_CONVOLUTION STABLEHLO_SLICE STABLEHLO_CUSTOM_CALL STABLEHLO_REDUCE STABLEHLO_ABS
STABLEHLO_AND STABLEHLO_COSINE STABLEHLO_EXPONENTIAL STABLEHLO_FLOOR STABLEHLO_LOG STABLEHLO_MINIMUM STABLEHLO_NEGATE
STABLEHLO_OR STABLEHLO_POWER STABLEHLO_REMAINDER STABLEHLO_RSQRT STABLEHLO_SELECT STABLEHLO_SUBTRACT STABLEHLO_TANH
STABLEHLO_SCATTER STABLEHLO_COMPARE STABLEHLO_CONVERT STABLEHLO_DYNAMIC_SLICE STABLEHLO_DYNAMIC_UPDATE_SLICE
STABLEHLO_PAD STABLEHLO_IOTA STABLEHLO_DOT_GENERAL STABLEHLO_REDUCE_WINDOW STABLEHLO_SORT STABLEHLO_WHILE
STABLEHLO_GATHER STABLEHLO_TRANSPOSE DILATE STABLEHLO_RNG_BIT_GENERATOR REDUCE_WINDOW STABLEHLO_COMPOSITE
STABLEHLO_SHIFT_LEFT STABLEHLO_CBRT STABLEHLO_CASE
"""
BUILTINS: tuple[str, ...] = tuple(_BUILTINS.split())
"""BuiltinOperator, by number."""

_TYPES = """
FLOAT32 FLOAT16 INT32 UINT8 INT64 STRING BOOL INT16 COMPLEX64 INT8 FLOAT64 COMPLEX128 UINT64 RESOURCE VARIANT UINT32
UINT16 INT4 BFLOAT16 INT2 UINT4 FLOAT8_E4M3FN FLOAT8_E5M2
"""
TYPES: tuple[str, ...] = tuple(_TYPES.split())
"""TensorType, by number."""

_OPTIONS = """
Conv2D padding:b stride_w:i stride_h:i fused_activation_function:b dilation_w_factor:i=1 dilation_h_factor:i=1
  quantized_bias_type:b
DepthwiseConv2D padding:b stride_w:i stride_h:i depth_multiplier:i fused_activation_function:b dilation_w_factor:i=1
  dilation_h_factor:i=1
ConcatEmbeddings num_channels:i num_columns_per_channel:[i embedding_dim_per_channel:[i
LSHProjection type:b
Pool2D padding:b stride_w:i stride_h:i filter_width:i filter_height:i fused_activation_function:b
SVDF rank:i fused_activation_function:b asymmetric_quantize_inputs:?
RNN fused_activation_function:b asymmetric_quantize_inputs:?
FullyConnected fused_activation_function:b weights_format:b keep_num_dims:? asymmetric_quantize_inputs:?
  quantized_bias_type:b quant_spec:[B
Softmax beta:f
Concatenation axis:i fused_activation_function:b
Add fused_activation_function:b pot_scale_int16:?=1
L2Norm fused_activation_function:b
LocalResponseNormalization radius:i bias:f alpha:f beta:f
LSTM fused_activation_function:b cell_clip:f proj_clip:f kernel_type:b asymmetric_quantize_inputs:?
ResizeBilinear -:- -:- align_corners:? half_pixel_centers:?
Call subgraph:I
Reshape new_shape:[i
SkipGram ngram_size:i max_skip_size:i include_all_ngrams:?
SpaceToDepth block_size:i
EmbeddingLookupSparse combiner:b
Mul fused_activation_function:b
Pad
Gather axis:i batch_dims:i
BatchToSpaceND
SpaceToBatchND
Transpose
Reducer keep_dims:?
Sub fused_activation_function:b pot_scale_int16:?=1
Div fused_activation_function:b
Squeeze squeeze_dims:[i
SequenceRNN time_major:? fused_activation_function:b asymmetric_quantize_inputs:?
StridedSlice begin_mask:i end_mask:i ellipsis_mask:i new_axis_mask:i shrink_axis_mask:i offset:?
Exp
TopKV2
Split num_splits:i
LogSoftmax
Cast in_data_type:b out_data_type:b
Dequantize
MaximumMinimum
ArgMax output_type:b
Less
Neg
PadV2
Greater
GreaterEqual
LessEqual
Select
Slice
TransposeConv padding:b stride_w:i stride_h:i fused_activation_function:b quantized_bias_type:b
SparseToDense validate_indices:?
Tile
ExpandDims
Equal
NotEqual
Shape out_type:b
Pow
ArgMin output_type:b
FakeQuant min:f max:f num_bits:i narrow_range:?
Pack values_count:i axis:i
LogicalOr
OneHot axis:i
LogicalAnd
LogicalNot
Unpack num:i axis:i
FloorDiv
Square
ZerosLike
Fill
BidirectionalSequenceLSTM fused_activation_function:b cell_clip:f proj_clip:f merge_outputs:? time_major:?=1
  asymmetric_quantize_inputs:?
BidirectionalSequenceRNN time_major:? fused_activation_function:b merge_outputs:? asymmetric_quantize_inputs:?
UnidirectionalSequenceLSTM fused_activation_function:b cell_clip:f proj_clip:f time_major:?
  asymmetric_quantize_inputs:? diagonal_recurrent_tensors:?
FloorMod
Range
ResizeNearestNeighbor align_corners:? half_pixel_centers:?
LeakyRelu alpha:f
SquaredDifference
MirrorPad mode:b
Abs
SplitV num_splits:i
Unique idx_out_type:b=2
ReverseV2
AddN
GatherNd
Cos
Where
Rank
ReverseSequence seq_dim:i batch_dim:i
MatrixDiag
Quantize
MatrixSetDiag
HardSwish
If then_subgraph_index:i else_subgraph_index:i
While cond_subgraph_index:i body_subgraph_index:i
DepthToSpace block_size:i
NonMaxSuppressionV4
NonMaxSuppressionV5
ScatterNd
SelectV2
Densify
SegmentSum
BatchMatMul adj_x:? adj_y:? asymmetric_quantize_inputs:?
Cumsum exclusive:? reverse:?
CallOnce init_subgraph_index:i
BroadcastTo
Rfft2d
Conv3D padding:b stride_d:i stride_w:i stride_h:i fused_activation_function:b dilation_d_factor:i=1
  dilation_w_factor:i=1 dilation_h_factor:i=1
Hashtable table_id:i key_dtype:b value_dtype:b
HashtableFind
HashtableImport
HashtableSize
VarHandle container:s shared_name:s
ReadVariable
AssignVariable
Random seed:q seed2:q
Bucketize boundaries:[f
Gelu approximate:?
DynamicUpdateSlice
UnsortedSegmentProd
UnsortedSegmentMax
UnsortedSegmentMin
UnsortedSegmentSum
ATan2
Sign
Bitcast
BitwiseXor
RightShift
"""
_OPTIONS_2 = """
StablehloConcatenate dimension:q
StablehloBroadcastInDim broadcast_dimensions:[q
StablehloSlice start_indices:[q limit_indices:[q strides:[q
StablehloConvolution window_strides:[q padding:[q lhs_dilation:[q rhs_dilation:[q window_reversal:[?
  input_batch_dimension:q input_feature_dimension:q input_spatial_dimensions:[q kernel_input_feature_dimension:q
  kernel_output_feature_dimension:q kernel_spatial_dimensions:[q output_batch_dimension:q output_feature_dimension:q
  output_spatial_dimensions:[q feature_group_count:q batch_group_count:q precision_config:[I
StablehloCustomCall call_target_name:s has_side_effect:? backend_config:s api_version:i called_computations:[i
  custom_attributes:[B
StablehloReduce dimensions:[q body_subgraph_index:i
StablehloScatter indices_are_sorted:? update_window_dims:[q inserted_window_dims:[q scatter_dims_to_operand_dims:[q
  index_vector_dim:q unique_indices:? update_computation_subgraph_index:i
StablehloCompare comparison_direction:I compare_type:I
StablehloDynamicSlice slice_sizes:[q
StablehloPad edge_padding_low:[q edge_padding_high:[q interior_padding:[q
StablehloIota iota_dimension:q
StablehloDotGeneral lhs_batching_dimensions:[q rhs_batching_dimensions:[q lhs_contracting_dimensions:[q
  rhs_contracting_dimensions:[q precision_config:[I
StablehloReduceWindow window_dimensions:[q window_strides:[q base_dilations:[q window_dilations:[q padding:[q
  body_subgraph_index:i
StablehloSort dimension:q is_stable:? comparator_subgraph_index:i
StablehloWhile cond_subgraph_index:i body_subgraph_index:i
StablehloGather offset_dims:[q collapsed_slice_dims:[q start_index_map:[q index_vector_dim:q slice_sizes:[q
  indices_are_sorted:?
StablehloTranspose permutation:[q
Dilate
StablehloRngBitGenerator algorithm:b
ReduceWindow reduce_function:i
StableHLOComposite name:s decomposition_subgraph_index:i composite_attributes:[B composite_attributes_format:b
  version:i
StablehloShiftLeft
StablehloCase branch_subgraph_indices:[i
"""
# A table a line: its name, then its fields in order of slots, with the letter of `struct` for their type ("s": a
# string, "[i": a vector) and a default that is not 0. "-" is not read.


Layout = tuple[tuple[str, str, Any], ...]
"""Of each slot of a table the name, the type and the default."""


def _field(text: str) -> tuple[str, str, Any]:
    name, _, rest = text.partition(":")
    form, _, default = rest.partition("=")
    nothing: Any = "" if form == "s" else () if form.startswith("[") else 0
    return name, form, int(default) if default else nothing


def _tables(text: str) -> tuple[tuple[str, Layout], ...]:
    lines = text.strip().replace("\n  ", " ").splitlines()
    return tuple((line.split()[0], tuple(map(_field, line.split()[1:]))) for line in lines)


OPTIONS: tuple[tuple[str, Layout], ...] = (("", ()), *_tables(_OPTIONS))
"""BuiltinOptions, by number: the name without "Options", and the fields."""
OPTIONS_2: tuple[tuple[str, Layout], ...] = (("", ()), *_tables(_OPTIONS_2))
"""BuiltinOptions2, by number."""
LAYOUTS = MappingProxyType(dict((*OPTIONS, *OPTIONS_2)))
"""The fields of a table of options, by its name."""

_OTHER_NAMES = {
    "AVERAGE_POOL_2D": "Pool2D", "MAX_POOL_2D": "Pool2D", "L2_POOL_2D": "Pool2D", "MEAN": "Reducer", "SUM": "Reducer",
    "REDUCE_PROD": "Reducer", "REDUCE_MAX": "Reducer", "REDUCE_MIN": "Reducer", "REDUCE_ANY": "Reducer",
    "REDUCE_ALL": "Reducer", "MAXIMUM": "MaximumMinimum", "MINIMUM": "MaximumMinimum",
    "UNIDIRECTIONAL_SEQUENCE_RNN": "SequenceRNN", "RANDOM_UNIFORM": "Random", "RANDOM_STANDARD_NORMAL": "Random",
    "MULTINOMIAL": "Random", "CONV_3D_TRANSPOSE": "Conv3D", "L2_NORMALIZATION": "L2Norm",
}  # fmt: skip
_BY_LETTERS = {name.lower(): name for name in LAYOUTS}


def options_of(operator: str) -> str:
    """The name of the table of options that an operator has; "" if it has none."""
    return _OTHER_NAMES.get(operator) or _BY_LETTERS.get(operator.replace("_", "").lower(), "")


__all__ = ["BUILTINS", "LAYOUTS", "OPTIONS", "OPTIONS_2", "TYPES", "Layout", "options_of"]
