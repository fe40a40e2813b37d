"""Which of torch's OpInfo samples the rules are checked with, and what is known not to agree."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils import _pytree as pytree

SAMPLES = 8  # per op and dtype, spread evenly over what torch generates

f32, f64, bf16 = torch.float32, torch.float64, torch.bfloat16
i64, u8, bool_, c64 = torch.int64, torch.uint8, torch.bool, torch.complex64


@dataclass(frozen=True)
class Expect:
    """What one op needs beside the defaults.

    Attributes:
        rtol: relative tolerance of forward and gradient in float32 (default torch's).
        atol: absolute tolerance in float32.
        xfail: why an op fails, by dtype, or in all of them.
        forward_only: why gradients aren't compared.
        values_only: why only the first result is compared.
        drop: a reason and a predicate for samples that are not run.
        mutates: what the op changes in place, so that it must get copies.
        tolerances: relative and absolute tolerance in other dtypes.
    """

    rtol: float | None = None
    atol: float | None = None
    xfail: Mapping[torch.dtype, str] | str = field(default_factory=dict)
    forward_only: str = ""
    values_only: str = ""
    drop: tuple[str, Callable[[SampleInput], bool]] | None = None
    mutates: str = ""
    tolerances: Mapping[torch.dtype, tuple[float, float]] = field(default_factory=dict)

    def why_xfail(self, dtype: torch.dtype) -> str | None:
        """Why the op is expected to fail in a dtype, or None."""
        return self.xfail or None if isinstance(self.xfail, str) else self.xfail.get(dtype)

    def tolerance(self, dtype: torch.dtype) -> tuple[float | None, float | None]:
        """Relative and absolute tolerance in a dtype; None is torch's default."""
        if dtype in self.tolerances:
            return self.tolerances[dtype]
        if dtype == torch.float32:
            return self.rtol or 1.3e-6, self.atol or 1e-5  # else torch's defaults
        return None, None


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


MATMUL = _names("""
    mm bmm addmm baddbmm mv dot vdot addmv matmul addbmm addr einsum inner tensordot kron
    nn.functional.linear __rmatmul__ outer
""")
POINTWISE = _names("""
    abs add sub rsub mul div.no_rounding_mode div.trunc_rounding div.floor_rounding true_divide
    floor_divide remainder fmod pow float_power __radd__ __rsub__ __rmul__ __rdiv__ __rmod__
    __rpow__ maximum minimum max.binary min.binary fmax fmin clamp clamp_min clamp_max neg positive
    sign sgn reciprocal sqrt rsqrt square exp exp2 expm1 log log2 log10 log1p ceil floor trunc frac
    round round.decimals_0 round.decimals_3 round.decimals_neg_3 lerp where copysign hypot addcmul
    addcdiv heaviside gcd lcm frexp ldexp logaddexp logaddexp2 nan_to_num nextafter xlogy deg2rad
    rad2deg masked_fill
""")
SPECIAL = _names("""
    sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh atan2 sinc erf erfc erfinv lgamma
    digamma i0     mvlgamma.mvlgamma_p_1 logit special.i0e special.i1 special.i1e
    special.ndtr special.ndtri special.log_ndtr special.erfcx special.entr special.xlog1py
    special.bessel_j0 special.bessel_j1 special.spherical_bessel_j0
""")
COMPLEX = _names("""
    abs add sub rsub mul div.no_rounding_mode pow neg sgn reciprocal sqrt rsqrt square exp expm1 log
    log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh lerp where addcmul
    addcdiv sigmoid eq ne isnan isfinite sum mean prod var cumsum cumprod cat permute index_put
    gather
""")
BYTES = _names("""
    add sub mul div.floor_rounding div.trunc_rounding remainder fmod maximum clamp abs sign pow gcd
    lcm where eq lt gather scatter_add index_put
""")
SLOW_SPECIAL = _names("""
    polygamma.polygamma_n_0 polygamma.polygamma_n_1 polygamma.polygamma_n_2 igamma igammac
    mvlgamma.mvlgamma_p_3 special.zeta
""")
ACTIVATION = _names("""
    sigmoid nn.functional.relu nn.functional.relu6 nn.functional.gelu nn.functional.silu
    nn.functional.elu nn.functional.celu nn.functional.selu nn.functional.leaky_relu
    nn.functional.hardtanh nn.functional.hardswish nn.functional.hardsigmoid nn.functional.softplus
    nn.functional.logsigmoid nn.functional.mish nn.functional.softsign nn.functional.tanhshrink
    nn.functional.threshold nn.functional.softshrink nn.functional.hardshrink nn.functional.glu
    nn.functional.prelu
""")
COMPARISON = _names("""
    eq ne lt le gt ge isnan isinf isfinite isposinf isneginf isreal isclose logical_and logical_or
    logical_xor logical_not signbit equal isin allclose
""")
BITWISE = _names("""
    bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift __rand__
    __ror__ __rxor__
""")
CONVERT = _names("""
    clone contiguous to bfloat16 bool byte char double float half int long short cdouble cfloat conj
    conj_physical resolve_conj resolve_neg real imag complex polar angle view_as_real
    view_as_complex alias_copy
""")
VIEW = _names("""
    view view_as view_copy reshape reshape_as permute permute_copy transpose transpose_copy t t_copy
    T H mT mH expand expand_as expand_copy broadcast_to broadcast_tensors squeeze squeeze.multiple
    squeeze_copy unsqueeze unsqueeze_copy select slice narrow narrow_copy chunk unsafe_chunk split
    split.list_args unsafe_split split_with_sizes split_with_sizes_copy tensor_split hsplit vsplit
    dsplit unbind unbind_copy flatten unflatten ravel atleast_1d atleast_2d atleast_3d movedim flip
    fliplr flipud roll rot90 repeat tile cat stack hstack vstack dstack column_stack _chunk_cat
    as_strided as_strided.partial_views as_strided_copy as_strided_scatter diag diag_embed diagflat
    diagonal diagonal_copy linalg.diagonal diagonal_scatter slice_scatter select_scatter unfold
    unfold_copy constant_pad_nd nn.functional.pad.constant nn.functional.pad.circular block_diag
    meshgrid.variadic_tensors meshgrid.list_of_tensors combinations cartesian_prod __getitem__
    nn.functional.pixel_shuffle nn.functional.pixel_unshuffle nn.functional.channel_shuffle
    unravel_index sum_to_size
""")
CREATION = _names("""
    full full_like new_full zeros zeros_like new_zeros ones ones_like new_ones arange linspace
    logspace linspace.tensor_overload logspace.tensor_overload eye scalar_tensor fill zero_ tril
    triu tril_indices triu_indices nn.functional.one_hot
""")
REDUCTION = _names("""
    sum mean prod amax amin max.reduction_with_dim max.reduction_no_dim min.reduction_with_dim
    min.reduction_no_dim argmax argmin aminmax any all count_nonzero nansum nanmean var var.unbiased
    std std.unbiased var_mean var_mean.unbiased std_mean std_mean.unbiased norm norm.fro norm.inf
    linalg.vector_norm dist trace cumsum cumprod cummax cummin
    logcumsumexp logsumexp softmax softmax.with_dtype log_softmax log_softmax.with_dtype
    _softmax_backward_data nn.functional.softmin nn.functional.softmin.with_dtype
    torch.ops.aten._safe_softmax.default nn.functional.normalize nn.functional.cosine_similarity
    renorm diff gradient trapezoid cumulative_trapezoid cov corrcoef linalg.vecdot
    nn.functional.pairwise_distance masked.sum masked.prod masked.amax masked.amin masked.mean
    masked.var masked.softmax masked.log_softmax masked.cumsum masked.argmax masked.logsumexp
""")
TRUTH = _names("""
    sum prod amax amin max.reduction_with_dim argmax any all count_nonzero cumsum cummax
""")
LOSS = _names("""
    nn.functional.cross_entropy nn.functional.nll_loss nn.functional.mse_loss nn.functional.l1_loss
    nn.functional.smooth_l1_loss nn.functional.huber_loss nn.functional.kl_div
    nn.functional.binary_cross_entropy nn.functional.binary_cross_entropy_with_logits
    nn.functional.soft_margin_loss nn.functional.margin_ranking_loss
    nn.functional.hinge_embedding_loss nn.functional.cosine_embedding_loss
    nn.functional.triplet_margin_loss nn.functional.gaussian_nll_loss nn.functional.poisson_nll_loss
    nn.functional.multi_margin_loss nn.functional.multilabel_margin_loss
    nn.functional.multilabel_soft_margin_loss
""")
INDEXING = _names("""
    gather take take_along_dim index_select index_fill index_copy index_add index_reduce.mean
    index_reduce.prod index_reduce.amin index_reduce.amax index_put put scatter scatter_add
    scatter_reduce.sum scatter_reduce.prod scatter_reduce.mean scatter_reduce.amin
    scatter_reduce.amax masked_scatter nn.functional.embedding _unsafe_masked_index
    _unsafe_masked_index_put_accumulate
""")
SORT = _names("""
    sort argsort msort topk kthvalue median nanmedian mode searchsorted bucketize quantile
    nanquantile histc
""")
ATTENTION = _names("""
    nn.functional.scaled_dot_product_attention nn.functional.multi_head_attention_forward
""")
CONVOLUTION = _names("""
    nn.functional.conv1d nn.functional.conv2d nn.functional.conv3d nn.functional.conv_transpose1d
    nn.functional.conv_transpose2d nn.functional.conv_transpose3d
""")
NORMALIZATION = _names("""
    native_layer_norm native_batch_norm nn.functional.layer_norm nn.functional.group_norm
    nn.functional.instance_norm nn.functional.batch_norm nn.functional.rms_norm
    nn.functional.local_response_norm
""")
POOLING = _names("""
    nn.functional.max_pool1d nn.functional.max_pool2d nn.functional.max_pool3d
    nn.functional.avg_pool1d nn.functional.avg_pool2d nn.functional.avg_pool3d
    nn.functional.adaptive_avg_pool1d nn.functional.adaptive_avg_pool2d
    nn.functional.adaptive_avg_pool3d nn.functional.adaptive_max_pool1d
    nn.functional.adaptive_max_pool2d nn.functional.adaptive_max_pool3d nn.functional.max_unpool1d
    nn.functional.max_unpool2d nn.functional.max_unpool3d
""")
RESIZE = _names("""
    nn.functional.pad.reflect nn.functional.pad.replicate nn.functional.pad.replicate_negative
    nn.functional.interpolate.nearest nn.functional.interpolate.nearest-exact
    nn.functional.interpolate.linear nn.functional.interpolate.bilinear
    nn.functional.interpolate.bicubic nn.functional.interpolate.trilinear
    nn.functional.interpolate.area nn.functional.grid_sample nn.functional.unfold
""")
FFT = _names("""
    fft.fft fft.fft2 fft.fftn fft.hfft fft.hfft2 fft.hfftn fft.rfft fft.rfftn fft.ifft fft.ifft2
    fft.ifftn fft.ihfft fft.ihfftn fft.irfft fft.irfft2 fft.irfftn fft.fftshift stft istft
""")
LINALG = _names("""
    cholesky_inverse cholesky_solve cross geqrf lu_unpack matrix_exp linalg.det linalg.cholesky
    linalg.cholesky_ex linalg.cond linalg.eig linalg.eigvals linalg.eigh linalg.eigvalsh
    linalg.householder_product linalg.matrix_power linalg.multi_dot linalg.norm linalg.matrix_norm
    linalg.qr linalg.slogdet linalg.vander linalg.lu_factor_ex linalg.lu linalg.lu_solve linalg.inv
    linalg.solve linalg.solve_ex linalg.solve_triangular linalg.matrix_rank linalg.pinv
    linalg.pinv.hermitian linalg.svd linalg.svdvals linalg.tensorinv linalg.tensorsolve ormqr
    triangular_solve logdet
""")
COMPLEX_LINALG = _names("""
    cholesky_solve lu_unpack linalg.det linalg.cholesky_ex linalg.eigvals linalg.eigvalsh linalg.inv
    linalg.lu linalg.lu_solve linalg.pinv.hermitian linalg.qr linalg.slogdet linalg.solve
    linalg.solve_triangular linalg.svdvals fft.fft fft.ifftn fft.irfft2 fft.hfftn
    nn.functional.conv2d nn.functional.conv_transpose1d
""")
DISTANCE = _names("cdist nn.functional.pdist")

# A family's OpInfo names and the dtypes all of them are tried with, where torch has them.
FAMILIES: dict[str, tuple[tuple[str, ...], tuple[torch.dtype, ...]]] = {
    "matmul": (MATMUL, (f32, bf16, i64, c64)),
    "pointwise": (POINTWISE, (f32, bf16, i64)),
    "complex": (COMPLEX, (c64,)),
    "bytes": (BYTES, (u8,)),
    "special": (SPECIAL, (f32, bf16, i64)),
    "slow special": (SLOW_SPECIAL, (f32,)),
    "activation": (ACTIVATION, (f32, bf16, i64)),
    "comparison": (COMPARISON, (f32, bf16, i64, bool_)),
    "bitwise": (BITWISE, (i64, u8, bool_)),
    "convert": (CONVERT, (f32, i64, c64)),
    "view": (VIEW, (f32,)),
    "creation": (CREATION, (f32, i64)),
    "reduction": (REDUCTION, (f32, bf16, i64)),
    "truth": (TRUTH, (bool_, u8)),
    "loss": (LOSS, (f32, bf16)),
    "indexing": (INDEXING, (f32, bf16, i64)),
    "sort": (SORT, (f32, bf16, i64)),
    "attention": (ATTENTION, (f32, bf16)),
    "convolution": (CONVOLUTION, (f32, bf16, i64)),
    "pooling": (POOLING, (f32, bf16, i64)),
    "resize": (RESIZE, (f32, bf16)),
    "fft": (FFT, (f32,)),
    "linalg": (LINALG, (f32,)),
    "complex linalg": (COMPLEX_LINALG, (c64,)),
    "distance": (DISTANCE, (f32,)),
    "normalization": (NORMALIZATION, (f32, bf16)),
}


def _tensor_argument(sample: SampleInput) -> bool:
    return any(isinstance(a, torch.Tensor) for a in (*sample.args, *sample.kwargs.values()))


def _mask_index(sample: SampleInput) -> bool:
    leaves = pytree.tree_leaves((sample.args, sample.kwargs))
    return any(isinstance(a, torch.Tensor) and a.dtype in (torch.bool, torch.uint8) for a in leaves)


def _dropout(sample: SampleInput) -> bool:
    return sample.kwargs.get("dropout_p", 0) > 0


def _minus_one_class(sample: SampleInput) -> bool:
    return sample.kwargs.get("num_classes", -1) < 0


def _gapped(sample: SampleInput) -> bool:
    return not sample.input.is_contiguous() or sample.input.storage_offset() != 0


ASKS = "asks for a value while it is traced"
NO_RULE = "no rule: XLA has no such function"
# Eager rounds to bf16 after each step of these; the rules round once.
COARSE = {bf16: (3e-2, 3e-2)}
# Eager adds in bf16, update by update; the rules add in float32 and round once.
ADDS_IN_BF16 = {bf16: (1e-1, 3e-1)}
TIES = "which of equal elements comes first is not promised"


def _single_element(sample: SampleInput) -> bool:
    return sample.input.numel() == 1


def _drops_weights(sample: SampleInput) -> bool:
    return len(sample.args) > 9 and sample.args[9] > 0


# eager sums the batch's variance in bfloat16
_STATISTICS = Expect(mutates="running statistics", tolerances={bf16: (0.02, 0.05)})
# sums in another order, of values of another size
NEARLY = Expect(rtol=1e-4, atol=1e-3, tolerances={c64: (1e-4, 1e-3)})
_ONE = Expect(drop=("eager's result for one element is rounding noise", _single_element))

EXPECT: dict[str, Expect] = {
    "nn.functional.multi_head_attention_forward": Expect(
        drop=("other random bits", _drops_weights)
    ),
    "nn.functional.conv2d": Expect(rtol=1e-5, atol=1e-4, tolerances={c64: (1e-4, 1e-3)}),
    "nn.functional.conv3d": Expect(rtol=1e-5, atol=1e-4, tolerances={c64: (1e-4, 1e-3)}),
    # eager's loop accumulates transposed convolutions in bfloat16
    "nn.functional.conv_transpose1d": Expect(tolerances={bf16: (0.05, 1.0)}),
    "nn.functional.conv_transpose2d": Expect(rtol=1e-5, atol=1e-4, tolerances={bf16: (0.05, 1.0)}),
    "nn.functional.conv_transpose3d": Expect(
        rtol=1e-5, atol=1e-4, tolerances={bf16: (0.05, 5.0), c64: (1e-4, 1e-3)}
    ),
    # eager sums in bfloat16
    "nn.functional.adaptive_avg_pool3d": Expect(tolerances={bf16: (0.05, 0.05)}),
    "nn.functional.interpolate.area": Expect(tolerances={bf16: (0.05, 0.05)}),
    "nn.functional.interpolate.linear": Expect(rtol=1e-5, tolerances=COARSE),
    "nn.functional.interpolate.bilinear": Expect(rtol=1e-5, tolerances=COARSE),
    "nn.functional.interpolate.bicubic": Expect(rtol=1e-5, tolerances=COARSE),
    "nn.functional.interpolate.trilinear": Expect(rtol=1e-5, tolerances=COARSE),
    "nn.functional.grid_sample": Expect(
        rtol=1e-5, atol=1e-4, xfail={bf16: "eager computes places in bfloat16"}
    ),
    "fft.hfft2": NEARLY,
    "fft.hfftn": NEARLY,
    "cdist": NEARLY,
    "matrix_exp": Expect(rtol=1e-3, atol=1e-2, tolerances={c64: (1e-3, 1e-2)}),
    "linalg.cond": NEARLY,
    "linalg.eigh": NEARLY,
    "linalg.householder_product": NEARLY,
    "linalg.pinv": NEARLY,
    "linalg.pinv.hermitian": NEARLY,
    "linalg.tensorsolve": NEARLY,
    "linalg.solve": NEARLY,
    "linalg.inv": NEARLY,
    "triangular_solve": NEARLY,
    "native_batch_norm": _STATISTICS,
    "_native_batch_norm_legit": _STATISTICS,
    "nn.functional.batch_norm": _STATISTICS,
    "nn.functional.instance_norm": _STATISTICS,
    "native_layer_norm": _ONE,
    "nn.functional.layer_norm": _ONE,
    # Samples have scores up to 200, which float32 rounds by up to 8e-6. A gradient is that part of
    # products up to 300: weights recomputed from scores summed in another order differ by as much.
    "nn.functional.scaled_dot_product_attention": Expect(
        rtol=1e-5, atol=5e-4, drop=("other random bits", _dropout)
    ),
    "narrow": Expect(drop=("a start read from a tensor", _tensor_argument)),
    "tensor_split": Expect(drop=("places read from a tensor", _tensor_argument)),
    "index_put": Expect(drop=("a mask's result has a size that depends on it", _mask_index)),
    "__getitem__": Expect(drop=("a mask's result has a size that depends on it", _mask_index)),
    "as_strided.partial_views": Expect(drop=("reads memory outside of its operand", _gapped)),
    "nn.functional.one_hot": Expect(
        drop=("a size that depends on the data", _minus_one_class),
    ),
    "nn.functional.embedding": Expect(
        drop=("max_norm changes the weight in place", lambda s: "max_norm" in s.kwargs)
    ),
    "index_fill": Expect(forward_only="its gradient looks for duplicates with unique"),
    "equal": Expect(xfail=ASKS),
    "allclose": Expect(xfail=ASKS),
    "cov": Expect(xfail=ASKS),
    "corrcoef": Expect(xfail=ASKS),
    "combinations": Expect(xfail=ASKS),
    "nn.functional.gaussian_nll_loss": Expect(xfail=ASKS),
    "special.bessel_j0": Expect(xfail=NO_RULE),
    "special.bessel_j1": Expect(xfail=NO_RULE),
    "special.spherical_bessel_j0": Expect(xfail=NO_RULE),
    "mode": Expect(xfail="no rule: in XLA it would take a sort and a scan"),
    "sort": Expect(values_only=TIES),
    "topk": Expect(values_only=TIES),
    "kthvalue": Expect(values_only=TIES),
    "median": Expect(values_only=TIES),
    "nanmedian": Expect(values_only=TIES),
    "argsort": Expect(xfail={bf16: TIES}),
    "addbmm": Expect(atol=2e-5, rtol=1e-5, tolerances=ADDS_IN_BF16),
    "baddbmm": Expect(tolerances={c64: (1e-5, 1e-4)}),
    **dict.fromkeys((f"polygamma.polygamma_n_{n}" for n in range(3)), Expect(rtol=1e-5)),
    "pow": Expect(rtol=1e-5, tolerances={c64: (1e-5, 1e-4)}),
    "__rpow__": Expect(rtol=1e-5),
    "asin": Expect(rtol=1e-5),
    "atanh": Expect(rtol=1e-5),
    "erfinv": Expect(rtol=1e-5),
    "log_softmax": Expect(tolerances=COARSE),
    "masked.log_softmax": Expect(tolerances=COARSE),
    "nn.functional.nll_loss": Expect(tolerances=COARSE),
    "logcumsumexp": Expect(rtol=1e-2, atol=5e-3),  # the gradient is a difference of exponentials
    "index_reduce.mean": Expect(tolerances=ADDS_IN_BF16),
    "_unsafe_masked_index_put_accumulate": Expect(tolerances=ADDS_IN_BF16),
}


@functools.cache
def by_name() -> dict[str, OpInfo]:
    """torch's OpInfos by full name; the first of equal names."""
    out: dict[str, OpInfo] = {}
    for op in op_db:
        out.setdefault(op.full_name, op)
    return out


def cases() -> Iterator[tuple[str, torch.dtype]]:
    """All (op name, dtype) pairs to run."""
    for names, dtypes in FAMILIES.values():
        for name in names:
            for dtype in dtypes:
                if dtype in by_name()[name].supported_dtypes("cpu"):
                    yield name, dtype


def samples(op: OpInfo, dtype: torch.dtype, *, requires_grad: bool) -> list[SampleInput]:
    """Up to ``SAMPLES`` of an op's samples, the same ones in each run."""
    torch.manual_seed(0)
    every = op.sample_inputs("cpu", dtype, requires_grad=requires_grad)
    drop = EXPECT.get(op.full_name, Expect()).drop
    every = [s for s in itertools.islice(every, 400) if drop is None or not drop[1](s)]
    step = max(1, len(every) / SAMPLES)
    picks = sorted({int(i * step) for i in range(min(SAMPLES, len(every)))})
    return [every[i] for i in picks]


@dataclass
class Call:
    """One sample as a function of its tensors alone."""

    op: OpInfo
    sample: SampleInput
    first_only: bool = False

    def __post_init__(self) -> None:
        self.mutates = EXPECT.get(self.op.full_name, Expect()).mutates
        tree = (self.sample.input, self.sample.args, self.sample.kwargs)
        self.leaves, self.spec = pytree.tree_flatten(tree)
        self.tensors = [
            t.detach().requires_grad_(t.requires_grad)
            for t in self.leaves
            if isinstance(t, torch.Tensor)
        ]

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        feed = iter(t.clone() for t in tensors) if self.mutates else iter(tensors)
        leaves = [next(feed) if isinstance(v, torch.Tensor) else v for v in self.leaves]
        x, args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        out = self.sample.output_process_fn_grad(self.op.op(x, *args, **kwargs))
        outs = [t.clone() for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor)]
        return outs[:1] if self.first_only else outs
