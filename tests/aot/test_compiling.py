"""``aot_compile``: models through the real TPU compiler, with no TPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import MODELS
from torch import nn

import tpu_compile
from tpu_compile import planned
from tpu_compile.aot.fake import Faker
from tpu_compile.aot.result import AotResult
from tpu_compile.aot.store import NotAnAotFile
from tpu_compile.errors import CompiledOnly, DoesNotFit, InvalidOption, UnsupportedCase
from tpu_compile.torch_internals import FakeMode

pytest.importorskip("libtpu")
CHIPS = ("v4", "v5e", "v5p", "v6e:2x2", "tpu7x:2x2x1")


class Mlp(nn.Module):
    """Two layers, called from lines of this file."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(128, 256), nn.Linear(256, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).relu())


@pytest.fixture(scope="module")
def trained() -> AotResult:
    """A training step of an MLP for v6e."""
    return tpu_compile.aot_compile(Mlp(), torch.ones(64, 128), topology="v6e", train=True)


@pytest.mark.parametrize("topology", CHIPS)
@pytest.mark.parametrize("name", ["llama", "bert", "vit", "resnet50"])
def test_real_models_for_every_generation(name: str, topology: str) -> None:
    model, inputs = MODELS[name]()
    result = tpu_compile.aot_compile(
        model, kwargs=inputs, topology=topology, train=True, effort="fit"
    )
    assert [p.name for p in result.programs] == ["forward", "backward"]
    assert result.fits
    # Backward has two products for each of the forward's, less the first layer's input; attention
    # has five for two.
    forward, backward = (p.model_flops for p in result.programs)
    assert 1.5 * forward < backward < 2.5 * forward
    # ResNet's last maps have 2x2 places here: half of what the formula counts there is padding.
    assert 0.8 < result.cost.flops / result.model_flops < 2
    assert not result.cost.unknown_trips


@pytest.mark.parametrize("name", ["llama", "bert", "vit", "resnet50"])
def test_real_models_inference(name: str) -> None:
    model, inputs = MODELS[name]()
    result = tpu_compile.aot_compile(model.eval(), kwargs=inputs, topology="v5e", effort="fit")
    assert [p.name for p in result.programs] == ["inference"]
    parameters = sum(p.numel() * 4 for p in model.parameters())
    assert result.memory.arguments >= parameters


def test_figures_of_a_matmul_are_the_formulas() -> None:
    x = torch.ones(1024, 512, dtype=torch.bfloat16)
    w = torch.ones(512, 2048, dtype=torch.bfloat16)
    result = tpu_compile.aot_compile(torch.matmul, x, w, topology="v6e")
    assert result.model_flops == 2 * 1024 * 512 * 2048
    assert sum(op.products.get(p, 0) for op in result.cost.ops for p in op.products) == (
        result.model_flops
    )
    assert result.memory.arguments == 2 * (1024 * 512 + 512 * 2048)
    assert result.memory.outputs == 2 * 1024 * 2048
    assert result.cost.bytes == pytest.approx(result.memory.arguments + result.memory.outputs)


def test_training_holds_what_the_backward_does_not_take(trained: AotResult) -> None:
    forward, backward = trained.programs
    # no gradient needs the biases, nor the first weight as the input wants none
    assert forward.memory.held == 0
    assert backward.memory.held == 4 * (256 + 128 + 128 * 256)
    assert trained.memory == backward.memory


def test_ops_name_the_users_line(trained: AotResult) -> None:
    sources = [op.source for op in trained.top_ops("flops", 4)]
    assert {Path(s.file).name for s in sources if s} == {"test_compiling.py"}
    code = Path(__file__).read_text().splitlines()
    assert all("self.down(self.up(x).relu())" in code[s.line - 1] for s in sources if s)


def test_copies_that_the_compiler_adds_have_a_line_all_the_same(trained: AotResult) -> None:
    copies = [op for op in trained.cost.ops if op.opcode == "copy-start" and op.bytes]
    assert copies  # weights into VMEM, beside the compute before
    assert all(op.source and Path(op.source.file) == Path(__file__) for op in copies)


def test_the_backend_and_aot_compile_give_the_same_program() -> None:
    model, x = Mlp(), torch.ones(64, 128)
    result = tpu_compile.aot_compile(model, x, topology="v6e")
    faker = Faker(model, x)
    fake = faker.copy(model)
    compiled = torch.compile(fake, backend="tpu", options={"target": "v6e"}, dynamic=False)
    with planned.collect() as found, faker.mode, torch.no_grad():
        compiled(faker.copy(x))
    (program,) = found
    assert program.executable.compiled.as_text() == result["inference"].hlo


def test_a_compiled_topology_refuses_real_tensors() -> None:
    compiled = torch.compile(Mlp(), backend="tpu", options={"target": "v6e:2x2"})
    with pytest.raises(CompiledOnly, match="v6e:2x2"):
        compiled(torch.ones(2, 128))


def test_real_fake_and_meta_tensors_give_the_same_figures() -> None:
    def figures(model: nn.Module, x: torch.Tensor) -> Any:
        result = tpu_compile.aot_compile(model, x, topology="v5e", effort="fit")
        return {k: v for k, v in result.to_json().items() if k != "compile_seconds"}

    expected = figures(Mlp(), torch.ones(8, 128))
    with torch.device("meta"):
        meta = Mlp()
    assert figures(meta, torch.ones(8, 128, device="meta")) == expected
    with FakeMode():
        fake, x = Mlp(), torch.ones(8, 128)
    assert figures(fake, x) == expected


def test_tied_weights_are_one_argument() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(1024, 256)
            self.head = nn.Linear(256, 1024, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(ids))

    ids = torch.zeros(8, dtype=torch.int64)
    result = tpu_compile.aot_compile(Tied(), ids, topology="v5e", effort="fit")
    assert result.memory.arguments < 1.5 * 4 * 1024 * 256


def test_a_function_an_exported_program_and_keyword_arguments() -> None:
    def scaled(x: torch.Tensor, *, by: torch.Tensor) -> torch.Tensor:
        return x * by

    x, by = torch.ones(256, 256), torch.ones(256, 256)
    result = tpu_compile.aot_compile(scaled, x, kwargs={"by": by}, topology="v5e", effort="fit")
    assert result.memory.arguments == 2 * x.nbytes
    program = torch.export.export(Mlp(), (torch.ones(8, 128),))
    exported = tpu_compile.aot_compile(program, torch.ones(8, 128), topology="v5e", effort="fit")
    assert exported.model_flops == 2 * 8 * 2 * 128 * 256


def test_random_ops_and_checkpointing_compile() -> None:
    model = nn.Sequential(nn.Linear(128, 128), nn.Dropout(0.5), nn.Linear(128, 128))

    def step(x: torch.Tensor) -> torch.Tensor:  # closes over real weights
        return torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).sum()

    x = torch.ones(8, 128, requires_grad=True)
    result = tpu_compile.aot_compile(step, x, topology="v5e", train=True, effort="fit")
    assert [p.name for p in result.programs] == ["forward", "backward"]


def test_what_does_not_fit_names_the_largest_buffers() -> None:
    with torch.device("meta"):
        model = nn.Linear(2**17, 2**16, bias=False)  # 32 GiB
    with pytest.raises(DoesNotFit, match=r"float32\[65536, 131072\]  argument") as caught:
        tpu_compile.aot_compile(model, torch.ones(8, 2**17), topology="v5e")
    assert "sharding" in str(caught.value)
    assert caught.value.fields["peak"].bytes > 2**35


def test_an_op_that_a_tpu_can_not_run_is_named_with_the_line() -> None:
    with pytest.raises(UnsupportedCase, match=r"(?s)linalg_eig.*test_compiling.py"):
        tpu_compile.aot_compile(lambda x: torch.linalg.eig(x), torch.eye(4), topology="v5e")


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"effort": "fast"}, "Valid values"),
        ({"train": True}, "no output of the model requires grad"),
        ({"options": {"tarmac": 1}}, "Valid options"),
    ],
)
def test_a_wrong_request_says_what_is_valid(kwargs: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        tpu_compile.aot_compile(torch.sin, torch.ones(4), topology="v5e", **kwargs)


def test_many_compiles_of_one_class_do_not_run_out_of_recompiles() -> None:
    for n in range(1, 11):
        tpu_compile.aot_compile(nn.Linear(8, n), torch.ones(2, 8), topology="v5e", effort="fit")


def test_a_saved_result_reads_back_whole(trained: AotResult, tmp_path: Path) -> None:
    path = tmp_path / "step.zip"
    trained.save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["step.zip"]
    again = AotResult.load(path)
    assert again.to_json() == trained.to_json()
    assert again.stablehlo == trained.stablehlo
    assert again["backward"].hlo == trained["backward"].hlo
    assert str(again) == str(trained)
    assert len(again["forward"].texts.executable) > 1000
    json.dumps(again.to_json())


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"no zip", lambda b: b""])
def test_a_damaged_file_is_refused(
    trained: AotResult, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "step.zip"
    trained.save(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(NotAnAotFile, match=r"step.zip"):
        AotResult.load(path)


def test_the_report_shows_each_program(trained: AotResult) -> None:
    text = str(trained)
    for word in ("v6e:1x1", "fits", "forward", "backward", "test_compiling.py"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
