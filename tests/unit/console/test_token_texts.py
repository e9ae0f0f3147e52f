"""What tokens read as: in their place, alone, and without a tokenizer."""

import json

import pytest
from hintloop_console.token_texts import PARTIAL, TokenTexts
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(["hello there hello there hello"], trainer)
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def encode(directory):
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("text", ["hello there", "naïve 世界 🎉!", " hello", "", "<|end|>hello"])
def test_texts_of_tokens_are_the_answer(directory, encode, text):
    ids = encode(text)
    texts = TokenTexts(str(directory)).of_answer(ids, encode("hello"))
    assert len(texts) == len(ids)
    assert "".join(t for t in texts if t != PARTIAL) == text


def test_a_character_of_several_tokens_stands_at_its_last(directory, encode):
    ids = encode("世")
    assert TokenTexts(str(directory)).of_answer(ids) == [PARTIAL] * (len(ids) - 1) + ["世"]


def test_bytes_that_never_become_a_character_spoil_no_other(directory, encode):
    part = encode("世")[0]
    texts = TokenTexts(str(directory)).of_answer([part, part, *encode("hello"), part])
    assert texts[:2] == [PARTIAL, PARTIAL] and texts[-1] == PARTIAL
    assert "".join(texts[2:-1]) == "hello"


def test_a_decoder_that_changes_what_stands_before_a_token_hides_no_answer(tmp_path):
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 2}, unk_token="a"))
    tokenizer.decoder = decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "XYZ")])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert TokenTexts(str(tmp_path)).of_answer([0, 1, 2], before=[0, 1]) == ["a", "b", "c"]


def test_a_candidate_that_is_no_character_is_written_in_bytes(directory, encode):
    tokens = TokenTexts(str(directory))
    assert tokens.of_candidate(encode("世")[0]) == "<0xE4>"
    assert tokens.of_candidate(encode("hello")[0]) == Tokenizer.from_file(str(directory / "tokenizer.json")).decode(
        encode("hello")[:1]
    )
    assert tokens.of_candidate(0) == "<|end|>"
    assert tokens.of_candidate(10**6) == PARTIAL


def test_without_a_tokenizer_there_are_ids_alone(tmp_path):
    for directory in ("", str(tmp_path / "nowhere")):
        tokens = TokenTexts(directory)
        assert tokens.of_answer([1, 2]) == [None, None] and tokens.of_candidate(1) is None
    (tmp_path / "tokenizer.json").write_text(json.dumps({"no": "tokenizer"}))
    assert TokenTexts(str(tmp_path)).of_answer([1]) == [None]
