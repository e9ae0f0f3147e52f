"""The stock ``mini-swe-agent``: its default agent in a local shell, through LiteLLM's client."""

import json
import os
import sys
import tempfile

os.environ["MSWEA_SILENT_STARTUP"] = "1"
os.environ["MSWEA_COST_TRACKING"] = "ignore_errors"
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["MSWEA_GLOBAL_CONFIG_DIR"] = tempfile.mkdtemp()

import yaml
from minisweagent.agents.default import DefaultAgent
from minisweagent.config import builtin_config_dir
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models import get_model

URL = sys.argv[1]
MAX_TOKENS, MAX_STEPS = int(os.environ.get("MAX_TOKENS", "256")), int(os.environ.get("MAX_STEPS", "6"))
config = yaml.safe_load((builtin_config_dir / "mini.yaml").read_text())
model = get_model(
    "openai/policy",
    {
        **config.get("model", {}),
        "model_kwargs": {
            "api_base": f"{URL}/v1",
            "api_key": "agent-key",
            "max_tokens": MAX_TOKENS,
        },
    },
)
agent = DefaultAgent(
    model,
    LocalEnvironment(cwd=tempfile.mkdtemp()),
    **{key: value for key, value in config["agent"].items() if key not in ("mode", "confirm_exit")}
    | {"step_limit": MAX_STEPS},
)
result = agent.run("Write the word done into a file named out.txt.")
final = str(result)
print(json.dumps({"answers": agent.n_calls, "final": final}))
