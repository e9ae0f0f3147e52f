"""What vLLM's workers load: `--worker-extension-cls hintloop_vllm.worker.WorkerExtension`."""

from __future__ import annotations

from hintloop_vllm.reload import ReloadExtension
from hintloop_vllm.transfer import register


class WorkerExtension(ReloadExtension):
    """Mixed into vLLM's worker. Importing it makes the weight-transfer backend known as well."""


register()
