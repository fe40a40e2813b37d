"""Small builders over StableHLO that know torch's dtypes, conversions and broadcasting."""

from tpu_compile.lowering.builder.constants import (
    Scalar as Scalar,
)
from tpu_compile.lowering.builder.constants import (
    array_constant as array_constant,
)
from tpu_compile.lowering.builder.constants import (
    constant as constant,
)
from tpu_compile.lowering.builder.constants import (
    full_like as full_like,
)
from tpu_compile.lowering.builder.constants import (
    highest as highest,
)
from tpu_compile.lowering.builder.constants import (
    iota as iota,
)
from tpu_compile.lowering.builder.constants import (
    lowest as lowest,
)
from tpu_compile.lowering.builder.constants import (
    zeros as zeros,
)
from tpu_compile.lowering.builder.contraction import (
    convolution as convolution,
)
from tpu_compile.lowering.builder.contraction import (
    dot_general as dot_general,
)
from tpu_compile.lowering.builder.conversion import (
    as_type as as_type,
)
from tpu_compile.lowering.builder.conversion import (
    convert as convert,
)
from tpu_compile.lowering.builder.conversion import (
    divisor as divisor,
)
from tpu_compile.lowering.builder.conversion import (
    rounded as rounded,
)
from tpu_compile.lowering.builder.elementwise import (
    add_scalar as add_scalar,
)
from tpu_compile.lowering.builder.elementwise import (
    compare as compare,
)
from tpu_compile.lowering.builder.elementwise import (
    is_nan as is_nan,
)
from tpu_compile.lowering.builder.elementwise import (
    select as select,
)
from tpu_compile.lowering.builder.elementwise import (
    sign_bit as sign_bit,
)
from tpu_compile.lowering.builder.indexing import (
    gather as gather,
)
from tpu_compile.lowering.builder.indexing import (
    index_type as index_type,
)
from tpu_compile.lowering.builder.indexing import (
    pad as pad,
)
from tpu_compile.lowering.builder.indexing import (
    scatter as scatter,
)
from tpu_compile.lowering.builder.indexing import (
    sort as sort,
)
from tpu_compile.lowering.builder.indexing import (
    take as take,
)
from tpu_compile.lowering.builder.indexing import (
    update_slice as update_slice,
)
from tpu_compile.lowering.builder.reduction import (
    reduce as reduce,
)
from tpu_compile.lowering.builder.reduction import (
    reduce_many as reduce_many,
)
from tpu_compile.lowering.builder.reduction import (
    reduce_window as reduce_window,
)
from tpu_compile.lowering.builder.reduction import (
    reduce_window_many as reduce_window_many,
)
from tpu_compile.lowering.builder.shapes import (
    broadcast_in_dim as broadcast_in_dim,
)
from tpu_compile.lowering.builder.shapes import (
    broadcast_to as broadcast_to,
)
from tpu_compile.lowering.builder.shapes import (
    concatenate as concatenate,
)
from tpu_compile.lowering.builder.shapes import (
    dynamic_slice as dynamic_slice,
)
from tpu_compile.lowering.builder.shapes import (
    inverse as inverse,
)
from tpu_compile.lowering.builder.shapes import (
    rank_of as rank_of,
)
from tpu_compile.lowering.builder.shapes import (
    reshape as reshape,
)
from tpu_compile.lowering.builder.shapes import (
    reverse as reverse,
)
from tpu_compile.lowering.builder.shapes import (
    slice_ as slice_,
)
from tpu_compile.lowering.builder.shapes import (
    slice_dim as slice_dim,
)
from tpu_compile.lowering.builder.shapes import (
    transpose as transpose,
)
from tpu_compile.lowering.builder.shapes import (
    unsqueeze as unsqueeze,
)
