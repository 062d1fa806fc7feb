"""Gradients of graphs, training steps that fit a memory budget, and the loop around them."""

from weft_training.differentiate import grad as grad
from weft_training.differentiate import jvp as jvp
from weft_training.differentiate import vjp as vjp
from weft_training.insertion import add_gradients as add_gradients
