"""Names and shardings on the inputs and outputs of AOTAutograd's graphs, read off the user's names.

A forward's arguments are the Dynamo graph's inputs, which have the names that the user knows them
by. A backward's are the forward's arguments and results, and gradients of results; it returns
gradients of arguments. Each of them lies over the mesh as what it belongs to does; where a rule
says nothing the compiler decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import fx
from torch.utils import _pytree as pytree

from tpu_compile import meshes, torch_internals
from tpu_compile.meshes import Mesh, Rules, Spec

# Under this in a Dynamo graph's metadata: the names of the parameters of the function it is of.
PARAMETERS = "parameters"


@dataclass
class Placement:
    """The names and specs of one Dynamo graph's inputs, and what is known of its results.

    Attributes:
        names: of the inputs.
        specs: of the inputs; empty where there is no mesh.
        values: specs of what a forward takes and returns, by the graph's names.
        results: specs of the user's results.
    """

    names: list[str]
    specs: list[Spec]
    values: dict[str, Spec] = field(default_factory=dict)
    results: dict[int, Spec] = field(default_factory=dict)

    @classmethod
    def of(cls, gm: fx.GraphModule, mesh: Mesh | None, rules: Rules) -> Placement:
        """Reads the names of a Dynamo graph's inputs, and lays those that are tensors over a mesh.

        Raises:
            BadSharding: for a rule that does not fit.
        """
        inputs = torch_internals.named_inputs(gm, gm.meta.get(PARAMETERS, ()))
        if mesh is None:
            return cls([name for name, _ in inputs], [])
        tensors = [(name, shape) for name, shape in inputs if shape is not None]
        found = iter(meshes.assign(rules, mesh, tensors))
        specs = [() if shape is None else next(found) for _, shape in inputs]
        return cls([name for name, _ in inputs], specs)

    def annotate(self, gm: fx.GraphModule) -> list[tuple[str, int | None]]:
        """Puts names and specs into the metadata of a graph's placeholders and of its output.

        Returns:
            For each output the name of its node, and its number among the user's results if it is
            one: what ``learn`` takes.
        """
        for node in gm.graph.find_nodes(op="placeholder"):
            role = torch_internals.role(node)
            if role.input is not None:
                node.meta["argument"] = self.names[role.input]
            if self.specs:
                node.meta["sharding"] = self._of_argument(node, role)
        output = gm.graph.output_node()
        leaves = pytree.tree_leaves(output.args[0], is_leaf=lambda x: x is None)
        roles = torch_internals.output_roles(output, len(leaves))
        if self.specs:
            output.meta["shardings"] = [
                self.specs[r.input] if r.input is not None else None for r in roles
            ]
        names = [leaf.name if isinstance(leaf, fx.Node) else "" for leaf in leaves]
        return list(zip(names, (r.result for r in roles), strict=True))

    def _of_argument(self, node: fx.Node, role: torch_internals.Role) -> Spec | None:
        if role.input is not None:
            self.values[node.name] = self.specs[role.input]
            return self.specs[role.input]
        if role.result is not None:
            return self.results.get(role.result)
        return self.values.get(node.name)

    def learn(self, outputs: list[tuple[str, int | None]], specs: Sequence[Spec | None]) -> None:
        """Takes in how the compiler laid a forward's results out."""
        for (name, result), spec in zip(outputs, specs, strict=True):
            if spec is None:
                continue
            self.values.setdefault(name, spec)
            if result is not None:
                self.results[result] = spec
