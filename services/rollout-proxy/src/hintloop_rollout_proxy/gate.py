"""Who may ask: checks the proxy's own API keys, when it has any, and names the client behind a request."""

from __future__ import annotations

from collections.abc import Mapping

from hintloop_contract.api_keys import KeyIdentity, KeyRing, presented_key

from hintloop_rollout_proxy.errors import UnauthorizedError

#: The client behind a request: its credential, tenant, and whether its turns may be trained.
Client = KeyIdentity


class Gate:
    """Lets requests in."""

    def __init__(self, keys: KeyRing) -> None:
        """Without keys every request is let in and the client's key passes through."""
        self._keys = keys

    @property
    def checks_keys(self) -> bool:
        """Whether the client's key ends here."""
        return self._keys.checks_keys

    def admit(self, headers: Mapping[bytes, bytes]) -> Client:
        """The client behind a request; raises ``UnauthorizedError``."""
        client = self._keys.identify(presented_key(headers))
        if client is None:
            raise UnauthorizedError(
                "the API key is missing or unknown; send one of proxy.api_keys as 'Authorization: Bearer KEY'"
            )
        return client
