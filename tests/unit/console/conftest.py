import pytest
from hintloop_console.store import Store
from hintloop_console.telling import Teller


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "console" / "db.sqlite3")
    yield made
    made.close()


@pytest.fixture
def teller(store):
    return Teller(store, keep_turns=100, keep_bytes=10_000_000)
