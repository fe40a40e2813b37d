"""explain: steps as text, fallbacks and times."""

import torch

import tpu_compile


def test_steps_of_forward_and_backward() -> None:
    torch._dynamo.reset()
    x = torch.randn(3, requires_grad=True)
    found = tpu_compile.explain(lambda x: (x.sin() * 2).sum(), x)
    assert [s.graph.split("_")[1] for s in found.steps if s.name == "captured"] == [
        "forward",
        "backward",
    ]
    assert "aten.sin" in found.graphs[0]
    assert "stablehlo.sine" in found.mlir[0]
    assert "stablehlo.cosine" in found.mlir[1]
    assert found.fallbacks == {}
    assert found.times["xla"] > 0
