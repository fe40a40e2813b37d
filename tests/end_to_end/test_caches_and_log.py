"""Caches across processes, the log of compiles, forbidding recompiles, dumps and repro scripts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from compiled import STRICT, compile_tpu

import tpu_compile
from tpu_compile.errors import CacheWarning, RecompileWarning

PROGRAM = """
import json, warnings, torch, jax
counts = {}
def on_event(name, **_):
    counts[name.split("/")[-1]] = counts.get(name.split("/")[-1], 0) + 1
jax.monitoring.register_event_listener(on_event)
caught = []
warnings.showwarning = lambda m, c, *a, **k: caught.append(c.__name__)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())
f = torch.compile(model, backend="tpu", options={"fallback": "error"})
x = torch.ones(2, 8, requires_grad=True)
out = f(x)
out.sum().backward()
assert torch.allclose(out, model(x), atol=1e-5)
print(json.dumps({"counts": counts, "warnings": caught}))
"""


def run(cache: Path, **env: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "TPU_COMPILE_CACHE_DIR": str(cache), **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_second_process_hits_the_cache(tmp_path: Path) -> None:
    first = run(tmp_path)["counts"]
    assert first.get("cache_hits", 0) == 0
    second = run(tmp_path)["counts"]
    assert second["cache_hits"] == 2
    assert second.get("cache_misses", 0) == 0


def test_corrupt_cache_files_are_rebuilt(tmp_path: Path) -> None:
    run(tmp_path)
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert files
    for p in files:
        p.write_bytes(b"not a program")
    assert "CacheWarning" in run(tmp_path)["warnings"]
    assert run(tmp_path)["counts"]["cache_hits"] == 2


def test_cache_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TPU_COMPILE_CACHE_DIR", str(tmp_path / "file" / "folder"))
    torch._dynamo.reset()
    with pytest.warns(CacheWarning, match="TPU_COMPILE_CACHE_DIR"):
        torch.testing.assert_close(
            compile_tpu(lambda x: x + 41)(torch.zeros(3)), torch.full((3,), 41.0)
        )


def test_the_users_jax_cache_is_left_alone(tmp_path: Path) -> None:
    import jax
    from jax._src import compilation_cache

    before = (compilation_cache._cache, jax.config.jax_compilation_cache_dir)
    torch._dynamo.reset()
    compile_tpu(lambda x: x + 40)(torch.zeros(3))
    assert (compilation_cache._cache, jax.config.jax_compilation_cache_dir) == before
    assert not jax.config.jax_enable_x64


def test_recompiles_names_the_guard_and_the_line() -> None:
    torch._dynamo.reset()
    tpu_compile.compile_log.reset()
    f = compile_tpu(lambda x: x * 3)
    f(torch.ones(2))
    f(torch.ones(2, dtype=torch.float64))
    first, second = tpu_compile.recompiles()
    assert (first.recompile, second.recompile) == (False, True)
    assert "dtype" in second.reason
    assert "test_caches_and_log.py" in second.where


def test_on_recompile() -> None:
    torch._dynamo.reset()
    f = compile_tpu(lambda x: x * 4, options={**STRICT, "on_recompile": "error"})
    f(torch.ones(2))
    f(torch.ones(2))
    with pytest.raises(Exception, match="recompile forbidden"):
        f(torch.ones(2, dtype=torch.float64))
    torch._dynamo.reset()
    g = compile_tpu(lambda x: x * 4, options={**STRICT, "on_recompile": "warn"})
    g(torch.ones(2))
    with pytest.warns(RecompileWarning, match="dtype"):
        g(torch.ones(2, dtype=torch.float64))


def test_on_recompile_forbids_new_shapes_too() -> None:
    torch._dynamo.reset()
    f = compile_tpu(lambda x: x * 5, dynamic=True, options={**STRICT, "on_recompile": "error"})
    f(torch.ones(3))
    with pytest.raises(tpu_compile.errors.Recompiled, match=r"new shapes \[4\]"):
        f(torch.ones(4))
    torch.testing.assert_close(f(torch.ones(3)), torch.full((3,), 5.0))


def test_stage_times() -> None:
    torch._dynamo.reset()
    tpu_compile.compile_log.reset()
    compile_tpu(lambda x: x.sin() * 6)(torch.ones(3))
    times = tpu_compile.stage_times()
    assert set(times) >= {"aot", "passes", "lowering", "xla"}
    assert all(t >= 0 for t in times.values())


def test_dumps(tmp_path: Path) -> None:
    torch._dynamo.reset()
    f = compile_tpu(lambda x: x.view(3).sin() * 7, options={**STRICT, "dump_dir": tmp_path})
    f(torch.ones(3))
    names = sorted(p.name for p in tmp_path.rglob("*") if p.is_file())
    assert names[0] == "00_captured.py"
    assert names[-1].endswith("_stablehlo.mlir")
    text = next(tmp_path.rglob("*.mlir")).read_text()
    assert "stablehlo.sine" in text
    assert "test_caches_and_log.py" in text


def test_repro_script_runs(tmp_path: Path) -> None:
    torch._dynamo.reset()

    @torch.library.custom_op("tpu_compile_test::nothing", mutates_args=())
    def nothing(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    nothing.register_fake(torch.empty_like)
    options = {**STRICT, "dump_dir": tmp_path}
    with pytest.raises(Exception, match="a script that reproduces this"):
        compile_tpu(lambda x: nothing(x).sin(), options=options)(torch.ones(3))
    (script,) = tmp_path.glob("repro_*.py")
    text = script.read_text()
    # the op is this test's own; without it the rest of the script must run
    script.write_text(text.replace("torch.ops.tpu_compile_test.nothing.default", "torch.sin"))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "compiled and ran" in done.stdout
