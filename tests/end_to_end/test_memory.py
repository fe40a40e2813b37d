"""Zero-copy arguments: right after updates of any kind, and nothing kept that the user freed."""

import gc
import weakref

import torch
from compiled import compile_tpu
from torch import nn

from tpu_compile import buffers


def linear() -> tuple[nn.Linear, object]:
    torch._dynamo.reset()
    model = nn.Linear(32, 16)
    f = compile_tpu(model)
    x = torch.randn(4, 32)
    with torch.no_grad():
        torch.testing.assert_close(f(x), model(x))
        torch.testing.assert_close(f(x), model(x))
    return model, f


@torch.no_grad()
def same(model: nn.Module, f: object, dtype: torch.dtype = torch.float32) -> None:
    x = torch.randn(4, 32, dtype=dtype)
    torch.testing.assert_close(f(x), model(x), rtol=1e-4, atol=1e-4)


def test_parameter_updated_in_place() -> None:
    model, f = linear()
    with torch.no_grad():
        model.weight.add_(1)
        same(model, f)
        model.weight[2:4] = 7
        same(model, f)


def test_parameter_updated_through_data() -> None:
    model, f = linear()
    model.weight.data.mul_(3)
    same(model, f)
    model.weight.data = torch.randn(16, 32)
    same(model, f)
    model.bias.data[1] = 100
    same(model, f)


def test_parameter_set_to_other_strides() -> None:
    model, f = linear()
    model.weight.data = torch.randn(32, 16).t()
    same(model, f)


def test_parameter_replaced() -> None:
    model, f = linear()
    model.weight = nn.Parameter(torch.randn(16, 32))
    same(model, f)


def test_parameter_changes_dtype() -> None:
    model, f = linear()
    model.double()
    same(model, f, torch.float64)
    model.float()
    same(model, f)


def test_state_dict_loaded() -> None:
    model, f = linear()
    model.load_state_dict(nn.Linear(32, 16).state_dict())
    same(model, f)
    model.load_state_dict(nn.Linear(32, 16).state_dict(), assign=True)
    same(model, f)


def test_conversion_shares_memory_where_aligned() -> None:
    x = torch.randn(16, 16)
    assert buffers.shares_memory(buffers.to_jax(x), x)
    odd = x.view(-1)[1:]
    assert not buffers.shares_memory(buffers.to_jax(odd), odd)
    a = buffers.to_jax(torch.arange(4))
    assert a.dtype == "int64"


def test_freed_parameter_is_not_kept() -> None:
    model, f = linear()
    storage = weakref.ref(model.weight.untyped_storage())
    gone = weakref.ref(model.weight)
    del model, f
    torch._dynamo.reset()
    gc.collect()
    assert gone() is None
    assert storage() is None


def test_freed_while_the_program_lives() -> None:
    model, f = linear()
    gone = weakref.ref(model.weight)
    model.weight = nn.Parameter(torch.randn(16, 32))
    gc.collect()
    assert gone() is None
    same(model, f)


def test_reset_frees_programs() -> None:
    from tpu_compile.executable import Executable

    torch._dynamo.reset()
    gc.collect()
    before = sum(type(o) is Executable for o in gc.get_objects())
    f = compile_tpu(lambda x: x.sin() * 3)
    f(torch.ones(4))
    assert sum(type(o) is Executable for o in gc.get_objects()) == before + 1
    torch._dynamo.reset()
    del f
    gc.collect()
    assert sum(type(o) is Executable for o in gc.get_objects()) == before


def test_input_may_be_overwritten_right_after_the_call() -> None:
    f = compile_tpu(lambda x: x @ x)
    for _ in range(5):
        x = torch.randn(600, 600)
        expected = x @ x
        out = f(x)
        x.zero_()
        torch.testing.assert_close(out, expected, rtol=1e-3, atol=1e-3)


def test_result_outlives_everything() -> None:
    f = compile_tpu(lambda x: x + 1)
    out = f(torch.zeros(1000))
    del f
    torch._dynamo.reset()
    gc.collect()
    assert out.sum() == 1000
