"""The model in megatron-core: built from a Hugging Face directory, sharded, scored, stepped, exported.

Importing this package installs the CPU redirection when there is no CUDA device (see :mod:`cpu`).
"""

from hintloop_trainer.megatron import cpu

cpu.install()
