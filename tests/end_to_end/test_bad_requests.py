"""Options, modes, targets, versions and dtypes that can't be had: what the error says."""

import pytest
import torch
from compiled import compile_tpu

from tpu_compile import errors, options
from tpu_compile.passes.base import Pass


def test_unknown_option_lists_valid_ones() -> None:
    with pytest.raises(errors.InvalidOption, match=r"Did you mean 'fallback'\?.*target, fallback"):
        options.read({"fallbck": "warn"})
    with pytest.raises(Exception, match="invalid option nonsense"):
        compile_tpu(lambda x: x + 1, options={"nonsense": 1})(torch.ones(1))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("target", "gpu"),
        ("fallback", True),
        ("on_recompile", "no"),
        ("matmul_precision", "best"),
        ("dump_dir", 3),
        ("cache", "yes"),
        ("compiler_options", ["x"]),
        ("passes_after", {"remove-no-ops": "mine"}),
    ],
)
def test_wrong_value_lists_valid_ones(name: str, value: object) -> None:
    with pytest.raises(errors.InvalidOption, match=r"Valid values"):
        options.read({name: value})


def test_modes() -> None:
    for mode in ("default", "reduce-overhead", "max-autotune"):
        torch._dynamo.reset()
        f = torch.compile(lambda x: x + 1, backend="tpu", mode=mode)
        torch.testing.assert_close(f(torch.zeros(2)), torch.ones(2))
    torch._dynamo.reset()
    with pytest.raises(Exception, match="mode='fastest' is not supported"):
        torch.compile(lambda x: x + 2, backend="tpu", mode="fastest")(torch.ones(1))


def test_target_tpu_without_one() -> None:
    with pytest.raises(Exception, match=r"target 'tpu' is not available"):
        compile_tpu(lambda x: x + 3, options={"target": "tpu"})(torch.ones(1))


def test_unsupported_dtype_is_named() -> None:
    with pytest.raises(Exception, match=r"torch.complex32 has no XLA type.*complex64"):
        compile_tpu(lambda x: x * 2)(torch.ones(2, dtype=torch.complex32))


def test_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    from tpu_compile import versions

    monkeypatch.setattr(versions, "installed", lambda package: "0.4.1")
    with pytest.raises(errors.UnsupportedVersion, match=r"0.4.1 is not supported"):
        versions.check()


def test_pass_order_is_checked() -> None:
    from tpu_compile.passes import pipeline

    mine = Pass("mine", lambda gm: 0, after=("no-such-pass",))
    with pytest.raises(errors.InvalidPass, match="must come after"):
        pipeline.compose({"remove-no-ops": (mine,)})
    with pytest.raises(errors.InvalidPass, match="there is no such pass"):
        pipeline.compose({"nope": (mine,)})


def test_pass_that_breaks_the_graph_is_named() -> None:
    def drop_type(gm: torch.fx.GraphModule) -> int:
        next(n for n in gm.graph.nodes if n.op == "call_function").meta.pop("val")
        return 1

    def crash(gm: torch.fx.GraphModule) -> int:
        raise KeyError("oops")

    for fn, text in ((drop_type, "left an invalid graph"), (crash, "raised KeyError")):
        torch._dynamo.reset()
        passes = {"remove-no-ops": [Pass("mine", fn)]}
        f = compile_tpu(lambda x: x.sin() + 3, options={"passes_after": passes})
        with pytest.raises(Exception, match=f"pass 'mine' {text}"):
            f(torch.ones(2))


def test_plugin_pass_runs() -> None:
    torch._dynamo.reset()
    seen = []
    passes = {"remove-no-ops": [Pass("look", lambda gm: seen.append(gm) or 0)]}
    compile_tpu(lambda x: x.sin() + 4, options={"passes_after": passes})(torch.ones(2))
    assert len(seen) == 1


def test_xla_refuses_an_option() -> None:
    torch._dynamo.reset()
    f = compile_tpu(lambda x: x * 9, options={"compiler_options": {"xla_no_such_flag": True}})
    with pytest.raises(Exception, match=r"xla_no_such_flag"):
        f(torch.ones(2))
