"""The process that answers probes with transformers: `python -m hintloop_trainer.gate.answering`, questions on stdin.

A process of its own, so that torch is here as it comes: the trainer redirects CUDA, keeps freed memory, and has its
generators' state checkpointed.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Any

import structlog
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from hintloop_trainer.gate.generation import ReadPrompts, Sampled, negative_log_likelihoods, read_prompts, sample
from hintloop_trainer.gate.messages import (
    Answer,
    Failed,
    Look,
    Looked,
    Prompt,
    Read,
    Ready,
    Refused,
    Reply,
    Setup,
    pack,
    read_question,
)

log = structlog.get_logger()

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class RefusedError(Exception):
    """The configuration cannot be honoured; the message names the key and the fix."""


def load(directory: str, dtype: torch.dtype, device: torch.device) -> Any:
    """The model of a Hugging Face directory, to be read only."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, local_files_only=True)
    return model.to(device).eval()


class Answering:
    """The base model, the tokenizer and the prompts; answers questions about candidates."""

    def __init__(self, setup: Setup) -> None:
        """Load the base and render the prompts.

        Raises:
            RefusedError: there is no tokenizer to render messages with, no CUDA device where one is asked for, or a
                prompt that this student cannot be asked.
        """
        self._setup = setup
        self._device = _device(setup.device)
        self._dtype = DTYPES[setup.dtype]
        self._tokenizer = _tokenizer(setup)
        self.prompt_ids = [self._render(number, prompt) for number, prompt in enumerate(setup.prompts, 1)]
        self._base = load(setup.base, self._dtype, self._device)
        self._check(self._base.config.vocab_size)
        self._read: list[ReadPrompts] = [read_prompts(self._base, part) for part in self._parts(self.prompt_ids)]
        """The prompts as the base read them, by batches."""

    def _render(self, number: int, prompt: Prompt) -> list[int]:
        if prompt.prompt_ids:
            return list(prompt.prompt_ids)
        messages = list(prompt.messages)
        if self._tokenizer.chat_template:
            try:
                text = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            except Exception as error:  # a template is a program, and may raise anything
                raise RefusedError(
                    f"gate.probe_file: the student's chat template refuses prompt {number}: {error}; change its "
                    "messages, or give prompt_ids"
                ) from error
            return list(self._tokenizer.encode(text, add_special_tokens=False))
        # A model that knows no chat is asked to continue.
        return list(self._tokenizer.encode("\n\n".join(message["content"] for message in messages)))

    def _check(self, vocab_size: int) -> None:
        """Refuse what would fail at every look, however often it is tried."""
        for number, ids in enumerate(self.prompt_ids, 1):
            if not ids:
                raise RefusedError(f"gate.probe_file: prompt {number} comes to no token at all; give it a content")
            if max(ids) >= vocab_size:
                raise RefusedError(
                    f"gate.probe_file: prompt {number} has the token {max(ids)}, and the student's vocabulary is "
                    f"{vocab_size}; give ids of this student's tokenizer"
                )

    def look(self, directory: str) -> list[Answer]:
        """Answers of the weights in ``directory``; the base's own model answers for the base."""
        setup = self._setup
        candidate = self._base if directory == setup.base else load(directory, self._dtype, self._device)
        sampled: list[Sampled] = []
        for number, part in enumerate(self._parts(self.prompt_ids)):
            sampled += sample(
                candidate,
                part,
                temperature=setup.temperature,
                max_new_tokens=setup.max_new_tokens,
                seed=setup.seed + number,
            )
        del candidate
        gc.collect()
        means = [sum(answer.entropies) / len(answer.entropies) for answer in sampled]
        return self.read([answer.token_ids for answer in sampled], means, [answer.ended for answer in sampled])

    def read(self, token_ids: list[list[int]], entropies: list[float], ended: list[bool]) -> list[Answer]:
        """Answers given by whomever, with what the base thinks of them."""
        nll: list[float] = []
        for read, part in zip(self._read, self._parts(token_ids), strict=True):
            nll += negative_log_likelihoods(self._base, read, part)
        return [
            Answer(token_ids=ids, ended=end, text=self._text(ids), entropy=entropy, base_nll=surprise)
            for ids, end, entropy, surprise in zip(token_ids, ended, entropies, nll, strict=True)
        ]

    def _parts(self, rows: list[list[int]]) -> list[list[list[int]]]:
        size = self._setup.batch_size
        return [rows[start : start + size] for start in range(0, len(rows), size)]

    def _text(self, ids: list[int]) -> str:
        if self._tokenizer is None:
            return ""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text.strip()


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise RefusedError("gate.device is 'cuda', but the leading rank sees no such device; set 'auto' or 'cpu'")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def _tokenizer(setup: Setup) -> Any:
    named = any(
        (Path(setup.tokenizer) / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")
    )
    if named:
        return AutoTokenizer.from_pretrained(setup.tokenizer, local_files_only=True)
    if all(prompt.prompt_ids for prompt in setup.prompts):
        return None
    raise RefusedError(
        f"the release gate asks the student in words, and {setup.tokenizer} holds no tokenizer; give "
        "model.tokenizer_path, a gate.probe_file with prompt_ids, or set gate.enabled = false"
    )


def answer(answering: Answering | None, question: Look | Read) -> Reply:
    """Carry out one question; what goes wrong is told, not raised."""
    if answering is None:
        return Failed("asked before it was set up")
    try:
        if isinstance(question, Look):
            return Looked(answering.look(question.directory))
        return Looked(answering.read(question.token_ids, question.entropies, question.ended))
    except Exception as error:  # told to the trainer, which tries again and says so
        log.error("probe not answered", exc_info=True)
        return Failed(f"{type(error).__name__}: {error}")


def main() -> None:
    """Answer questions until the input ends."""
    # Whatever prints must not come between the messages.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    transformers_logging.disable_progress_bar()
    answering: Answering | None = None
    while (question := read_question(sys.stdin.buffer)) is not None:
        reply: Reply
        if isinstance(question, Setup):
            try:
                answering = Answering(question)
                reply = Ready(answering.prompt_ids)
            except RefusedError as error:
                reply = Refused(str(error))
            except Exception as error:  # told to the trainer, which tries again and says so
                log.error("not set up", exc_info=True)
                reply = Failed(f"{type(error).__name__}: {error}")
        else:
            reply = answer(answering, question)
        replies.write(pack(reply))
        replies.flush()


if __name__ == "__main__":
    main()
