"""Published figures of TPU chips, and what of a chip one JAX device has.

Sources, by figure:

- bfloat16, int8 and fp8 peaks, HBM capacity and bandwidth, ICI bandwidth, TensorCores: Google's
  pages of each chip, ``https://docs.cloud.google.com/tpu/docs/`` ``v4``, ``v5e``, ``v5p``, ``v6e``
  and ``tpu7x``. A "GB" of capacity there is a GiB: the compiler reports that much.
- ICI bandwidth of v4, which its page leaves out: 6 links of 50 GB/s each way, "TPU v4: An
  Optically Reconfigurable Supercomputer" (https://arxiv.org/abs/2304.01433).
- VMEM, int4 peaks, and v5p's int8 peak: JAX's hardware reference,
  https://docs.jax.dev/en/latest/pallas/tpu/hardware.html.
- float32: not published. The MXU multiplies bfloat16, and takes 6 passes for a float32 product
  at ``Precision.HIGHEST`` (3 at ``HIGH``), so the peak is a sixth of bfloat16's.
- HBM a program can use: what the TPU compiler says when it runs out of it. Of v5p that is more than
  the "95 GB" on its page, so its capacity is JAX's 96 GiB here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tpu_compile.aot.errors import UnknownChip
from tpu_compile.aot.products import PASSES

GIB = 2**30
TERA = 1e12
GIGA = 1e9


@dataclass(frozen=True)
class DeviceSpec:
    """What one JAX device has.

    Args:
        chip: name of the chip's generation, such as ``v6e``.
        peak_flops: dense FLOP/s of matrix products by the operands' type, at one MXU pass.
        hbm_bytes: HBM capacity.
        usable_hbm_bytes: of it, what the compiler lets a program have.
        hbm_bandwidth: bytes/s, reads and writes together.
        ici_bandwidth: bytes/s that it can send, on all links together. Receiving is apart.
        vmem_bytes: VMEM capacity.
    """

    chip: str
    peak_flops: Mapping[str, float]
    hbm_bytes: float
    usable_hbm_bytes: float
    hbm_bandwidth: float
    ici_bandwidth: float
    vmem_bytes: float

    def peak(self, dtype: str) -> float:
        """FLOP/s of products of an HLO type; of one the MXU lacks, those of what it is cast to.

        float32 has the figure of one pass here, since the passes depend on the product.
        """
        kind = _KIND.get(dtype) or ("fp8" if dtype.startswith("f8") else "bf16")
        return self.peak_flops.get(kind, self.peak_flops["bf16"])


_KIND = {"s8": "int8", "u8": "int8", "s4": "int4", "u4": "int4", "s2": "int4", "u2": "int4"}


@dataclass(frozen=True)
class ChipSpec:
    """What one chip has, as published.

    Args:
        name: of the generation, as in topology names such as ``v6e:2x2``.
        devices: JAX devices on it when compiling for a topology. The two TensorCores are one
            device on v5p ("megacore"), and two on tpu7x and on v4 (on which they are one, too,
            when it is attached and not described).
        cores: TensorCores on it.
        peak_flops: dense FLOP/s of matrix products, by ``bf16``, ``int8``, ``fp8``, ``int4``; those
            that the chip has at a rate of its own.
        hbm_bytes: HBM capacity.
        usable_hbm_bytes: of it, what the compiler lets programs have.
        hbm_bandwidth: bytes/s.
        ici_bandwidth: bytes/s in one direction, of all links: half of the published figure, which
            adds both directions up.
        vmem_bytes: VMEM of all cores.
    """

    name: str
    devices: int
    cores: int
    peak_flops: Mapping[str, float]
    hbm_bytes: float
    usable_hbm_bytes: float
    hbm_bandwidth: float
    ici_bandwidth: float
    vmem_bytes: float

    @property
    def fp32_flops(self) -> float:
        """FLOP/s of float32 products at ``Precision.HIGHEST``, derived from bfloat16's."""
        return self.peak_flops["bf16"] / PASSES["highest"]

    @property
    def per_device(self) -> DeviceSpec:
        """The share of one JAX device."""
        return DeviceSpec(
            self.name,
            {kind: flops / self.devices for kind, flops in self.peak_flops.items()},
            self.hbm_bytes / self.devices,
            self.usable_hbm_bytes / self.devices,
            self.hbm_bandwidth / self.devices,
            self.ici_bandwidth / self.devices,
            self.vmem_bytes / self.devices,
        )


def _chip(
    name: str,
    *,
    devices: int = 1,
    cores: int,
    teraflops: Mapping[str, float],
    hbm: float,
    usable_hbm: float,
    hbm_bandwidth: float,
    ici_both_ways: float,
    vmem: float,
) -> ChipSpec:
    """A chip from figures in TFLOP/s, GiB, GB/s and, for VMEM, MiB."""
    return ChipSpec(
        name,
        devices,
        cores,
        {kind: figure * TERA for kind, figure in teraflops.items()},
        hbm * GIB,
        usable_hbm * GIB,
        hbm_bandwidth * GIGA,
        ici_both_ways / 2 * GIGA,
        vmem * 2**20,
    )


CHIPS: Mapping[str, ChipSpec] = {
    chip.name: chip
    for chip in (
        _chip(
            "v4", devices=2, cores=2, teraflops={"bf16": 275, "int8": 275},
            hbm=32, usable_hbm=30.5, hbm_bandwidth=1200, ici_both_ways=600, vmem=32,
        ),
        _chip(
            "v5e", cores=1, teraflops={"bf16": 197, "int8": 393, "int4": 788},
            hbm=16, usable_hbm=15.75, hbm_bandwidth=819, ici_both_ways=400, vmem=128,
        ),
        _chip(
            "v5p", cores=2, teraflops={"bf16": 459, "fp8": 459, "int8": 918, "int4": 1840},
            hbm=96, usable_hbm=95.74, hbm_bandwidth=2765, ici_both_ways=1200, vmem=128,
        ),
        _chip(
            "v6e", cores=1, teraflops={"bf16": 918, "fp8": 918, "int8": 1836, "int4": 3680},
            hbm=32, usable_hbm=31.25, hbm_bandwidth=1638, ici_both_ways=800, vmem=128,
        ),
        _chip(
            "tpu7x", devices=2, cores=2, teraflops={"bf16": 2307, "fp8": 4614},
            hbm=192, usable_hbm=189.5, hbm_bandwidth=7380, ici_both_ways=1200, vmem=128,
        ),
    )
}  # fmt: skip

_DEVICE_KINDS = {
    "tpu v4": "v4",
    "tpu v5 lite": "v5e",
    "tpu v5e": "v5e",
    "tpu v5": "v5p",
    "tpu v5p": "v5p",
    "tpu v6 lite": "v6e",
    "tpu v6e": "v6e",
    "tpu7x": "tpu7x",
}


def find(name: str) -> ChipSpec:
    """The chip by its name, a topology's (``v6e:2x2``) or JAX's ``device_kind``.

    Raises:
        UnknownChip: there are no figures for it.
    """
    key = re.split(r"[:]", name.strip().lower())[0]
    key = _DEVICE_KINDS.get(key, key)
    if key not in CHIPS:
        raise UnknownChip(name=name, known=", ".join(CHIPS))
    return CHIPS[key]
