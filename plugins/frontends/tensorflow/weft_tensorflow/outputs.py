"""The outputs of operators that have several: their names, as functions use them, and the attribute that says how many
there are of each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

OUTPUTS: Mapping[str, tuple[tuple[str, str], ...]] = MappingProxyType(
    {
        "BlockLSTM": (
            ("i", ""),
            ("cs", ""),
            ("f", ""),
            ("o", ""),
            ("ci", ""),
            ("co", ""),
            ("h", ""),
        ),
        "BlockLSTMV2": (
            ("i", ""),
            ("cs", ""),
            ("f", ""),
            ("o", ""),
            ("ci", ""),
            ("co", ""),
            ("h", ""),
        ),
        "BroadcastGradientArgs": (
            ("r0", ""),
            ("r1", ""),
        ),
        "CTCGreedyDecoder": (
            ("decoded_indices", ""),
            ("decoded_values", ""),
            ("decoded_shape", ""),
            ("log_probability", ""),
        ),
        "Case": (("output", "Tout"),),
        "CombinedNonMaxSuppression": (
            ("nmsed_boxes", ""),
            ("nmsed_scores", ""),
            ("nmsed_classes", ""),
            ("valid_detections", ""),
        ),
        "ConcatOffset": (("offset", "N"),),
        "CudnnRNN": (
            ("output", ""),
            ("output_h", ""),
            ("output_c", ""),
            ("reserve_space", ""),
        ),
        "CudnnRNNV2": (
            ("output", ""),
            ("output_h", ""),
            ("output_c", ""),
            ("reserve_space", ""),
            ("host_reserved", ""),
        ),
        "CudnnRNNV3": (
            ("output", ""),
            ("output_h", ""),
            ("output_c", ""),
            ("reserve_space", ""),
            ("host_reserved", ""),
        ),
        "DenseToDenseSetOperation": (
            ("result_indices", ""),
            ("result_values", ""),
            ("result_shape", ""),
        ),
        "DynamicPartition": (("outputs", "num_partitions"),),
        "FractionalAvgPool": (
            ("output", ""),
            ("row_pooling_sequence", ""),
            ("col_pooling_sequence", ""),
        ),
        "FusedBatchNorm": (
            ("y", ""),
            ("batch_mean", ""),
            ("batch_variance", ""),
            ("reserve_space_1", ""),
            ("reserve_space_2", ""),
        ),
        "FusedBatchNormV2": (
            ("y", ""),
            ("batch_mean", ""),
            ("batch_variance", ""),
            ("reserve_space_1", ""),
            ("reserve_space_2", ""),
        ),
        "FusedBatchNormV3": (
            ("y", ""),
            ("batch_mean", ""),
            ("batch_variance", ""),
            ("reserve_space_1", ""),
            ("reserve_space_2", ""),
            ("reserve_space_3", ""),
        ),
        "GRUBlockCell": (
            ("r", ""),
            ("u", ""),
            ("c", ""),
            ("h", ""),
        ),
        "IdentityN": (("output", "T"),),
        "If": (("output", "Tout"),),
        "LSTMBlockCell": (
            ("i", ""),
            ("cs", ""),
            ("f", ""),
            ("o", ""),
            ("ci", ""),
            ("co", ""),
            ("h", ""),
        ),
        "ListDiff": (
            ("out", ""),
            ("idx", ""),
        ),
        "LogMatrixDeterminant": (
            ("sign", ""),
            ("log_abs_determinant", ""),
        ),
        "LookupTableExportV2": (
            ("keys", ""),
            ("values", ""),
        ),
        "Lu": (
            ("lu", ""),
            ("p", ""),
        ),
        "MaxPoolWithArgmax": (
            ("output", ""),
            ("argmax", ""),
        ),
        "Merge": (
            ("output", ""),
            ("value_index", ""),
        ),
        "NonMaxSuppressionV4": (
            ("selected_indices", ""),
            ("valid_outputs", ""),
        ),
        "NonMaxSuppressionV5": (
            ("selected_indices", ""),
            ("selected_scores", ""),
            ("valid_outputs", ""),
        ),
        "PartitionedCall": (("output", "Tout"),),
        "Qr": (
            ("q", ""),
            ("r", ""),
        ),
        "QuantizeV2": (
            ("output", ""),
            ("output_min", ""),
            ("output_max", ""),
        ),
        "RaggedGather": (
            ("output_nested_splits", "OUTPUT_RAGGED_RANK"),
            ("output_dense_values", ""),
        ),
        "RaggedRange": (
            ("rt_nested_splits", ""),
            ("rt_dense_values", ""),
        ),
        "RaggedTensorToSparse": (
            ("sparse_indices", ""),
            ("sparse_values", ""),
            ("sparse_dense_shape", ""),
        ),
        "RefMerge": (
            ("output", ""),
            ("value_index", ""),
        ),
        "RefSwitch": (
            ("output_false", ""),
            ("output_true", ""),
        ),
        "Requantize": (
            ("output", ""),
            ("output_min", ""),
            ("output_max", ""),
        ),
        "RestoreV2": (("tensors", "dtypes"),),
        "SelfAdjointEigV2": (
            ("e", ""),
            ("v", ""),
        ),
        "ShapeN": (("output", "N"),),
        "SoftmaxCrossEntropyWithLogits": (
            ("loss", ""),
            ("backprop", ""),
        ),
        "SparseFillEmptyRows": (
            ("output_indices", ""),
            ("output_values", ""),
            ("empty_row_indicator", ""),
            ("reverse_index_map", ""),
        ),
        "SparseReshape": (
            ("output_indices", ""),
            ("output_shape", ""),
        ),
        "SparseSoftmaxCrossEntropyWithLogits": (
            ("loss", ""),
            ("backprop", ""),
        ),
        "Split": (("output", "num_split"),),
        "SplitV": (("output", "num_split"),),
        "StatefulPartitionedCall": (("output", "Tout"),),
        "StatelessCase": (("output", "Tout"),),
        "StatelessIf": (("output", "Tout"),),
        "StatelessWhile": (("output", "T"),),
        "StringSplitV2": (
            ("indices", ""),
            ("values", ""),
            ("shape", ""),
        ),
        "Svd": (
            ("s", ""),
            ("u", ""),
            ("v", ""),
        ),
        "Switch": (
            ("output_false", ""),
            ("output_true", ""),
        ),
        "TensorArrayConcatV3": (
            ("value", ""),
            ("lengths", ""),
        ),
        "TensorArrayV3": (
            ("handle", ""),
            ("flow", ""),
        ),
        "TensorListConcat": (
            ("tensor", ""),
            ("lengths", ""),
        ),
        "TensorListConcatV2": (
            ("tensor", ""),
            ("lengths", ""),
        ),
        "TensorListPopBack": (
            ("output_handle", ""),
            ("tensor", ""),
        ),
        "TopK": (
            ("values", ""),
            ("indices", ""),
        ),
        "TopKV2": (
            ("values", ""),
            ("indices", ""),
        ),
        "Unique": (
            ("y", ""),
            ("idx", ""),
        ),
        "UniqueV2": (
            ("y", ""),
            ("idx", ""),
        ),
        "UniqueWithCounts": (
            ("y", ""),
            ("idx", ""),
            ("count", ""),
        ),
        "Unpack": (("output", "num"),),
        "While": (("output", "T"),),
        "_FusedBatchNormEx": (
            ("y", ""),
            ("batch_mean", ""),
            ("batch_variance", ""),
            ("reserve_space_1", ""),
            ("reserve_space_2", ""),
            ("reserve_space_3", ""),
        ),
    }
)
"""By operator; those that are not here have one output."""
REFERENCES = frozenset(
    {
        "Assign",
        "AssignAdd",
        "AssignSub",
        "IsVariableInitialized",
        "RefIdentity",
        "ScatterUpdate",
        "ScatterAdd",
        "SaveV2",
    }
)
"""Operators whose operands are variables of the first version, not their values."""

__all__ = ["OUTPUTS", "REFERENCES"]
