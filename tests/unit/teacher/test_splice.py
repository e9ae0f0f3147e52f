import pytest
from hintloop_teacher.errors import NoHintPlaceError
from hintloop_teacher.splice import Markers, end_of_last, find_markers

# A template in ids: 1 = turn begins, 2 = turn ends, 3 = newline, 10/11/12 = system/user/assistant.
HEADER, CLOSING, TAIL = (2, 3, 1, 11, 3), (2, 3), (2, 3, 1, 12, 3)


def turn(role: int, *content: int) -> list[int]:
    return [1, role, 3, *content, 2, 3]


ASK = [1, 12, 3]
MARKERS = Markers(HEADER, CLOSING, TAIL)


def test_markers_are_found_from_renderings() -> None:
    system = turn(10, 50)
    one, other = turn(11, 60, 61), turn(11, 70, 71)
    history = turn(11, 80) + turn(12, 81)
    found = find_markers(
        (system + one + ASK, system + other + ASK),
        (system + one, system + other),
        (system + history + one + ASK, system + history + other + ASK),
    )
    assert found == MARKERS


def test_a_template_without_markers() -> None:
    with pytest.raises(NoHintPlaceError):
        find_markers(([60], [70]), ([60], [70]), ([80, 81, 60], [80, 81, 70]))


def test_the_last_user_ends_before_the_generation_prompt() -> None:
    ids = turn(10, 50) + turn(11, 60) + turn(12, 61) + turn(11, 62, 63) + ASK
    place = end_of_last(ids, MARKERS, num_blocks=2, is_last=True)
    assert ids[place - 1 : place + 2] == [63, 2, 3]


def test_the_last_user_lies_before_tool_output() -> None:
    ids = turn(10, 50) + turn(11, 60, 61) + turn(12, 62) + turn(13, 63) + ASK
    place = end_of_last(ids, MARKERS, num_blocks=1, is_last=False)
    assert ids[place - 1 : place + 2] == [61, 2, 3]


@pytest.mark.parametrize(
    ("ids", "num_blocks", "is_last"),
    [
        (turn(10, 50) + ASK, 1, True),  # no user in the ids
        (turn(10, 50) + turn(11, 60) + turn(11, 61) + ASK, 1, True),  # more users than messages
        (turn(10, 50) + turn(11, 60, 2, 3, 61) + ASK, 1, True),  # the content holds the closing marker
        (turn(10, 50) + turn(11, 60) + ASK + [99], 1, True),  # the engine opened the answer itself
        ([*turn(10, 50), 1, 11, 3, 60], 1, False),  # never closed
    ],
)
def test_ambiguous_places(ids: list[int], num_blocks: int, is_last: bool) -> None:
    with pytest.raises(NoHintPlaceError):
        end_of_last(ids, MARKERS, num_blocks=num_blocks, is_last=is_last)
