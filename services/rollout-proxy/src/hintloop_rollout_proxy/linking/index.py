"""Where remembered requests are found again, without ever comparing all pairs. Owns keys; judges no likeness."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import islice, repeat

from hintloop_rollout_proxy.linking.events import Event, Kind
from hintloop_rollout_proxy.linking.nodes import Node, Scope
from hintloop_rollout_proxy.linking.normal_form import words_of

#: Most candidates looked at under one key, newest first.
MAX_CANDIDATES = 64

#: Events before an answer by which it is found together with them.
NUM_PAIRED = 2

Triple = tuple[str, str, str]


def opening(text: str) -> Triple | None:
    """The first three words of a text, by which it is found where it is quoted; ``None`` for a single word."""
    words = words_of(text[:400])[:3]
    if len(words) < 2:
        return None
    return (words[0], words[1], words[2] if len(words) > 2 else "")


def openings_in(words: list[str]) -> set[Triple]:
    """Everything that ``opening`` could say of a text quoted among these words."""
    triples = set(zip(words, words[1:], words[2:], strict=False))
    triples.update(zip(words, words[1:], repeat(""), strict=False))
    return triples


class Index:
    """Nodes by what identifies them. A key is a kind and a value, within the node's scope."""

    def __init__(self) -> None:
        """Begin empty."""
        self._by_id: dict[str, Node] = {}
        self._buckets: dict[tuple[Scope, str], dict[object, dict[str, Node]]] = {}

    def add(self, node: Node) -> None:
        """Remember a node under its request, its answer, its ids and its words."""
        self._by_id[node.turn_id] = node
        self.put(node, "request", node.digest)
        self._add_reply(node)
        line = node.identity.line
        if line is not None:
            self.put(node, "line", line)
        if node.identity.session is not None:
            self.put(node, "session", node.identity.session)
            self.put(node, "named", node.identity.session, tenant_wide=True)
        if not node.whole:
            self.put(node, "failed", node.head_digest)
        for event in node.tail:
            for form in event.quotable:
                self.put_words(node, form, "user")

    def _add_reply(self, node: Node) -> None:
        reply = node.reply
        if node.response_id is not None:
            self.put(node, "response", node.response_id, tenant_wide=True)
        if node.core is not None:
            self.put(node, "mark", node.core)
        if reply.text:
            self.put(node, "text", hash(reply.text))
            self.put_words(node, reply.text, "answer")
            for passage in reply.passages[1:]:
                self.put_words(node, passage, "passage")
        self._add_calls(node)
        for said in (node.hashes, node.leads):
            for key in pair_keys(said, [*reply.calls, reply.text]):
                self.put(node, "pair", key)
        for end in node.sequence_ends:
            self.put(node, "sequence", end.key)

    def _add_calls(self, node: Node) -> None:
        reply = node.reply
        for call in reply.calls:
            self.put(node, "call", hash(call))
        for call_id in reply.call_ids:
            self.put(node, "call_id", call_id)
        for text in reply.arguments:
            if len(text) > 7:
                self.put(node, "argument", hash(text))
                self.put_words(node, text, "argument")

    def put(self, node: Node, kind: str, value: object, *, tenant_wide: bool = False) -> None:
        """Let a node be found under a key: in its scope, or by every client of its tenant (scope ``(tenant, "")``)."""
        scope = (node.scope[0], "") if tenant_wide else node.scope
        self._buckets.setdefault((scope, kind), {}).setdefault(value, {})[node.turn_id] = node
        node.keys.append((scope, kind, value))

    def put_words(self, node: Node, text: str, what: str) -> None:
        """Let a node be found where ``text`` is quoted."""
        triple = opening(text)
        if triple is not None:
            self.put(node, f"words:{what}", triple)

    def remove(self, node: Node) -> None:
        """Forget a node."""
        self._by_id.pop(node.turn_id, None)
        for scope, kind, value in node.keys:
            buckets = self._buckets.get((scope, kind))
            bucket = None if buckets is None else buckets.get(value)
            if buckets is None or bucket is None:
                continue
            bucket.pop(node.turn_id, None)
            if not bucket:
                del buckets[value]
                if not buckets:
                    del self._buckets[scope, kind]
        node.keys.clear()

    def get(self, turn_id: str) -> Node | None:
        """The node of a turn."""
        return self._by_id.get(turn_id)

    def has(self, scope: Scope, kind: str) -> bool:
        """Whether anything is found by this kind of key."""
        return (scope, kind) in self._buckets

    def at(self, scope: Scope, kind: str, value: object, limit: int = MAX_CANDIDATES) -> list[Node]:
        """The newest nodes under a key, newest first."""
        bucket = self._buckets.get((scope, kind), {}).get(value)
        return [] if bucket is None else list(islice(reversed(bucket.values()), limit))

    def quoted(self, scope: Scope, what: str, triples: set[Triple]) -> list[Node]:
        """Nodes some text of which may be quoted where these triples were found, newest first."""
        buckets = self._buckets.get((scope, f"words:{what}"))
        if not buckets:
            return []
        found: dict[str, Node] = {}
        for triple in triples & buckets.keys():
            found.update(islice(reversed(buckets[triple].items()), MAX_CANDIDATES))
        return sorted(found.values(), key=lambda node: -node.number)[:MAX_CANDIDATES]

    def __iter__(self) -> Iterator[Node]:
        """All nodes, oldest first."""
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self._by_id)


def pair_keys(before: array[int], parts: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Keys of an answer with what it answered: they find it where many have answered the same."""
    for said in before[-NUM_PAIRED:]:
        for part in parts:
            if part:
                yield said, hash(part)


def echo_keys(events: tuple[Event, ...], text: str) -> Iterator[tuple[str, object]]:
    """Keys under which the answer is found that these events and their joined text repeat."""
    for event in events:
        if event.mark:
            yield "mark", event.mark
        if event.kind in (Kind.CALL, Kind.RESULT) and event.call_id:
            yield "call_id", event.call_id
        if event.kind is Kind.CALL:
            yield "call", hash(event.text)
        elif event.kind is Kind.ANSWER and event.text:
            yield "text", hash(event.text)
    if text:
        yield "text", hash(text)
