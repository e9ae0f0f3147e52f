"""The disk spool: order, bound, torn ends, one owner."""

from __future__ import annotations

from pathlib import Path

import pytest
from hintloop_rollout_proxy import spool as spool_module
from hintloop_rollout_proxy.errors import SpoolError
from hintloop_rollout_proxy.spool import Spool


def open_spool(directory: Path, max_bytes: int = 10_000) -> Spool:
    spool = Spool(directory, max_bytes)
    spool.open()
    return spool


def everything(spool: Spool) -> list[bytes]:
    spool.seal()
    return [record for segment in spool.segments() for record in spool.read(segment)]


def test_records_come_back_in_order_after_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "SEGMENT_BYTES", 100)
    records = [bytes([65 + number]) * 40 for number in range(10)]
    spool = open_spool(tmp_path)
    assert spool.append(records[:6]) == 6
    assert spool.append(records[6:]) == 4
    spool.close()
    again = open_spool(tmp_path)
    assert len(again.segments()) > 2
    assert again.append([b"later"]) == 1
    assert everything(again) == [*records, b"later"]
    for segment in again.segments():
        again.remove(segment)
    assert again.empty and not again.segments()
    again.close()


def test_bound_takes_a_prefix(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, max_bytes=100)
    assert spool.append([b"x" * 30, b"y" * 30, b"z" * 30]) == 2
    assert everything(spool) == [b"x" * 30, b"y" * 30]
    spool.close()


@pytest.mark.parametrize("keep", [3, 9, 20])
def test_torn_end_is_counted_not_read(tmp_path: Path, keep: int) -> None:
    spool = open_spool(tmp_path)
    spool.append([b"whole", b"torn-record-of-20-by"])
    spool.close()
    (segment,) = tmp_path.glob("*.spool")
    segment.write_bytes(segment.read_bytes()[: 8 + 5 + keep])
    again = open_spool(tmp_path)
    assert everything(again) == [b"whole"]
    assert again.num_torn == 1
    again.close()


def test_one_owner(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    with pytest.raises(SpoolError, match="in use by another process"):
        open_spool(tmp_path)
    spool.close()


def test_unusable_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpoolError, match="proxy.spool_dir"):
        open_spool(tmp_path / "file")


def test_disk_that_fails_leaves_what_was_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = open_spool(tmp_path)
    spool.append([b"before"])

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(spool_module.os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            spool.append([b"half"])
    assert spool.append([b"half", b"after"]) == 2
    assert spool.num_bytes == sum(path.stat().st_size for path in spool.segments())
    # Written twice is harmless, since an append happens once; lost would not be.
    assert [record for record in everything(spool) if record != b"half"] == [b"before", b"after"]
    assert b"half" in everything(spool)
    spool.close()


def test_set_aside_is_kept_and_no_longer_counts(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    spool.append([b"odd"])
    spool.seal()
    (segment,) = spool.segments()
    aside = spool.set_aside(segment)
    assert spool.empty and not spool.segments() and b"odd" in aside.read_bytes()
    spool.close()
