"""The labelled sets, and the numbers made of them."""

from collections import Counter

from benchmarks.prm.quality import SETS, Found, load, report, run


def test_the_sets_are_balanced_and_apart() -> None:
    tuned, held_out = load(SETS["set"]), load(SETS["held_out"])
    assert (len(tuned), len(held_out)) == (60, 20)
    assert set(Counter((triple.kind, triple.language) for triple in tuned).values()) == {6}
    assert set(Counter((triple.kind, triple.language) for triple in held_out).values()) == {2}
    assert len({str(triple.exchange) for triple in tuned + held_out}) == 80
    for triple in tuned + held_out:
        assert triple.score in (1, 0, -1)
        words = " ".join(str(message["content"]) for message in triple.exchange.next_state).lower()
        assert all(word in words for word in (triple.hint if isinstance(triple.hint, list) else []))


def test_precision_and_recall_by_hand() -> None:
    triples = {triple.name: triple for triple in load(SETS["set"])}
    right = Found(triples["correction-en-6"], -1, "Newest first please.")
    wrong_hint = Found(triples["correction-en-3"], -1, "In grams.")
    missed = Found(triples["thanks-en-2"], 0, None)
    made_up = Found(triples["moving_on-en-1"], -1, "Be brief about it.")
    found = report([right, wrong_hint, missed, made_up])
    assert found["accuracy"] == 0.5
    assert found["scores"]["-1"] == {"precision": 0.6667, "recall": 1.0, "num_labelled": 2}
    assert found["scores"]["+1"] == {"precision": None, "recall": 0.0, "num_labelled": 1}
    assert found["scores"]["0"] == {"precision": 0.0, "recall": 0.0, "num_labelled": 1}
    assert found["hints"]["precision"] == 0.3333
    assert found["hints"]["recall"] == 0.5
    assert found["hints"]["wrong"] == ["correction-en-3", "moving_on-en-1"]
    assert found["wrong"] == ["thanks-en-2", "moving_on-en-1"]


def test_the_rules_are_measured_without_an_engine(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.delenv("PRM_URL", raising=False)
    found = run()
    assert set(found) == {"rules"}
    assert found["rules"]["set"]["accuracy"] >= 0.95
    assert found["rules"]["held_out"]["accuracy"] >= 0.75
