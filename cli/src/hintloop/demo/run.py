"""`hintloop demo`: the stack, the scripted user, the report."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from hintloop import funnel
from hintloop.demo import prompts, report, tokens_page, trainer_log
from hintloop.demo.advantages import pooled
from hintloop.demo.greedy import GreedyCheck
from hintloop.demo.options import DemoOptions, overlay
from hintloop.demo.preference import Answer, measure
from hintloop.demo.prompts import Question
from hintloop.demo.rounds import Rounds, num_unseen
from hintloop.demo.user import Conversations, Ledger
from hintloop.demo.view import View
from hintloop.errors import DemoError, log_tail
from hintloop.local import resolution, signals
from hintloop.local.display import Display
from hintloop.local.resolution import Sources
from hintloop.local.stack import Stack, StackOptions, hurry, started
from hintloop.local.state_dir import StateDir
from hintloop.trainer_files import read_answers

EVAL_CONCURRENCY = 32
TOKENS_PAGE = "tokens.html"
REPORT = "report.json"
#: How the training answers were liked, round by round; `hintloop report` draws it.
ROUNDS = "rounds.json"


def run_demo(options: DemoOptions) -> None:
    """Run the demo; the report lies in the state directory.

    Raises:
        CommandError: options or prompts file are wrong, or another demo runs there.
        HintloopError: the loop did not close; the message shows the funnel and what was logged.
    """
    held_out = _held_out(options)
    # A proxy for the internet must not come between processes of one machine.
    os.environ["NO_PROXY"] = ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1", "localhost"]))
    console = Console()
    stacks: list[Stack] = []
    with StateDir(options.state_dir, "demo") as state:
        state.clear()
        recipe = state.path / "recipe.toml"
        resolution.write(recipe, overlay(options))
        stack_options = StackOptions(Sources(files=[recipe]), options.prm_engine)

        async def play() -> report.Findings:
            async with started(state, stack_options, display.process, stacks.append) as stack:
                return await stack.while_alive(Demo(options, stack, display).play(held_out))

        with Display(console) as display:
            findings = signals.run(play(), lambda: hurry(stacks))
        content = report.report(findings)
        report.write(state.path / REPORT, content)
    show(console, findings, content, state.path)


def show(console: Console, findings: report.Findings, content: dict[str, Any], folder: Path) -> None:
    """What the demo says at its end: answers, figures, what went wrong, and where to read on."""
    if not console.is_terminal:
        # A terminal has it on the screen already, from the live panel.
        console.print(funnel.funnel_table(findings.snapshot), "")
    console.print(report.render(findings, content))
    for problem in [*findings.greedy_mismatches, *findings.ledger.reasons]:
        console.print(problem, style="red", markup=False, highlight=False, soft_wrap=True)
    for what, name in (("the report", REPORT), ("which tokens the hints pushed (open in a browser)", TOKENS_PAGE)):
        console.print(f"{what}: {folder / name}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"all figures: hintloop report {folder}", markup=False, highlight=False, soft_wrap=True)


def _held_out(options: DemoOptions) -> list[Question]:
    questions = prompts.read_file(options.eval_prompts) if options.eval_prompts else prompts.shipped("eval")
    return prompts.repeated(questions, options.eval_answers)


class Demo:
    """One run on a stack that is up."""

    def __init__(self, options: DemoOptions, stack: Stack, display: Display) -> None:
        self.options = options
        self.stack = stack
        self.display = display
        self.view = View(options.steps)
        self.ledger = Ledger()
        rng = random.Random(options.seed)
        model = stack.config.policy.served_model_name
        self.user = Conversations(stack.proxy_url, model, prompts.wordings(), rng, self.ledger)
        engine_url = stack.config.engine_urls[0]
        self.greedy = GreedyCheck(self.user.client, engine_url, options.engine, model, self.ledger)
        self.rounds = Rounds(
            stack.broker, self.user, self.greedy, prompts.shipped("train"), rng, options.step_timeout_s, self._see
        )

    async def play(self, held_out: Sequence[Question]) -> report.Findings:
        """Evaluate, train, evaluate.

        Raises:
            DemoError: a step did not come about in time.
        """
        ready = time.time()
        self.display.panel(self.view.render)
        version_before = await self._version()
        before = await self._evaluate("before", held_out)
        version_after = version_before
        try:
            for step in range(1, self.options.steps + 1):
                self.view.step, self.view.phase = step, "talking and learning"
                held = len(self.rounds.held)
                version_after = await self.rounds.step()
                if len(self.rounds.held) > held:
                    self.display.line(f"step {step}/{self.options.steps}: {self.rounds.held[-1]}")
                else:
                    await self._tell(step, version_after)
        except DemoError as error:
            raise DemoError(f"{error}\n{await self._what_was_seen()}") from error
        after = await self._evaluate("after", held_out)
        await self.user.close()
        report.write(self.stack.state.path / ROUNDS, report.rounds(self.rounds.answers))
        snapshot = await self._settled()
        steps = trainer_log.read_steps(self.stack.config)
        kept = read_answers(self.stack.config.training.checkpoint_dir.parent)
        shown = await tokens_page.collect(self.stack.broker, kept, Path(self.stack.config.tokenizer_dir))
        tokens_page.write(self.stack.state.path / TOKENS_PAGE, shown)
        return report.Findings(
            options=self.options,
            snapshot=snapshot,
            steps=len(steps),
            version_before=version_before,
            version_after=version_after,
            advantages=pooled(step.advantages for step in steps),
            before=before,
            after=after,
            ledger=self.ledger,
            greedy_mismatches=self.greedy.mismatches,
            ready=ready,
            ended=time.time(),
        )

    async def _settled(self) -> funnel.Snapshot:
        """The funnel once nothing that was answered can still be found broken."""
        num_answered = self.ledger.requests - self.ledger.refused
        snapshot = await self.rounds.look_at_all(num_answered)
        if num := num_unseen(snapshot, num_answered):
            self.display.line(f"{num} answers were not looked at by the linker: token_mismatches leaves them out")
        return snapshot

    async def _version(self) -> int:
        current = (await self.stack.broker.weights()).current
        if current is None:
            raise DemoError("no weights are released although the trainer is ready; see logs/trainer.log")
        return current

    async def _evaluate(self, when: str, questions: Sequence[Question]) -> list[Answer]:
        self.view.phase = f"asking {len(questions)} held-out questions"
        if (num := len(set(questions))) < len(questions):
            self.display.line(
                f"only {num} held-out questions: each is asked again until there are {len(questions)} answers"
            )
        answers = await self.user.evaluate(questions, EVAL_CONCURRENCY)
        rates = measure(answers)
        self.display.line(
            f"{when}: {rates.satisfied:.0%} of {rates.n} held-out answers satisfied, {rates.joint:.0%} also on topic"
        )
        return answers

    def _see(self, snapshot: funnel.Snapshot) -> None:
        self.view.snapshot = snapshot

    async def _logged(self, version: int) -> trainer_log.StepRecord | None:
        """The trainer's line about ``version``; it is written shortly after the weights are released."""
        for _ in range(20):
            for record in trainer_log.read_steps(self.stack.config):
                if record.version == version:
                    return record
            await asyncio.sleep(0.1)
        return None

    async def _tell(self, step: int, version: int) -> None:
        rates = measure(self.rounds.answers[-1])
        self.view.rounds.append(rates)
        logged = await self._logged(version)
        self.view.metrics = logged.line() if logged else "metrics not written yet"
        self.display.line(
            f"step {step}/{self.options.steps}: version {version}, {self.view.metrics}, training answers before it: "
            f"{rates.satisfied:.0%} satisfied, {rates.joint:.0%} also on topic"
        )

    async def _what_was_seen(self) -> str:
        snapshot = await self.rounds.look()
        lines = [f"funnel: {snapshot.steps}", f"dropped: {snapshot.drops}"]
        lines += [f"refused: {reason}" for reason in self.ledger.reasons[-5:]]
        for process in self.stack.supervisor.running.values():
            lines.append(f"--- {process.log_path}\n{log_tail(process.log_path, 12)}")
        return "\n".join(lines)
