"""How far values are apart, against torch's own arithmetic; and pictures of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from endoscope.render.numbers import Numbers
from endoscope.render.registry import About, View
from endoscope.viewer.differences import comparable, difference, difference_picture, differing

G = torch.Generator().manual_seed(0)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128, torch.float32, torch.bfloat16])
def test_against_torch(dtype: torch.dtype) -> None:
    a, b = (torch.randn(3, 50, dtype=dtype, generator=G) for _ in range(2))
    found = difference(Numbers(a), Numbers(b))
    assert found is not None
    wide = torch.complex128 if dtype.is_complex else torch.float64
    x, y = a.to(wide).flatten(), b.to(wide).flatten()
    d = (x - y).abs()
    assert found.mean_abs == pytest.approx(d.mean().item())
    assert found.max_abs == pytest.approx(d.max().item())
    norms = x.norm().item(), y.norm().item()
    assert found.relative_l2 == pytest.approx((x - y).norm().item() / (sum(norms) / 2))
    assert found.cosine == pytest.approx(torch.vdot(y, x).real.item() / (norms[0] * norms[1]))
    assert (found.compared, found.of) == (150, 150)


def test_another_phase_is_another_value() -> None:
    z = torch.randn(4, 8, 8, dtype=torch.complex64, generator=G)
    found = difference(Numbers(z), Numbers(-z))
    assert found is not None
    assert found.relative_l2 == pytest.approx(2.0) and found.cosine == pytest.approx(-1.0)
    assert differing(Numbers(z), Numbers(-z)) == 1.0
    picture = difference_picture(Numbers(z), Numbers(-z), View(), About())
    same = difference_picture(Numbers(z), Numbers(z), View(), About())
    assert not np.array_equal(picture.pixels, same.pixels)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_the_last_digits_of_large_integers_count(dtype: type) -> None:
    a = np.array([2**60, 2**60, 5, 0], dtype)
    b = np.array([2**60 + 1, 2**60, 5, 7], dtype)
    found = difference(Numbers(a), Numbers(b))
    assert found is not None
    assert (found.max_abs, found.mean_abs) == (7.0, 2.0)
    assert difference(Numbers(a[:1]), Numbers(b[:1])).max_abs == 1.0  # type: ignore[union-attr]
    for more in (100, 130, 1 << 40):
        one, other = np.array([2**60 + more], dtype), np.array([2**60], dtype)
        assert difference(Numbers(one), Numbers(other)).max_abs == more  # type: ignore[union-attr]
        x, y = comparable(2**60 + more), comparable(2**60)
        assert x is not None and y is not None
        assert difference(x, y).max_abs == more  # type: ignore[union-attr]


def test_a_real_beside_a_complex_and_a_magnitude_beyond_doubles() -> None:
    real, both = torch.ones(4), torch.full((4,), 1 + 1j)
    found = difference(Numbers(real), Numbers(both))
    assert found is not None and found.max_abs == pytest.approx(1.0) and found.cosine == pytest.approx(0.5**0.5)
    huge = torch.tensor([1.5e308 + 1.5e308j, 1.0], dtype=torch.complex128)
    found = difference(Numbers(huge), Numbers(-huge))
    assert found is not None and (found.compared, found.of, found.relative_l2) == (1, 2, 2.0)


def test_what_is_not_finite_is_left_out() -> None:
    nan, inf = float("nan"), float("inf")
    a = torch.tensor([1.0, nan, inf, 4.0])
    found = difference(Numbers(a), Numbers(torch.zeros(4)))
    assert found is not None
    assert (found.max_abs, found.compared, found.of) == (4.0, 2, 4)
    huge = torch.tensor([1e300], dtype=torch.float64)
    assert difference(Numbers(huge), Numbers(-huge)).max_abs == pytest.approx(2e300)  # type: ignore[union-attr]


def test_the_difference_of_an_image_is_the_mean_over_its_channels() -> None:
    a, b = torch.zeros(1, 3, 8, 8), torch.zeros(1, 3, 8, 8)
    a[0, 0, :4] = 1.0  # red alone, by all of the range: a third of it in the mean
    a[0, :, 4:] = 1.0
    drawn = difference_picture(Numbers(a), Numbers(b), View(), About("x", "inputs"), "image")
    top, bottom = (int(drawn.pixels[row, 0]) for row in (0, -1))
    middle = (len(np.asarray(drawn.table)) - 1) / 2
    assert (top - middle) / (bottom - middle) == pytest.approx(1 / 3, abs=0.02)
