"""Programs partitioned over a slice: what each device holds and sends, against the formulas."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from small_models import MODELS
from torch import nn

import tpu_compile
from tpu_compile import planned
from tpu_compile.aot.fake import Faker
from tpu_compile.aot.result import AotProgram, AotResult
from tpu_compile.errors import BadSharding, DoesNotFit, MeshDoesNotFit

pytest.importorskip("libtpu")

BATCH, WIDTH, INNER = 256, 512, 1024


class Mlp(nn.Module):
    """Two layers, float32."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).relu())


WEIGHTS = 4 * 2 * WIDTH * INNER  # bytes
BIASES = 4 * (WIDTH + INNER)
X, HIDDEN = 4 * BATCH * WIDTH, 4 * BATCH * INNER


def compile_mlp(mesh: dict[str, int], shardings: dict[str, Any], **kwargs: Any) -> AotResult:
    kwargs = {"topology": "v6e:2x2", "train": True, **kwargs}
    return tpu_compile.aot_compile(
        Mlp(), torch.ones(BATCH, WIDTH), mesh=mesh, shardings=shardings, **kwargs
    )


def collectives(program: AotProgram) -> Counter[str]:
    return Counter(op.opcode for op in program.cost.ops if op.collective_bytes)


def test_data_parallel_reduces_the_gradients_and_nothing_else() -> None:
    result = compile_mlp({"data": 4}, {"x": ("data",)})
    forward, backward = result.programs
    assert forward.cost.collective_bytes == 0
    assert collectives(backward) == {"all-reduce": 1}
    assert backward.cost.collective_bytes == 2 * (WEIGHTS + BIASES) * 3 / 4
    # tiles pad the biases
    assert forward.memory.arguments == pytest.approx(WEIGHTS + BIASES + X / 4, rel=2e-3)
    assert backward.memory.outputs == pytest.approx(WEIGHTS + BIASES, rel=2e-3)
    assert forward.shardings == {"x": "('data',)"}
    # each device multiplies its part of the batch
    assert result.cost.flops == pytest.approx(result.model_flops / 4, rel=0.02)


def test_tensor_parallel_reduces_one_activation() -> None:
    rules = {"up.*": ("model",), "down.weight": (None, "model")}
    result = compile_mlp({"model": 4}, rules)
    forward, backward = result.programs
    assert collectives(forward) == {"all-reduce": 1}
    assert forward.cost.collective_bytes == 2 * X * 3 / 4
    assert backward.cost.collective_bytes == 0  # the input needs no gradient
    assert forward.memory.arguments == pytest.approx(WEIGHTS / 4 + BIASES / 2 + X, rel=5e-3)
    # a weight's gradient lies as the weight does
    assert backward.memory.outputs == pytest.approx(WEIGHTS / 4, rel=2e-2)


def test_sharded_parameters_are_gathered_and_their_gradients_stay_sharded() -> None:
    result = compile_mlp({"fsdp": 4}, {"*.weight": ("fsdp",), "x": ("fsdp",)})
    forward, backward = result.programs
    assert collectives(forward)["all-gather"] >= 1
    assert forward.memory.arguments == pytest.approx(WEIGHTS / 4 + BIASES + X / 4, rel=1e-2)
    assert backward.memory.outputs == pytest.approx(WEIGHTS / 4 + BIASES, rel=1e-2)
    # what the backward does not take stays alive: one device's part of the first weight
    assert backward.memory.held < WEIGHTS / 8 + BIASES + 1


def test_two_axes() -> None:
    rules = {"x": ("data",), "up.*": ("model",), "down.weight": (None, "model")}
    forward, backward = compile_mlp({"data": 2, "model": 2}, rules).programs
    assert forward.cost.collective_bytes == 2 * (X / 2) * 1 / 2
    gradients = WEIGHTS / 2 + 4 * (INNER / 2 + WIDTH)
    assert backward.cost.collective_bytes == 2 * gradients * 1 / 2


def test_without_shardings_each_device_does_everything() -> None:
    whole = tpu_compile.aot_compile(Mlp(), torch.ones(BATCH, WIDTH), topology="v6e:2x2")
    result = compile_mlp({"data": 4}, {}, train=False)
    assert result.cost.collective_bytes == 0
    assert result.cost.flops == whole.cost.flops
    assert result.memory.arguments == whole.memory.arguments


@pytest.mark.parametrize("topology", ["v4:2x2x1", "v5e:2x4", "v5p:2x2x2", "v6e:2x4", "tpu7x:2x2x1"])
def test_llama_over_whole_slices_of_every_generation(topology: str) -> None:
    model, inputs = MODELS["llama"]()
    batch = {k: v.repeat(8, 1) for k, v in inputs.items()}
    rules = {
        "*.q_proj.weight": ("model",),
        "*.k_proj.weight": ("model",),
        "*.v_proj.weight": ("model",),
        "*.o_proj.weight": (None, "model"),
        "*.gate_proj.weight": ("model",),
        "*.up_proj.weight": ("model",),
        "*.down_proj.weight": (None, "model"),
        "input_ids": ("data",),
        "labels": ("data",),
    }
    result = tpu_compile.aot_compile(
        model,
        kwargs=batch,
        topology=topology,
        train=True,
        effort="fit",
        mesh={"data": 4, "model": 2},
        shardings=rules,
    )
    forward, _ = result.programs
    assert result.fits
    assert forward.shardings["model.layers.0.self_attn.q_proj.weight"] == "('model',)"
    # Two products of each layer are split along what they sum over: forward and backward reduce an
    # activation for each, of two devices whose part of the batch is a quarter.
    rows, length = batch["input_ids"].shape
    activation = 4 * (rows // 4) * length * model.config.hidden_size
    for program in result.programs:
        sent = [op.collective_bytes for op in program.cost.ops if op.opcode == "all-reduce"]
        assert sent.count(activation) == 2 * model.config.num_hidden_layers
    # and the gradients once
    assert max(sent) > activation
    assert result.cost.flops < 0.2 * result.model_flops


def test_dropout_and_batch_norm_over_a_mesh() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm = nn.Linear(256, 256), nn.BatchNorm1d(256)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(self.norm(self.layer(x)), 0.2, self.training)

    result = tpu_compile.aot_compile(
        Net(),
        torch.ones(64, 256),
        topology="v5e:2x2",
        train=True,
        mesh={"data": 4},
        shardings={"x": ("data",)},
    )
    # the statistics are the whole batch's
    assert collectives(result["forward"])["all-reduce"] >= 1
    assert result["forward"].shardings == {"x": "('data',)"}


def test_the_backend_gives_the_same_program() -> None:
    rules = {"x": ("data",), "up.*": ("model",)}
    options = {"target": "v6e:2x2", "mesh": {"data": 2, "model": 2}, "shardings": rules}
    result = compile_mlp({"data": 2, "model": 2}, rules, train=False)
    faker = Faker(model := Mlp(), x := torch.ones(BATCH, WIDTH))
    compiled = torch.compile(faker.copy(model), backend="tpu", options=options, dynamic=False)
    with planned.collect() as found, faker.mode, torch.no_grad():
        compiled(faker.copy(x))
    (program,) = found
    assert program.executable.compiled.as_text() == result["inference"].hlo


def test_what_does_not_fit_one_device_fits_a_slice() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(1 << 16, 1 << 16, device="meta"))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight

    x = torch.empty(8, 1 << 16, device="meta")
    with pytest.raises(DoesNotFit, match=r"argument weight"):
        tpu_compile.aot_compile(Wide(), x, topology="v5e:2x2", effort="fit")
    result = tpu_compile.aot_compile(
        Wide(),
        x,
        topology="v5e:2x2",
        effort="fit",
        mesh={"model": 4},
        shardings={"weight": (None, "model")},
    )
    assert result.fits
    assert result.memory.arguments == pytest.approx(2**34 / 4, rel=0.01)


def test_mistakes_are_refused_before_any_work() -> None:
    with pytest.raises(MeshDoesNotFit, match="data=8"):
        compile_mlp({"data": 8}, {})
    with pytest.raises(BadSharding, match=r"'upp\.weight'.*up\.weight"):
        compile_mlp({"data": 4}, {"upp.weight": ("data",)})
    with pytest.raises(BadSharding, match=r"'x'.*does not divide"):
        tpu_compile.aot_compile(
            Mlp(),
            torch.ones(6, WIDTH),
            topology="v6e:2x2",
            mesh={"data": 4},
            shardings={"x": ("data",)},
        )
