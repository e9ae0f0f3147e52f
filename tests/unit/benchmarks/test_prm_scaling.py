"""How fast judges are, told from when each turn was committed."""

import numpy as np
import pytest

from benchmarks.prm.scaling import slope


def test_batches_of_four_a_second_are_four_turns_a_second() -> None:
    times = np.repeat(np.arange(10.0), 4)
    assert slope(times) == pytest.approx(4.0, rel=0.02)
    assert slope(times + 1e9) == pytest.approx(4.0, rel=0.02)


@pytest.mark.parametrize("times", [[], [3.0], [3.0, 3.0]])
def test_too_few_turns_tell_nothing(times: list[float]) -> None:
    assert slope(np.array(times)) == 0.0
