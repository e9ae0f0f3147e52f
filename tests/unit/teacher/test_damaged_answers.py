"""Engines' answers with one thing in them changed: read as what they say, or refused. Nothing else, and no crash."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hintloop_contract.errors import HintloopError
from hintloop_teacher.dialects.base import Dialect, Question
from hintloop_teacher.dialects.chat import ChatDialect
from hintloop_teacher.dialects.openai import OpenAiDialect
from hintloop_teacher.dialects.sglang import SglangDialect
from hintloop_teacher.dialects.vllm import VllmDialect
from hintloop_teacher.errors import MisalignedError, MissingError
from hintloop_teacher.forced import ForcedScores, check_scores, missing, with_candidates

from tests.scripted.scoring_engine import SIZE, WireEngine, chat_ids

IDS, START, TOP_K = [3, 9, 27, 14, 5, 33], 3, 4
MESSAGES = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "c"}]
CANDIDATES = [[1, 2, 60], [4, 5, 6], [1, 7, 8]]
BIG = 10**400
STRANGE: list[Any] = [
    None, True, False, 2**31, BIG, -BIG, 3.7, float("nan"), float("inf"), -9999.0, 0.5, "", "²", "5", "token_id:²",
    "token_id:-1", "token_id:" + "9" * 5000, [], [[]], [None], {}, [1, 2, 3], [-0.5], {"²": {"logprob": -1}}, SIZE,
]  # fmt: skip


class Engine:
    """Stands for a client: it gives what ``WireEngine`` would say, changed by ``damage``."""

    def __init__(self, kind: str, *flaws: str) -> None:
        self.wire = WireEngine(kind, flaws=set(flaws))
        self.damage: Any = None
        self.answers: dict[str, str] = {}

    async def post(self, path: str, body: dict[str, Any], **options: Any) -> Any:
        asked = json.dumps(body)
        if asked not in self.answers:
            self.answers[asked] = json.dumps(getattr(self.wire, f"_{self.wire.kind}_post")(path, body))
        answer = json.loads(self.answers[asked])
        return self.damage(answer) if self.damage else answer


KINDS: list[tuple[str, Any, tuple[str, ...]]] = [
    ("vllm", VllmDialect, ()),
    ("sglang", SglangDialect, ()),
    ("completions", OpenAiDialect, ()),
    ("chat", ChatDialect, ("echoes",)),
]


def question_of(kind: str) -> Question:
    if kind == "chat":
        ids = chat_ids(MESSAGES)
        return Question(ids[:4], ids[4:], TOP_K, messages=MESSAGES)
    return Question(IDS[:START], IDS[START:], TOP_K)


async def scored(dialect: Dialect, question: Question) -> ForcedScores:
    return check_scores(await dialect.score("teacher", question), question.response_ids, TOP_K, SIZE)


async def candidates(dialect: Dialect) -> ForcedScores:
    rows = await dialect.score_candidates("teacher", IDS[:START], IDS[START:], CANDIDATES)
    return with_candidates(np.full(len(CANDIDATES), -1, np.float32), CANDIDATES, rows)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield from [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def changed(answer: Any, path: tuple[Any, ...], value: Any) -> Any:
    inner = answer
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = copy.deepcopy(value)
    return answer


def damages(answer: Any) -> Iterator[Any]:
    for path in places(answer):
        for value in STRANGE:
            yield lambda found, path=path, value=value: changed(found, path, value)


@pytest.mark.parametrize(
    ("kind", "made_by", "flaws", "given"), [*((*row, False) for row in KINDS), ("sglang", SglangDialect, (), True)]
)
async def test_strange_values_are_refused_or_of_no_matter(
    kind: str, made_by: Any, flaws: tuple[str, ...], given: bool
) -> None:
    engine, question = Engine(kind, *flaws), question_of(kind)
    dialect: Dialect = made_by(engine)

    async def ask() -> ForcedScores:
        return await (candidates(dialect) if given else scored(dialect, question))

    right = await ask()
    num_refused = 0
    (answer,) = engine.answers.values()
    for damage in damages(json.loads(answer)):
        engine.damage = damage
        try:
            found = await ask()
        except HintloopError:
            num_refused += 1
            continue
        for name in ("logprobs", "topk_ids", "topk_logprobs", "tail_logprobs"):
            np.testing.assert_array_equal(getattr(found, name), getattr(right, name), err_msg=name)
    assert num_refused > 100


async def test_candidates_one_place_off_are_refused() -> None:
    engine = Engine("completions")
    dialect = OpenAiDialect(engine)  # type: ignore[arg-type]

    def shift(answer: Any) -> Any:
        tops = answer["choices"][0]["logprobs"]["top_logprobs"]
        tops.insert(0, None)
        return answer

    engine.damage = shift
    with pytest.raises(MissingError, match="6 tokens and 7 top_logprobs"):
        await scored(dialect, question_of("completions"))


async def test_a_candidate_that_is_none_of_the_students_ids_is_misaligned() -> None:
    raw = await SglangDialect(Engine("sglang")).score("teacher", question_of("sglang"))  # type: ignore[arg-type]
    largest = max(token for row in raw.candidates or () for token, _ in row)
    check_scores(raw, IDS[START:], TOP_K, largest + 1)
    with pytest.raises(MisalignedError, match=f"candidate {largest} .* none of {largest} ids"):
        check_scores(raw, IDS[START:], TOP_K, largest)


@pytest.mark.parametrize("value", [BIG, -BIG])
def test_a_number_beyond_all_floats_is_missing(value: int) -> None:
    assert missing(value) == "no float"
