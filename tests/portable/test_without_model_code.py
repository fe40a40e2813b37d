"""A file in a process that has neither the model's code nor a use for pickle."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import jax
import pytest
import torch
from jax import export as jax_export

from tpu_compile.demo_llama import Llama, LlamaConfig
from tpu_compile.portable.saving import export

MODEL = """
import torch

class Secret(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return {"y": self.linear(x).relu(), "calls": self.calls * 1}
"""

LOAD = """
import importlib.util, pickle, sys

def refuse(*args, **kwargs):
    raise AssertionError("something was unpickled")

def watch(event, args):
    if event == "pickle.find_class":
        refuse()

sys.addaudithook(watch)
pickle.load = pickle.loads = refuse
pickle.Unpickler = pickle._Unpickler = type("Unpickler", (), {"__init__": refuse})
assert importlib.util.find_spec("secret_model") is None

import torch
torch.load = torch.export.load = refuse
from tpu_compile.portable.loading import load

model = load(sys.argv[1], device="cpu", executable=sys.argv[2])
x = torch.arange(8.0).view(2, 4)
model(x)
out = model(x)
assert out["calls"] == 2
assert "secret_model" not in sys.modules
print(out["y"].tolist())
"""


@pytest.fixture
def exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, torch.Tensor]:
    """A file, and what its model gives for the subprocess's input."""
    (tmp_path / "secret_model.py").write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    import secret_model

    model, x = secret_model.Secret(), torch.arange(8.0).view(2, 4)
    export(model, (x,), tmp_path / "model.tpuc", platforms=["cpu"], topology="cpu")
    return tmp_path / "model.tpuc", model(x)["y"].detach()


@pytest.mark.parametrize("executable", ["ignore", "require"])
def test_loading_needs_no_model_code_and_no_pickle(
    exported: tuple[Path, torch.Tensor], executable: str
) -> None:
    path, expected = exported
    command = [sys.executable, "-c", LOAD, str(path), executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    torch.testing.assert_close(torch.tensor(eval(done.stdout)), expected)


def test_weights_are_stored_once_and_not_in_the_program(tmp_path: Path) -> None:
    config = LlamaConfig(vocab=512, width=64, hidden=96, layers=1, heads=4, kv_heads=2, tied=True)
    model = Llama(config).eval()
    path = tmp_path / "llama.tpuc"
    manifest = export(model, (torch.randint(512, (1, 8)),), path)
    size = sum(p.numel() * 4 for p in model.parameters())
    assert size <= manifest.members["weights.safetensors"].size < size + 4096
    for program in manifest.programs.values():
        assert manifest.members[program].size < size / 4


def test_other_readers_read_the_weights(tmp_path: Path) -> None:
    from safetensors.torch import load as read

    model = torch.nn.Linear(4, 3, dtype=torch.bfloat16)
    export(model, (torch.ones(2, 4, dtype=torch.bfloat16),), tmp_path / "f", platforms=["cpu"])
    with zipfile.ZipFile(tmp_path / "f") as file:
        found = read(file.read("weights.safetensors"))
    for name, p in model.state_dict().items():
        assert torch.equal(found[name], p)


def test_a_program_for_tpus_from_a_machine_without_one(tmp_path: Path) -> None:
    class Solve(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.linalg.qr(x).Q, torch.nn.functional.dropout(x, 0.5)

    export(Solve(), (torch.randn(4, 4),), tmp_path / "f")
    texts = {}
    with zipfile.ZipFile(tmp_path / "f") as file:
        for platform in ("cpu", "tpu"):
            data = file.read(f"program.{platform}.stablehlo")
            program = jax_export.deserialize(bytearray(data))
            assert program.platforms == (platform,)
            texts[platform] = program.mlir_module()
        assert Path(__file__).name.encode() in program.mlir_module_serialized
        for folder in (Path(__file__).parent, Path(torch.__file__).parent, Path.cwd()):
            assert str(folder).encode() not in program.mlir_module_serialized
    assert "lapack" in texts["cpu"]
    assert "lapack" not in texts["tpu"]
    assert jax.default_backend() == "cpu"
