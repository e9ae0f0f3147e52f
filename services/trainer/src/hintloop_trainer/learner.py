"""The model, its optimizer, and what is done with them; every method is called on all ranks alike.

Owns torch: nothing here knows of streams, engines or HTTP.
Legend: S = positions, B = sequences, H = hidden size, N = trained tokens of a micro-batch.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from hintloop_contract.config.schema import Config
from hintloop_contract.messages import Sample
from megatron.core.pipeline_parallel import get_forward_backward_func

from hintloop_trainer import batch as batching
from hintloop_trainer import chains, own_teacher, reference
from hintloop_trainer.batch import Example, MicroBatch
from hintloop_trainer.errors import LossError, ModelError, TrainingError
from hintloop_trainer.groups import relative_scores
from hintloop_trainer.megatron import (
    adapter,
    attention,
    cpu,
    export,
    lockstep,
    logprobs,
    lora,
    model,
    optimizer,
    sequence,
    weights,
)
from hintloop_trainer.megatron.parallel import Layout
from hintloop_trainer.metrics.work import Meter, Work
from hintloop_trainer.objective import Effective, Objective, Old, old_from
from hintloop_trainer.tally import Moments, Tally
from hintloop_trainer.traces import TokenTrace

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(slots=True)
class Planned:
    """This rank's micro-batches of one optimizer step, with the log-probabilities before the collection's first."""

    batches: list[MicroBatch]
    old: list[Old] = field(default_factory=list)
    """Empty when the policy before the step is the policy at the step."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one optimizer step did, over all ranks."""

    loss: float
    grad_norm: float
    num_tokens: int
    """Trained tokens."""
    work: Work
    tally: Tally
    traces: list[TokenTrace]
    """What the teacher said of every token, when that is kept."""
    seconds: dict[str, float]
    effective: Effective


@dataclass(frozen=True, slots=True)
class Output:
    """What one micro-batch has to say on the last pipeline stage."""

    tally: Tally
    loss: Moments
    traces: list[TokenTrace]
    effective: Effective
    error: str = ""
    """What the loss did wrong, and nothing else."""


class Learner:
    """The student and its optimizer on this rank."""

    def __init__(self, config: Config, objective: Objective, layout: Layout) -> None:
        """Build the model with the weights of ``model.student_model_path``.

        Raises:
            ModelError: the student or the layout is not supported.
        """
        if layout.dp_size > config.training.train_batch_size:
            raise ModelError(
                f"{layout.dp_size} data-parallel ranks cannot share training.train_batch_size "
                f"{config.training.train_batch_size}; use fewer ranks or a larger batch"
            )
        self.config = config
        self.layout = layout
        self.objective = objective
        self.dtype = DTYPES[config.model.dtype]
        self.limits = batching.limits_from(config.training)
        self.arch = model.read_architecture(config.model.student_model_path)
        self.model = model.build(self.arch, layout, self.dtype, config.model.max_seq_len, config.training)
        weights.load(self.model, self.arch, layout, config.model.student_model_path)
        if config.lora.enabled:
            lora.attach(self.model, self.arch, layout, config.lora, config.training.seed)
        with cpu.quietly():
            self.replicated = optimizer.wrap(self.model, config.training)
            self.optimizer = optimizer.make(self.replicated, config.training, self.dtype)
        own = config.prm.teacher_source == "trainer" and objective.wants_teacher
        self.own_teacher = own_teacher.make(config, self.arch, layout, self.dtype, self.model) if own else None
        self.reference = reference.make(self)
        self._meter = Meter(config, self.arch)
        self._plans: list[Planned] = []

    def begin(self, collection: list[list[bytes]]) -> None:
        """Take a collection: one list of encoded samples for each optimizer step of a pass.

        With a single step to come, the policy before the step *is* the one that the step differentiates, and a
        forward pass of its own would give the same numbers: it is left out. Else it is made here, once, on
        the very micro-batches that are trained.
        """
        single = len(collection) == 1 and self.config.training.num_epochs == 1
        self._plans = [self.plan(self.read(step)) for step in collection]
        if self.reference is not None:
            for plan in self._plans:
                plan.batches = self.reference.beside(plan.batches)
        if not single:
            for plan in self._plans:
                plan.old = self._score_before(plan.batches)

    def read(self, encoded: list[bytes]) -> list[Example]:
        """The samples of one optimizer step."""
        decoder = msgspec.msgpack.Decoder(Sample)
        examples = [batching.read_example(decoder.decode(item), self.arch.vocab_size) for item in encoded]
        return relative_scores(examples, self.objective.group_size)

    def plan(self, examples: list[Example], among: list[Example] | None = None) -> Planned:
        """This rank's share of them in micro-batches; ``among`` are all samples of the step, where these are a part."""
        mine = batching.share(examples, self.limits, self.layout.dp_rank, self.layout.dp_size)
        batches = batching.divide(
            mine,
            self.limits,
            candidates=self.objective.wants_candidates,
            device=cpu.device(),
        )
        signals = self.objective.signals(among or examples)
        return Planned([dataclasses.replace(batch, signals=signals) for batch in batches])

    def step(self, index: int) -> StepResult:
        """One optimizer step on the collection's ``index``-th batch.

        Raises:
            TrainingError: the loss or the gradient is not finite; the weights are as they were.
            LossError: the loss does not do what is expected of it; the weights are as they were.
        """
        plan = self._plans[index]
        started = time.perf_counter()
        tally, loss, traces, effective = self.differentiate(plan)
        computed = time.perf_counter()
        with cpu.quietly():
            grad_norm = self._optimize()
        if self.own_teacher is not None:
            self.own_teacher.follow(self.model)
        finished = time.perf_counter()
        return StepResult(
            loss=loss.total / loss.count,
            grad_norm=grad_norm,
            num_tokens=tally.of("entropy").count,
            work=self._meter.measure(plan.batches, finished - started),
            tally=tally,
            traces=traces,
            seconds={"forward_backward": computed - started, "optimizer": finished - computed},
            effective={
                **effective,
                "learning_rate": optimizer.learning_rate(self.optimizer),
                "weight_decay": optimizer.weight_decay(self.optimizer),
                "grad_clip": self.config.training.grad_clip,
            },
        )

    def differentiate(self, plan: Planned) -> tuple[Tally, Moments, list[TokenTrace], Effective]:
        """Have a batch's gradient in the buffers; what :meth:`_sum_up` says of it.

        Raises:
            TrainingError: the loss or the gradient is not finite.
            LossError: the loss does not do what is expected of it.
        """
        with cpu.quietly():
            self.replicated.zero_grad_buffer()
            self.optimizer.zero_grad()
        olds: list[Old | None] = [*plan.old] if plan.old else [None] * len(plan.batches)
        outputs = self._run(list(zip(plan.batches, olds, strict=True)), self._forward_loss, forward_only=False)
        found = self._sum_up(outputs)
        total = found[1].total
        if found[1].count and not math.isfinite(total):
            raise TrainingError(f"the loss is {total}; no step was made")
        self._check_gradient()
        return found

    def trace(self, wanted: bool) -> None:
        """Whether what is known of every token is kept in the steps to come."""
        self.objective = dataclasses.replace(self.objective, traced=wanted)

    def _check_gradient(self) -> None:
        """Megatron looks for values that are not finite only when it scales the loss; here all ranks always do."""
        if not optimizer.is_finite(self.replicated):
            raise TrainingError("the gradient is not finite; no step was made")

    def _optimize(self) -> float:
        optimizer.set_rate(self.optimizer, self.config.training)
        success, grad_norm, _ = self.optimizer.step()
        if not success or grad_norm is None:
            raise TrainingError("the optimizer made no step")
        return float(grad_norm)

    def _run(
        self, work: list[tuple[MicroBatch, Old | None]], step: Any, *, forward_only: bool, network: Any = None
    ) -> list[Any]:
        """Megatron's schedule over the micro-batches; the last stage's outputs, in order."""
        schedule = get_forward_backward_func()
        longest = max((item.input_ids_BS.shape[1] for item, _ in work), default=2)
        items, step = lockstep.evened(work, step, self._forward, self.layout)
        with cpu.quietly():
            outputs: list[Any] = schedule(
                forward_step_func=step,
                data_iterator=iter(items),
                model=[self.replicated if network is None else network],
                num_microbatches=len(items),
                seq_length=longest,
                micro_batch_size=self.config.training.micro_batch_size,
                forward_only=forward_only,
            )
        return [output for output in outputs if output is not None]

    def _hidden(self, network: Any, batch: MicroBatch) -> torch.Tensor:
        return self._forward(
            network, batch.input_ids_BS, batch.position_ids_BS, batch.lengths if batch.packed else None
        )

    def _forward(
        self, network: Any, ids_BS: torch.Tensor, positions_BS: torch.Tensor, lengths: tuple[int, ...] | None = None
    ) -> torch.Tensor:
        """Hidden states; ``lengths`` are those of a packed row's sequences. Attention is causal by itself."""
        row = None
        if lengths is not None:
            row = attention.packed_row(lengths, sequence.multiple(self.model.config), ids_BS.device)
        hidden: torch.Tensor = network(ids_BS, positions_BS, None, packed_seq_params=row)
        return hidden

    def _scores(self, batch: MicroBatch, hidden_SBH: torch.Tensor) -> logprobs.Scores:
        return self.score_rows(self.model, batch, hidden_SBH.flatten(0, 1)[batch.rows_N])

    def score_rows(self, network: model.PolicyModel, batch: MicroBatch, hidden_NH: torch.Tensor) -> logprobs.Scores:
        """What ``network``'s head says of a micro-batch's targets and candidates."""
        return logprobs.score(
            network,
            hidden_NH,
            batch.targets_N,
            batch.temperatures_N,
            self.arch.vocab_size,
            batch.candidates_NK,
            differentiable_entropy=self.objective.entropy_coef != 0.0,
        )

    def _forward_loss(self, work: Iterator[tuple[MicroBatch, Old | None]], network: Any) -> tuple[Any, Any]:
        batch, old = next(work)
        return self._hidden(network, batch), partial(self._loss, batch, old)

    def _loss(self, batch: MicroBatch, old: Old | None, hidden_SBH: torch.Tensor) -> tuple[Any, Any, Any]:
        scores = self._scores(batch, hidden_SBH)
        try:
            found = self.objective.evaluate(batch, scores, old)
        except LossError as error:
            # The other ranks wait in the schedule: it is gone through, and then all of them raise.
            count = torch.ones((), dtype=torch.int, device=hidden_SBH.device)
            return scores.logprobs_N.sum() * 0.0, count, Output(Tally(), Moments(), [], {}, str(error))
        share = Moments(count=found.count, total=float(found.total.detach()))
        count = torch.tensor(found.count, dtype=torch.int, device=found.total.device)
        return found.total, count, Output(found.tally, share, found.traces, found.effective)

    @torch.no_grad()
    def read_rows(
        self, batches: list[MicroBatch], read: Callable[[MicroBatch, torch.Tensor], Any], network: Any = None
    ) -> list[Any]:
        """What ``read`` makes of the hidden states ``[N, H]`` before every micro-batch's trained tokens, in order.

        ``network`` is the student unless given. Empty on all pipeline stages but the last.
        """

        def finish(batch: MicroBatch, hidden_SBH: torch.Tensor) -> tuple[Any, Any, Any]:
            nothing = hidden_SBH.new_zeros(())
            count = torch.tensor(batch.num_trained, dtype=torch.int, device=nothing.device)
            return nothing, count, read(batch, hidden_SBH.flatten(0, 1)[batch.rows_N])

        def step(work: Iterator[tuple[MicroBatch, Old | None]], network: Any) -> tuple[Any, Any]:
            batch, _ = next(work)
            return self._hidden(network, batch), partial(finish, batch)

        return self._run([(item, None) for item in batches], step, forward_only=True, network=network)

    def _score_before(self, batches: list[MicroBatch]) -> list[Old]:
        def read(batch: MicroBatch, hidden_NH: torch.Tensor) -> Old:
            return old_from(self.score_rows(self.model, batch, hidden_NH))

        found: list[Old] = self.read_rows(batches, read)
        # Other pipeline stages have no log-probabilities, and no use for them either.
        missing = torch.empty(0)
        return found or [Old(missing, missing) for _ in batches]

    def _sum_up(self, outputs: list[Output]) -> tuple[Tally, Moments, list[TokenTrace], Effective]:
        """Metrics, loss, traces and coefficients over all data-parallel ranks, on every rank."""
        mine = outputs if self.layout.reports else []
        everyone: list[list[Output]] = [mine] * self.layout.world_size
        if self.layout.world_size > 1:
            dist.all_gather_object(everyone, mine)
        found = [output for part in everyone for output in part]
        for output in found:
            if output.error:
                raise LossError(output.error)
        loss = Moments()
        for output in found:
            loss.add(output.loss)
        traces = [trace for output in found for trace in output.traces]
        return Tally().merge(output.tally for output in found), loss, traces, found[0].effective

    def score(self, token_ids: list[int]) -> list[float]:
        """Log-probability of every token after the first, at temperature 1, nats, ``[len - 1]``, on every rank."""
        ids = torch.tensor(token_ids)
        nothing = torch.zeros(len(ids) - 1)
        example = Example(
            turn_id="probe",
            prompt_P=ids[:1],
            response_T=ids[1:],
            behaviour_T=nothing,
            policy_temperature=1.0,
            behaviour_temperature=None,
            corrected=False,
            score=None,
            teacher_T=None,
            topk_ids_TK=None,
            topk_logprobs_TK=None,
            tail_T=None,
        )
        (old,) = self._score_before([batching.collate(chains.alone([example]), candidates=False, device=cpu.device())])
        values = old.logprobs_N.cpu() if self.layout.last_stage else nothing
        dist.broadcast(values, src=self.layout.world_size - 1)
        scores: list[float] = values.tolist()
        return scores

    def export(self, target: Path) -> str:
        """Write what engines are given, as `lora.publish` says; its SHA-256.

        A PEFT directory (see :func:`export.write_adapter`) where versions are adapters, else :meth:`export_whole`'s.
        """
        if not self.config.lora.as_adapter:
            return self.export_whole(target)
        base = str(Path(self.config.model.student_model_path).resolve())
        return export.write_adapter(self.model, self.layout, adapter.peft_config(self.config.lora, base), target=target)

    def export_whole(self, target: Path) -> str:
        """Write the weights, adapters merged, as a Hugging Face directory; their SHA-256.

        See :func:`export.write_weights`.
        """
        return export.write_weights(
            self.model,
            self.arch,
            self.layout,
            base=Path(self.config.model.student_model_path),
            tokenizer=Path(self.config.tokenizer_dir),
            target=target,
        )

    def sharded_weights(self) -> dict[str, Any]:
        """The weights that training changes, as Megatron's checkpoints take them, on this rank."""
        if self.config.lora.enabled:
            return adapter.sharded(self.model)
        found: dict[str, Any] = self.model.sharded_state_dict()
        return found

    def restore_weights(self, loaded: dict[str, Any]) -> None:
        """Take what :meth:`sharded_weights` described, read from a checkpoint.

        Raises:
            KeyError: something is not there.
        """
        if self.config.lora.enabled:
            adapter.restore(self.model, loaded)
        else:
            self.model.load_state_dict(loaded)
