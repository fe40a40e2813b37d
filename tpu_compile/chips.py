"""Which TPU chips are attached to this machine, found with no library loaded."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

GOOGLE_PCI_VENDOR = "0x1ae0"

# PCI device ids of the vendor above (which makes network cards, too).
TPU_CHIPS = {
    "0x0027": "v2 or v3",
    "0x005e": "v4",
    "0x0062": "v5p",
    "0x0063": "v5e",
    "0x006f": "v6e",
    "0x0076": "tpu7x",
}


def attached() -> tuple[str, ...]:
    """The generation of each attached chip."""
    chips = []
    for vendor in Path("/sys/bus/pci/devices").glob("*/vendor"):
        with suppress(OSError):  # a device that goes away meanwhile
            if vendor.read_text().strip() == GOOGLE_PCI_VENDOR:
                kind = TPU_CHIPS.get((vendor.parent / "device").read_text().strip())
                chips += [kind] if kind else []
    return tuple(chips)
