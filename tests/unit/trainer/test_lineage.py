"""Which versions the weights descend from, also after going back."""

from __future__ import annotations

from hintloop_trainer.lineage import Lineage


def grown() -> Lineage:
    lineage = Lineage()
    for version, step in ((1, 0), (2, 1), (5, 3)):
        lineage.release(version, step)
    return lineage


def test_the_step_of_an_ancestor() -> None:
    assert [grown().step_of(version) for version in (1, 2, 5, 4)] == [0, 1, 3, None]


def test_a_lineage_cut_off_at_a_version_goes_on_from_there() -> None:
    lineage = grown().upto(2)
    assert (lineage.current, lineage.behind(1), lineage.behind(5)) == (2, 1, None)
    lineage.release(6, 1)
    # The same weights under a new number: nothing made by them is stale.
    assert (lineage.behind(2), lineage.behind(5)) == (0, None)
    assert grown().step_of(5) == 3


def test_of_a_stranger_nothing_is_left() -> None:
    assert grown().upto(3).versions == []
