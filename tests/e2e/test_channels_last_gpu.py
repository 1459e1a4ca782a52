"""Models with convolutions of 16 bits on an NVIDIA GPU, whose operands get another layout on the way.

    python -m pytest -m gpu tests/e2e/test_channels_last_gpu.py
"""

import copy
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.e2e import test_channels_last
from tests.e2e.test_channels_last import AWKWARD, CONV, MODELS, eager_and_compiled, error, ran

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield
    torch._dynamo.reset()


class Residual(nn.Module):
    """Channels and places enough for lowc's own products, a pool, groups of several channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.one, self.two = nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1, groups=4)
        self.last, self.head = nn.Conv2d(64, 128, 1, 2), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1)
        x = x + self.two(F.relu(self.one(x)))
        return self.head(F.silu(self.last(x)).mean((2, 3)))


GPU_MODELS = MODELS | {"Residual": Residual}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("name", GPU_MODELS)
def test_values_gradients_and_strides(name: str, form: torch.memory_format, dtype: torch.dtype) -> None:
    model = GPU_MODELS[name]().train().cuda().to(dtype)
    shape = (4, 3, 70, 62) if name == "Residual" else (2, 3, 14, 10)
    x = torch.randn(shape, device="cuda", dtype=dtype).contiguous(memory_format=form)
    wide = ran(copy.deepcopy(model).double(), x.double(), False)
    eager = ran(copy.deepcopy(model), x, False)
    ours = ran(copy.deepcopy(model), x, True)
    for mine, theirs, exact in zip(ours, eager, wide, strict=True):
        assert error(mine, exact) <= 2 * error(theirs, exact) + 1e-6
    if (name, form) != ("Upward", torch.channels_last):  # torch's fake tensors are wrong of what the transposed one gives
        assert [o.stride() for o in ours[0]] == [o.stride() for o in eager[0]]


@pytest.mark.parametrize("name", GPU_MODELS)
def test_inference(name: str) -> None:
    model = GPU_MODELS[name]().eval().cuda().bfloat16()
    x = torch.randn(4, 3, 70, 62, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        wide, eager = copy.deepcopy(model).double()(x.double()), model(x)
        ours = torch.compile(model, backend="lowc", dynamic=False, options={"strict_errors": True})(x)
    many = [list(r) if isinstance(r, tuple) else [r] for r in (ours, eager, wide)]
    assert error(many[0], many[2]) <= 2 * error(many[1], many[2]) + 1e-6
    assert [o.stride() for o in many[0]] == [o.stride() for o in many[1]]


@pytest.mark.parametrize("case", AWKWARD)
def test_what_depends_on_how_memory_lies(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_channels_last, "CONV", copy.deepcopy(CONV).cuda().bfloat16())
    eager, ours = eager_and_compiled(case, torch.randn(2, 3, 10, 12, device="cuda", dtype=torch.bfloat16))
    torch.testing.assert_close(ours, eager, rtol=2e-2, atol=2e-2)
    assert [r.stride() for r in ours] == [r.stride() for r in eager]
