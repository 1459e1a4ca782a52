"""What ``lowering`` asks of ops that may be lowc's own or a library's, and what was measured of single nodes."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from lowc.ir.graph import TensorMeta
from lowc.ir.index import Index
from lowc.ir.types import DType
from lowc.options import Options

Whose = Callable[[DType, Sequence[Index], Sequence[Index], bool, bool, bool, int, bool], str]
Attends = Callable[[DType, Sequence[Index], Sequence[Index], Sequence[Index], bool, bool, bool, str, str], str]
Convolves = Callable[[DType, Sequence[Index], Sequence[Index], TensorMeta, Sequence[Index], Index, bool, str], str]


class Asked(NamedTuple):
    """Each says why an op is ATen's; "" for one of lowc's own.

    ``library``: on a GPU, a product of tensors of a dtype and of two shapes; told also whether pointwise ops follow, whether
    both lie as the engine copies them, whether both lie along the depth, and the bytes of the smallest pieces in which threads
    would copy one.  ``attention``: of a dtype, of queries, keys and values of three shapes; told also whether
    there is a bias, whether it is causal, whether all lie as the engine copies, what is wanted ("result", "sums" for a backward
    pass as well, "gradients", "sums of gradients"), and whose the op is in ATen ("flash", "efficient", "cudnn",
    "cpu"; "flex": scores by a function).
    ``convolution``: of a dtype, of an input and weights of two shapes, of what is made, by steps, in groups; told also whether
    pointwise ops follow, and what is wanted: "result"; "gradient of input", where the input is the gradient that is given and
    the input's is made (a transposed convolution is one); "gradient of weight" and "gradient of bias", where what is made is
    the gradient that is given.
    Where nothing is given all are ATen's.
    """

    options: Options | None = None
    library: Whose | None = None
    attention: Attends | None = None
    convolution: Convolves | None = None


class Decided(NamedTuple):
    """Of nodes by name, what measuring has decided and why: ``own`` are lowc's if lowc can do them, as ``asked`` says; ``left``
    are ATen's.  All others are as the options say.  ``schedules``: of those that are lowc's, which of their schedules is taken,
    counted from 0, the best by the model."""

    asked: Asked = Asked()
    own: Mapping[str, str] = MappingProxyType({})
    left: Mapping[str, str] = MappingProxyType({})
    schedules: Mapping[str, int] = MappingProxyType({})


UNDECIDED = Decided()
