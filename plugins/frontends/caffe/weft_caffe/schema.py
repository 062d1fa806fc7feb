"""The messages of Caffe's networks, as far as they are read: names and numbers of fields are those of caffe.proto (BVLC
1.0, with the layers of SSD and of later versions).

Parameters of training are described, so that a text that has them parses; the reader ignores them.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from weft_frontend.protos import messages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.message import Message

# The numbers of a blob are packed: on the wire they are bytes.
DESCRIPTION = """
BlobShape: dim 1 int64* [packed]

Blob: num 1 int32 =0; channels 2 int32 =0; height 3 int32 =0; width 4 int32 =0; data 5 bytes*; diff 6 bytes*; shape 7 BlobShape;
    double_data 8 bytes*; double_diff 9 bytes*

Numbers: data 5 float*; double_data 8 double*

Net: name 1 string; layers 2 V1Layer*; input 3 string*; input_dim 4 int32*; force_backward 5 bool; state 6 NetState;
    debug_info 7 bool; input_shape 8 BlobShape*; layer 100 Layer*

Phase = TRAIN 0, TEST 1

NetState: phase 1 Phase =TEST; level 2 int32 =0; stage 3 string*

Rule: phase 1 Phase; min_level 2 int32; max_level 3 int32; stage 4 string*; not_stage 5 string*

ShareMode = STRICT 0, PERMISSIVE 1

Param: name 1 string; share_mode 2 ShareMode; lr_mult 3 float; decay_mult 4 float

VarianceNorm = FAN_IN 0, FAN_OUT 1, AVERAGE 2

Filler: type 1 string; value 2 float =0; min 3 float; max 4 float; mean 5 float; std 6 float; sparse 7 int32; variance_norm 8 VarianceNorm

Layer: name 1 string; type 2 string; bottom 3 string*; top 4 string*; loss_weight 5 float*; param 6 Param*; blobs 7 Blob*;
    include 8 Rule*; exclude 9 Rule*; phase 10 Phase; propagate_down 11 bool*; transform_param 100 Transformation;
    loss_param 101 Loss; accuracy_param 102 Accuracy; argmax_param 103 ArgMax; concat_param 104 Concat;
    contrastive_loss_param 105 Ignored; convolution_param 106 Convolution; data_param 107 Data; dropout_param 108 Dropout;
    dummy_data_param 109 DummyData; eltwise_param 110 Eltwise; exp_param 111 Exponential; hdf5_data_param 112 Hdf5Data;
    hdf5_output_param 113 Ignored; hinge_loss_param 114 Ignored; image_data_param 115 ImageData; infogain_loss_param 116 Ignored;
    inner_product_param 117 InnerProduct; lrn_param 118 Lrn; memory_data_param 119 MemoryData; mvn_param 120 Mvn;
    pooling_param 121 Pooling; power_param 122 Power; relu_param 123 Relu; sigmoid_param 124 OfEngine; softmax_param 125 Softmax;
    slice_param 126 Slice; tanh_param 127 OfEngine; threshold_param 128 Threshold; window_data_param 129 Ignored;
    python_param 130 Python; prelu_param 131 Prelu; spp_param 132 Ignored; reshape_param 133 Reshape; log_param 134 Exponential;
    flatten_param 135 Flatten; reduction_param 136 Reduction; embed_param 137 Embed; tile_param 138 Tile;
    batch_norm_param 139 BatchNorm; elu_param 140 Elu; bias_param 141 Bias; scale_param 142 Scale; input_param 143 Input;
    crop_param 144 Crop; parameter_param 145 Parameter; recurrent_param 146 Recurrent; swish_param 147 Swish; clip_param 148 Clip;
    annotated_data_param 200 Ignored; multibox_loss_param 201 Ignored; permute_param 202 Permute; prior_box_param 203 PriorBox;
    detection_output_param 204 DetectionOutput; detection_evaluate_param 205 Ignored; norm_param 206 Normalize

Ignored:

Engine = DEFAULT 0, CAFFE 1, CUDNN 2

OfEngine: engine 1 Engine

Transformation: scale 1 float; mirror 2 bool; crop_size 3 uint32; mean_file 4 string; mean_value 5 float*; force_color 6 bool; force_gray 7 bool

Normalization = FULL 0, VALID 1, BATCH_SIZE 2, NONE 3

Loss: ignore_label 1 int32; normalize 2 bool; normalization 3 Normalization

Accuracy: top_k 1 uint32; axis 2 int32; ignore_label 3 int32

ArgMax: out_max_val 1 bool =false; top_k 2 uint32 =1; axis 3 int32

Concat: concat_dim 1 uint32 =1; axis 2 int32 =1

BatchNorm: use_global_stats 1 bool; moving_average_fraction 2 float; eps 3 float =1e-5

Bias: axis 1 int32 =1; num_axes 2 int32 =1; filler 3 Filler

Clip: min 1 float; max 2 float

Convolution: num_output 1 uint32; bias_term 2 bool =true; pad 3 uint32*; kernel_size 4 uint32*; group 5 uint32 =1; stride 6 uint32*;
    weight_filler 7 Filler; bias_filler 8 Filler; pad_h 9 uint32 =0; pad_w 10 uint32 =0; kernel_h 11 uint32; kernel_w 12 uint32;
    stride_h 13 uint32; stride_w 14 uint32; engine 15 Engine; axis 16 int32 =1; force_nd_im2col 17 bool; dilation 18 uint32*

Crop: axis 1 int32 =2; offset 2 uint32*

Backend = LEVELDB 0, LMDB 1

Data: source 1 string; scale 2 float; mean_file 3 string; batch_size 4 uint32; crop_size 5 uint32; mirror 6 bool; rand_skip 7 uint32;
    backend 8 Backend; force_encoded_color 9 bool; prefetch 10 uint32

DummyData: data_filler 1 Filler*; num 2 uint32*; channels 3 uint32*; height 4 uint32*; width 5 uint32*; shape 6 BlobShape*

Dropout: dropout_ratio 1 float; scale_train 2 bool =true

EltwiseOp = PROD 0, SUM 1, MAX 2

Eltwise: operation 1 EltwiseOp =SUM; coeff 2 float*; stable_prod_grad 3 bool

Elu: alpha 1 float =1

Embed: num_output 1 uint32; input_dim 2 uint32; bias_term 3 bool =true; weight_filler 4 Filler; bias_filler 5 Filler

Exponential: base 1 float =-1; scale 2 float =1; shift 3 float =0

Flatten: axis 1 int32 =1; end_axis 2 int32 =-1

Hdf5Data: source 1 string; batch_size 2 uint32; shuffle 3 bool

ImageData: source 1 string; scale 2 float; mean_file 3 string; batch_size 4 uint32; crop_size 5 uint32; mirror 6 bool; rand_skip 7 uint32;
    shuffle 8 bool; new_height 9 uint32; new_width 10 uint32; is_color 11 bool; root_folder 12 string

InnerProduct: num_output 1 uint32; bias_term 2 bool =true; weight_filler 3 Filler; bias_filler 4 Filler; axis 5 int32 =1; transpose 6 bool =false

Input: shape 1 BlobShape*

NormRegion = ACROSS_CHANNELS 0, WITHIN_CHANNEL 1

Lrn: local_size 1 uint32 =5; alpha 2 float =1; beta 3 float =0.75; norm_region 4 NormRegion =ACROSS_CHANNELS; k 5 float =1; engine 6 Engine

MemoryData: batch_size 1 uint32; channels 2 uint32; height 3 uint32; width 4 uint32

Mvn: normalize_variance 1 bool =true; across_channels 2 bool =false; eps 3 float =1e-9

Normalize: across_spatial 1 bool =true; scale_filler 2 Filler; channel_shared 3 bool =true; eps 4 float =1e-10

Parameter: shape 1 BlobShape

Permute: order 1 uint32*

PoolMethod = MAX 0, AVE 1, STOCHASTIC 2

RoundMode = CEIL 0, FLOOR 1

Pooling: pool 1 PoolMethod =MAX; kernel_size 2 uint32; stride 3 uint32 =1; pad 4 uint32 =0; kernel_h 5 uint32; kernel_w 6 uint32;
    stride_h 7 uint32; stride_w 8 uint32; pad_h 9 uint32 =0; pad_w 10 uint32 =0; engine 11 Engine; global_pooling 12 bool =false;
    round_mode 13 RoundMode =CEIL

Power: power 1 float =1; scale 2 float =1; shift 3 float =0

CodeType = CORNER 1, CENTER_SIZE 2, CORNER_SIZE 3

PriorBox: min_size 1 float*; max_size 2 float*; aspect_ratio 3 float*; flip 4 bool =true; clip 5 bool =false; variance 6 float*;
    img_size 7 uint32; img_h 8 uint32; img_w 9 uint32; step 10 float; step_h 11 float; step_w 12 float; offset 13 float =0.5

Suppression: nms_threshold 1 float =0.3; top_k 2 int32; eta 3 float =1

DetectionOutput: num_classes 1 uint32; share_location 2 bool =true; background_label_id 3 int32 =0; nms_param 4 Suppression;
    save_output_param 5 Ignored; code_type 6 CodeType =CORNER; keep_top_k 7 int32 =-1; variance_encoded_in_target 8 bool =false;
    confidence_threshold 9 float

Python: module 1 string; layer 2 string; param_str 3 string; share_in_parallel 4 bool

Prelu: filler 1 Filler; channel_shared 2 bool =false

Recurrent: num_output 1 uint32; weight_filler 2 Filler; bias_filler 3 Filler; debug_info 4 bool; expose_hidden 5 bool =false

ReductionOp = SUM 1, ASUM 2, SUMSQ 3, MEAN 4

Reduction: operation 1 ReductionOp =SUM; axis 2 int32 =0; coeff 3 float =1

Relu: negative_slope 1 float =0; engine 2 Engine

Reshape: shape 1 BlobShape; axis 2 int32 =0; num_axes 3 int32 =-1

Scale: axis 1 int32 =1; num_axes 2 int32 =1; filler 3 Filler; bias_term 4 bool =false; bias_filler 5 Filler

Slice: slice_dim 1 uint32 =1; slice_point 2 uint32*; axis 3 int32 =1

Softmax: engine 1 Engine; axis 2 int32 =1

Swish: beta 1 float =1

Threshold: threshold 1 float =0

Tile: axis 1 int32 =1; tiles 2 int32

V1Type = NONE 0, ACCURACY 1, BNLL 2, CONCAT 3, CONVOLUTION 4, DATA 5, DROPOUT 6, EUCLIDEAN_LOSS 7, FLATTEN 8, HDF5_DATA 9,
    HDF5_OUTPUT 10, IM2COL 11, IMAGE_DATA 12, INFOGAIN_LOSS 13, INNER_PRODUCT 14, LRN 15, MULTINOMIAL_LOGISTIC_LOSS 16, POOLING 17,
    RELU 18, SIGMOID 19, SOFTMAX 20, SOFTMAX_LOSS 21, SPLIT 22, TANH 23, WINDOW_DATA 24, ELTWISE 25, POWER 26,
    SIGMOID_CROSS_ENTROPY_LOSS 27, HINGE_LOSS 28, MEMORY_DATA 29, ARGMAX 30, THRESHOLD 31, DUMMY_DATA 32, SLICE 33, MVN 34, ABSVAL 35,
    SILENCE 36, CONTRASTIVE_LOSS 37, EXP 38, DECONVOLUTION 39

V1Layer: layer 1 Ignored; bottom 2 string*; top 3 string*; name 4 string; type 5 V1Type; blobs 6 Blob*; blobs_lr 7 float*;
    weight_decay 8 float*; concat_param 9 Concat; convolution_param 10 Convolution; data_param 11 Data; dropout_param 12 Dropout;
    hdf5_data_param 13 Hdf5Data; hdf5_output_param 14 Ignored; image_data_param 15 ImageData; infogain_loss_param 16 Ignored;
    inner_product_param 17 InnerProduct; lrn_param 18 Lrn; pooling_param 19 Pooling; window_data_param 20 Ignored; power_param 21 Power;
    memory_data_param 22 MemoryData; argmax_param 23 ArgMax; eltwise_param 24 Eltwise; threshold_param 25 Threshold;
    dummy_data_param 26 DummyData; accuracy_param 27 Accuracy; hinge_loss_param 29 Ignored; relu_param 30 Relu; slice_param 31 Slice;
    include 32 Rule*; exclude 33 Rule*; mvn_param 34 Mvn; loss_weight 35 float*; transform_param 36 Transformation;
    tanh_param 37 OfEngine; sigmoid_param 38 OfEngine; softmax_param 39 Softmax; contrastive_loss_param 40 Ignored; exp_param 41 Exponential;
    loss_param 42 Loss; param 1001 string*; blob_share_mode 1002 ShareMode*
"""  # noqa: E501 - a table

WORDS = {
    "ABSVAL": "AbsVal", "BNLL": "BNLL", "LRN": "LRN", "MVN": "MVN", "RELU": "ReLU", "TANH": "TanH", "ARGMAX": "ArgMax",
    "HDF5_DATA": "HDF5Data", "HDF5_OUTPUT": "HDF5Output", "SOFTMAX_LOSS": "SoftmaxWithLoss", "IM2COL": "Im2col",
}  # fmt: skip
"""The types of layers of the older form whose names are not those of today in capitals."""


@cache
def schema() -> Mapping[str, type[Message]]:
    """The classes of the messages."""
    return messages("weft_caffe", DESCRIPTION)


def layer_type(number: int) -> str:
    """The name that a layer type of the older form has today."""
    values = schema()["V1Layer"].DESCRIPTOR.fields_by_name["type"].enum_type.values_by_number
    name: str = values[number].name if number in values else str(number)
    return WORDS.get(name) or "".join(word.capitalize() for word in name.split("_"))
