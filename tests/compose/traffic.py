"""Agents that talk to the proxy until they are told to end: some sessions at once, every exchange marked."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import dataclass, field

import httpx

SESSIONS = 6
#: Exchanges of a session: all but the last have a next state.
EXCHANGES = 6
PAUSE_S = 0.35
COMPLAINT = "That is too long. Please answer in one short sentence."


@dataclass
class Traffic:
    """``followed``: marks of exchanges that were answered and then replied to."""

    url: str
    key: str
    followed: set[str] = field(default_factory=set)
    answered: set[str] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)
    cut: int = 0
    """Requests whose connection broke: their answers may have been whole, and nobody goes on from them."""
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Traffic:
        numbers = itertools.count()
        for _ in range(SESSIONS):
            thread = threading.Thread(target=self._live, args=(numbers,))
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    def end(self) -> None:
        """Let every session come to its end, and start no other."""
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=120)
            assert not thread.is_alive(), "an agent was never answered"

    def more(self, count: int, timeout_s: float = 60) -> None:
        """Wait until ``count`` more exchanges have been answered."""
        wanted, end = len(self.answered) + count, time.monotonic() + timeout_s
        while len(self.answered) < wanted:
            assert time.monotonic() < end, (
                f"{len(self.answered)} answers, {wanted} wanted; last refusals {self.refused[-3:]}"
            )
            time.sleep(0.1)

    def _live(self, numbers: itertools.count[int]) -> None:
        with httpx.Client(timeout=60, headers={"authorization": f"Bearer {self.key}"}) as client:
            while not self._stop.is_set():
                self._session(client, f"s{next(numbers)}")

    def _session(self, client: httpx.Client, name: str) -> None:
        messages: list[dict[str, str]] = []
        for turn in range(EXCHANGES):
            mark = f"[{name}.{turn}]"
            messages.append({"role": "user", "content": f"{COMPLAINT if turn else 'Tell me about rain.'} {mark}"})
            messages.append({"role": "assistant", "content": self._ask(client, messages, name)})
            self.answered.add(mark)
            if turn:
                self.followed.add(f"[{name}.{turn - 1}]")
            time.sleep(PAUSE_S)

    def _ask(self, client: httpx.Client, messages: list[dict[str, str]], name: str) -> str:
        """The answer; what is refused or breaks off is asked again, as agents do."""
        body = {"model": "policy", "messages": messages, "max_tokens": 64}
        end = time.monotonic() + 100
        while True:
            try:
                answer = client.post(f"{self.url}/v1/chat/completions", json=body, headers={"x-session-id": name})
                if answer.status_code == 200:
                    return str(answer.json()["choices"][0]["message"]["content"])
                self.refused.append(f"{answer.status_code}: {answer.text[:200]}")
            except httpx.HTTPError as error:
                self.cut += 1
                self.refused.append(f"{type(error).__name__}: {error}")
            assert time.monotonic() < end, f"{name} was never answered: {self.refused[-1]}"
            time.sleep(0.5)
