"""What each op does to padding: one rule for each op that can have a padded tensor."""

from tpu_compile.padding.rules import (  # noqa: F401  (each registers its rules)
    attention,
    creation,
    elementwise,
    indexing,
    joining,
    neighbourhood,
    normalization,
    product,
    reduction,
    view,
)
from tpu_compile.padding.rules.registry import find as find
