"""Fourier transforms against eager torch."""

from __future__ import annotations

import helpers
import pytest
import torch
from gradients import check, leaf

CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.mark.parametrize("norm", ["forward", "backward", "ortho"])
def test_normalizations(norm: str) -> None:
    torch.manual_seed(0)
    check(
        lambda x: [torch.fft.rfft(x, norm=norm), torch.fft.ihfft(x, norm=norm)],
        leaf(3, 8),
        **CLOSE,
    )
    z = leaf(3, 8, dtype=torch.complex64)
    check(
        lambda z: [
            torch.fft.fft(z, norm=norm),
            torch.fft.ifft(z, norm=norm),
            torch.fft.irfft(z, n=13, norm=norm),
            torch.fft.hfft(z, norm=norm),
        ],
        z,
        **CLOSE,
    )


def test_many_dimensions() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, 2, 5)
    helpers.compare(lambda x: torch.fft.fftn(x), x, **CLOSE)
    helpers.compare(lambda x: torch.fft.rfftn(x, dim=(0, 3, 1)), x, **CLOSE)
    helpers.compare(lambda x: torch.fft.irfftn(torch.fft.rfftn(x), s=x.shape), x, **CLOSE)


def test_double_precision_and_empty() -> None:
    helpers.compare(torch.fft.rfft, torch.randn(4, 9, dtype=torch.float64))
    (out,) = helpers.run_lowered(torch.fft.fft, [torch.randn(0, 9)])
    assert out.shape == (0, 9)


def test_short_time_transforms() -> None:
    x, window = torch.randn(2, 40), torch.hann_window(8)

    def there(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.stft(x, 8, window=w, return_complex=True)

    helpers.compare(there, x, window, **CLOSE)
