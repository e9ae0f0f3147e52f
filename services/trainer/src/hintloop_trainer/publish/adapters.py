"""Releasing an adapter: every version under a name of its own, beside those that answers are on their way with.

Nothing is paused and nothing flushed: engines keep what was computed under different adapters apart by their names.
Agents' new requests get the new adapter when the version is current, for the proxy names it by that version.
"""

from __future__ import annotations

import structlog
from hintloop_contract.ids import adapter_name, adapter_version

from hintloop_trainer.errors import EngineAwayError, PublishError
from hintloop_trainer.publish.engines import EngineControl
from hintloop_trainer.publish.release import Release
from hintloop_trainer.publish.verification import Verifier

#: Versions that stay loaded: the current one, and those that long answers may have begun with.
LOADED = 4
HOW_TO_ENABLE = "the engine takes no adapters: start it by engines/*/start.sh with HINTLOOP_LORA_RANK=<lora.rank>"


async def put_adapter(control: EngineControl, name: str, release: Release, verifier: Verifier) -> float:
    """Load a release's adapter unless it is there, and compare scores; the mean difference, nats.

    One that is there and scores otherwise is loaded anew.

    Raises:
        EngineAwayError: the engine does not answer.
        PublishError: it does not take the adapter, or scores the probe otherwise than the trainer.
    """
    if name in await control.adapters():
        try:
            return await verifier.verify(control, release)
        except EngineAwayError:
            raise
        except PublishError:
            await control.unload_adapter(name)
    try:
        await control.load_adapter(name, release.directory)
    except PublishError as error:
        if "HTTP 404" in error.detail or "not enabled" in error.detail:
            raise PublishError(control.url, "load adapter", f"{error.detail}; {HOW_TO_ENABLE}") from error
        raise
    return await verifier.verify(control, release)


async def loaded_version(control: EngineControl, wanted: int) -> int | None:
    """``wanted`` if the engine has its adapter, else the newest that it has; ``None`` when it has none of ours."""
    names = await control.adapters()
    if adapter_name(wanted) in names:
        return wanted
    versions = [version for name in names if (version := adapter_version(name)) is not None]
    return max(versions, default=None)


async def unload_old(control: EngineControl, current: int) -> None:
    """Let all but the newest few go, and those of versions after ``current``, which were not released.

    A failure is logged: the next release tries again.
    """
    try:
        names = await control.adapters()
        versions = sorted(version for name in names if (version := adapter_version(name)) is not None)
        kept = [version for version in versions if version <= current][-LOADED:]
        for version in versions:
            if version not in kept:
                await control.unload_adapter(adapter_name(version))
    except PublishError as error:
        structlog.get_logger().warning("old adapter not unloaded", engine=control.url, detail=str(error))
