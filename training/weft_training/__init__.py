"""Gradients of graphs, training steps that fit a memory budget, and the loop around them."""

from weft_training.differentiate import grad as grad
from weft_training.differentiate import jvp as jvp
from weft_training.differentiate import vjp as vjp
from weft_training.insertion import add_gradients as add_gradients
from weft_training.optimizers import SGD as SGD
from weft_training.optimizers import Adagrad as Adagrad
from weft_training.optimizers import AdamW as AdamW
from weft_training.planning import plan_training as plan_training
from weft_training.step import TrainingStep as TrainingStep
from weft_training.step import compile_training as compile_training
from weft_training.trainer import Trainer as Trainer
