"""Worker extension that vLLM loads with `--worker-extension-cls hintloop_vllm.reload.ReloadExtension`."""
