"""A recommendation model: embedding bags, pairwise products of features, two perceptrons.

After Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation
Systems", 2019 (arXiv:1906.00091).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn


def perceptron(widths: Sequence[int]) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Dlrm(nn.Module):
    """Dense features [batch, dense] and bags of rows to a logit [batch].

    Args:
        rows: of each embedding table.
        width: of each embedding.
        dense: how many dense features there are.
        bottom: hidden widths of the perceptron for dense features.
        top: hidden widths of the perceptron for products.
    """

    def __init__(
        self,
        rows: Sequence[int],
        width: int = 64,
        dense: int = 13,
        bottom: Sequence[int] = (512, 256),
        top: Sequence[int] = (512, 256),
    ) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(n, width, mode="sum") for n in rows)
        self.bottom = perceptron([dense, *bottom, width])
        features = len(rows) + 1
        pairs = torch.tril_indices(features, features, -1)
        self.register_buffer("pairs", pairs[0] * features + pairs[1])
        self.top = perceptron([width + pairs.shape[1], *top, 1])

    def forward(self, dense: Tensor, bags: Tensor, offsets: Tensor | None = None) -> Tensor:
        """Runs the model.

        Args:
            dense: [batch, dense].
            bags: row numbers, [tables, batch, rows a bag]; or [tables, rows in all] with offsets.
            offsets: where each bag begins, [tables, batch].
        """
        x = self.bottom(dense)
        parts = [x]
        for i, table in enumerate(self.tables):
            parts.append(table(bags[i], None if offsets is None else offsets[i]))
        stacked = torch.stack(parts, dim=1)
        products = (stacked @ stacked.transpose(1, 2)).flatten(1)
        interactions = products.index_select(1, self.pairs)
        return self.top(torch.cat([x, interactions], dim=1)).squeeze(1)
