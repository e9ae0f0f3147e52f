"""Make a tiny random model that both engines load, for tests that need no sense in the answers.

head_dim is 32 because vLLM's CPU attention does not work below it.  The vocabulary is the given
tokenizer's, so that the chat template and the special ids are real ones.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

HEAD_DIM = 32
NUM_HEADS = 4
NUM_KV_HEADS = 2


def build(family: str, tokenizer: Any, tied: bool, seed: int) -> Any:
    """A random float32 causal LM of `family` with the special ids of `tokenizer`."""
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    config_cls, model_cls = {
        "llama": (LlamaConfig, LlamaForCausalLM),
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    }[family]
    config = config_cls(
        vocab_size=len(tokenizer),
        hidden_size=HEAD_DIM * NUM_HEADS,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=2048,
        # Wide enough that the distribution is far from uniform and a changed weight shows in scores.
        initializer_range=0.1,
        tie_word_embeddings=tied,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(seed)
    model = model_cls(config).to(torch.float32)
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    )
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--family", choices=("llama", "qwen3"), required=True)
    parser.add_argument("--tokenizer", type=Path, required=True, help="directory of a saved tokenizer")
    parser.add_argument("--tied", action="store_true", help="share the embedding with the output head")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if (args.out / "config.json").exists():
        sys.exit(f"{args.out} already holds a model; give a new directory")

    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
    model = build(args.family, tokenizer, args.tied, args.seed)
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    print(args.out)


if __name__ == "__main__":
    main()
