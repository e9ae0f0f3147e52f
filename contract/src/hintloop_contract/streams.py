"""The stream table and every Redis key. Owns names; reading and writing live in `broker`."""

from __future__ import annotations

from dataclasses import dataclass

from hintloop_contract.messages import Capture, DeadLetter, Drop, JudgedTurn, LinkedTurn, Message, Sample


@dataclass(frozen=True, slots=True)
class Stream:
    """One row of the table.

    ``counter`` is the funnel step that an append to the stream counts; ``history`` the kind under which a hop into it
    is noted for people to look at (`history.HistoryKind`), ``None`` when it is not.
    """

    name: str
    message: type[Message]
    producer: str
    group: str | None
    dedupe_key: str
    bound: str
    counter: str | None = None
    history: str | None = None


CAPTURES = Stream("captures", Capture, "rollout-proxy", "linker", "seen:<turn_id>", "disk spool", "captured")
TURNS = Stream("turns", LinkedTurn, "linker", "judge", "hop", "admission", "linked", "turn")
JUDGED = Stream("judged", JudgedTurn, "judge", "teacher", "hop", "admission", "judged", "judged")
SAMPLES = Stream("samples", Sample, "teacher", "trainer", "hop", "admission + unacknowledged", "scored", "sample")
DROPS = Stream("drops", Drop, "all", None, "hop", "trimmed by age (7 days)", None, "drop")
DEAD = Stream("dead", DeadLetter, "all", None, "hop", "kept")

STREAMS = (CAPTURES, TURNS, JUDGED, SAMPLES, DROPS, DEAD)

#: Funnel steps in order. ``hinted`` counts judged turns with a hint; ``batched`` and ``trained`` the trainer's.
FUNNEL = ("captured", "linked", "judged", "hinted", "scored", "batched", "trained")


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of one policy: ``hl:{<policy>}:<name>``. The braces put them all in one hash slot."""

    policy: str

    def of(self, name: str) -> str:
        """Full key for ``name``."""
        return f"hl:{{{self.policy}}}:{name}"

    def stream(self, stream: Stream) -> str:
        """Key of a stream."""
        return self.of(stream.name)

    def turn(self, turn_id: str) -> str:
        """The turn's record."""
        return self.of(f"turn:{turn_id}")

    def seen(self, turn_id: str) -> str:
        """Guard of an append that has no input message."""
        return self.of(f"seen:{turn_id}")

    @property
    def history(self) -> str:
        """Stream of finished hops for people to look at (`history`), bounded by entries and bytes."""
        return self.of("history")

    @property
    def history_bytes(self) -> str:
        """Integer: bytes that the entries of that stream weigh."""
        return self.of("history:bytes")

    @property
    def funnel(self) -> str:
        """Hash: funnel step to count."""
        return self.of("funnel")

    @property
    def drop_counts(self) -> str:
        """Hash: ``<stage>:<reason>`` to count."""
        return self.of("drop_counts")

    @property
    def weights(self) -> str:
        """Hash: ``current`` (released version), ``updating`` (version being published, or empty)."""
        return self.of("weights")

    @property
    def version_counter(self) -> str:
        """Integer taken by INCR; a version is never used twice."""
        return self.of("version")

    def version(self, version: int) -> str:
        """Hash of one version: ``step, run, parent, weights_hash``."""
        return self.of(f"version:{version}")

    @property
    def control(self) -> str:
        """Stream of what operators ask of the trainer (`control`); an entry goes when it is settled."""
        return self.of("control")

    def control_outcome(self, request_id: str) -> str:
        """What became of one such request."""
        return self.of(f"control:outcome:{request_id}")

    @property
    def paused(self) -> str:
        """Why training stands still; absent while it does not."""
        return self.of("paused")

    @property
    def trained_pending(self) -> str:
        """Integer: samples trained but not yet acknowledged by a checkpoint."""
        return self.of("trained_pending")

    @property
    def inflight(self) -> str:
        """Sorted set: requests being answered, scored by their arrival in milliseconds."""
        return self.of("inflight")

    @property
    def linker_lease(self) -> str:
        """The active linker's lease."""
        return self.of("linker:lease")

    @property
    def fence(self) -> str:
        """Integer: the newest fencing token."""
        return self.of("linker:fence")

    @property
    def turn_notes(self) -> str:
        """Stream of notes of settled turns that requests may still go on from, bounded in time and number."""
        return self.of("linker:notes")

    def status(self, service: str) -> str:
        """Hash that a service writes about itself (``trainer``: step, metrics; ``engines``: versions)."""
        return self.of(f"status:{service}")

    def kept(self, kind: str, name: str) -> str:
        """A value that may be lost at any time (kind ``votes``: the votes of a question, by content)."""
        return self.of(f"kept:{kind}:{name}")

    def kept_index(self, kind: str) -> str:
        """Sorted set: names of one kind's kept values, by the time they were written."""
        return self.of(f"kept_index:{kind}")
