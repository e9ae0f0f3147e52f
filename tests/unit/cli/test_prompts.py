import json
from pathlib import Path

import pytest
from hintloop.demo.prompts import Question, read_file, repeated, shipped, wordings
from hintloop.errors import PromptFileError


def test_shipped_questions_have_disjoint_topics() -> None:
    train, held_out = shipped("train"), shipped("eval")
    assert len(train) >= 64
    assert len(held_out) >= 64
    assert not {question.topic for question in train} & {question.topic for question in held_out}


def test_questions_never_state_the_preference() -> None:
    for question in shipped("train") + shipped("eval"):
        assert "sentence" not in question.prompt.lower()
    for said in wordings().complaints + wordings().confirmations:
        assert "one short sentence" in said.lower()


def test_reads_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        '{"prompt": "What is rain?", "topic": "rain"}\n\n{"prompt": "And snow?", "topic": "snow", "id": 7}\n'
    )
    assert read_file(path) == [Question("What is rain?", "rain"), Question("And snow?", "snow")]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("{not json", ["line 2", "not JSON", '{"prompt":']),
        ('["a"]', ["line 2", "not an object"]),
        ('{"prompt": "What is rain?"}', ["line 2", "'topic'", "missing", "add it"]),
        ('{"prompt": " ", "topic": "rain"}', ["line 2", "'prompt'", "' '", "not empty"]),
        ('{"prompt": 3, "topic": "rain"}', ["line 2", "'prompt'", "3", "string"]),
        ('{"prompt": "What is ?", "topic": "?"}', ["line 2", "'topic'", "'?'", "word"]),
    ],
)
def test_a_wrong_line_is_named_with_field_value_and_fix(tmp_path: Path, line: str, named: list[str]) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"prompt": "What is rain?", "topic": "rain"}) + "\n" + line + "\n")
    with pytest.raises(PromptFileError) as caught:
        read_file(path)
    for part in [f"{path}:2", *named]:
        assert part in str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b"\n\n", b"\xff\xfe"])
def test_a_missing_empty_or_undecodable_file_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "prompts.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PromptFileError, match="prompts.jsonl"):
        read_file(path)


def test_few_prompts_are_asked_again_until_a_rate_can_be_given() -> None:
    questions = [Question("a", "a"), Question("b", "b"), Question("c", "c")]
    asked = repeated(questions, 8)
    assert len(asked) == 8
    assert {asked.count(question) for question in questions} == {2, 3}
    assert repeated(questions * 30, 64) == questions * 30
