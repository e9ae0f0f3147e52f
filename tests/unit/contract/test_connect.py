import pytest
from hintloop_contract.redis_broker import connect


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "rediss://127.0.0.1:1/0", "unix:///tmp/absent.sock"])
async def test_a_connection_can_be_made_for_every_kind_of_address(url):
    client = connect(url)
    # Options that a kind of connection does not know are refused only here.
    assert client.connection_pool.make_connection() is not None
    await client.aclose()
