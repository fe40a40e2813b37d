"""Figures of chips, against JAX's own table and what the compiler says."""

import hlo_programs as programs
import jax
import pytest
from jax.experimental.pallas import tpu as pltpu

from tpu_compile.aot import chip_specs
from tpu_compile.aot.chip_specs import CHIPS, GIB, UnknownChip, find

TOPOLOGIES = {
    "v4": "v4:2x2x1",
    "v5e": "v5e:2x2",
    "v5p": "v5p:2x2x1",
    "v6e": "v6e:2x2",
    "tpu7x": "tpu7x:2x2x1",
}


@pytest.mark.parametrize("name", CHIPS)
def test_equals_jax_table(name: str) -> None:
    chip = CHIPS[name]
    version = next(v for v in pltpu.ChipVersion if v.value == name.removeprefix("tpu"))
    device = chip.per_device
    cores = chip.cores // chip.devices
    info = pltpu.get_tpu_info_for_chip(version, cores)
    assert device.peak_flops["bf16"] == pytest.approx(info.bf16_ops_per_second * cores, rel=0.01)
    assert device.hbm_bytes == pytest.approx(info.hbm_capacity_bytes * cores, rel=0.02)
    assert device.vmem_bytes == info.vmem_capacity_bytes * cores
    # JAX's bandwidth of v5p is 11% under the one Google publishes
    assert device.hbm_bandwidth == pytest.approx(info.mem_bw_bytes_per_second * cores, rel=0.13)
    for kind in ("int8", "fp8", "int4"):
        theirs = getattr(info, f"{kind}_ops_per_second") * cores
        if theirs:
            assert device.peak_flops[kind] == pytest.approx(theirs, rel=0.01)


@pytest.mark.parametrize("name", CHIPS)
def test_devices_and_their_names(name: str) -> None:
    chip = CHIPS[name]
    devices = programs.devices(TOPOLOGIES[name])
    assert len(devices) == 4 * chip.devices
    assert devices[0].num_cores == chip.cores / chip.devices
    assert find(devices[0].device_kind) is chip
    assert find(TOPOLOGIES[name]) is chip
    assert find(name.upper()) is chip


def test_a_share_of_a_chip() -> None:
    chip, device = CHIPS["tpu7x"], CHIPS["tpu7x"].per_device
    assert chip.devices == 2
    assert device.hbm_bytes == 96 * GIB
    assert device.peak("bf16") == chip.peak_flops["bf16"] / 2
    assert device.ici_bandwidth == 300e9  # two devices, two directions


def test_peaks_by_type() -> None:
    device = CHIPS["v5e"].per_device
    assert device.peak("bf16") == device.peak("f32") == 197e12
    assert device.peak("s8") == device.peak("u8") == 393e12
    assert device.peak("f8e4m3fn") == 197e12  # no fp8 in this MXU: cast to bfloat16
    assert CHIPS["tpu7x"].per_device.peak("f8e5m2") == 2307e12
    assert CHIPS["v6e"].fp32_flops == 918e12 / 6


def test_unknown_chip() -> None:
    with pytest.raises(UnknownChip, match=r"no TPU chip is called 'v9:2x2'. Known chips: v4, v5e"):
        find("v9:2x2")


@pytest.mark.parametrize("name", CHIPS)
def test_usable_memory_is_what_the_compiler_says(name: str) -> None:
    device = CHIPS[name].per_device
    rows = int(device.hbm_bytes) // 2**20
    # two arguments of the device's size each don't fit
    shape = programs.array(rows, 2**18)
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        programs.compile_for(TOPOLOGIES[name], lambda x, y: x + y, shape, shape)
    assert f"exceeds available HBM ({device.usable_hbm_bytes / GIB:.2f}G)" in str(caught.value)


def test_every_figure_is_documented() -> None:
    for name in CHIPS:
        assert name in (chip_specs.__doc__ or "")
