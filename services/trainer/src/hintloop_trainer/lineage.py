"""Which weight versions the current weights descend from, and how far back each is. Pure."""

from __future__ import annotations

import msgspec

#: Ancestors remembered; older ones count as unknown, far beyond any staleness allowed.
MEMORY = 1000


class Released(msgspec.Struct, frozen=True):
    """A version and the optimizer step whose weights it holds."""

    version: int
    step: int


class Lineage(msgspec.Struct):
    """Released versions from the oldest remembered to the current one, each the next one's parent."""

    versions: list[Released] = msgspec.field(default_factory=list)

    @property
    def current(self) -> int | None:
        """The newest version, if any was released."""
        return self.versions[-1].version if self.versions else None

    def release(self, version: int, step: int) -> None:
        """Add ``version``, made of the current weights.

        Raises:
            ValueError: ``version`` is not above every version before it.
        """
        if self.versions and version <= self.versions[-1].version:
            raise ValueError(f"version {version} is not above {self.versions[-1].version}")
        self.versions.append(Released(version, step))
        del self.versions[:-MEMORY]

    def step_of(self, version: int) -> int | None:
        """The optimizer step whose weights ``version`` holds; ``None`` when it is no ancestor."""
        return next((released.step for released in self.versions if released.version == version), None)

    def upto(self, version: int) -> Lineage:
        """The lineage as it was when ``version`` was released; empty when it is no ancestor."""
        place = next((i for i, released in enumerate(self.versions) if released.version == version), -1)
        return Lineage(self.versions[: place + 1])

    def behind(self, version: int) -> int | None:
        """Optimizer steps between ``version`` and the current weights; ``None`` when it is no ancestor."""
        for released in reversed(self.versions):
            if released.version == version:
                return self.versions[-1].step - released.step
        return None
