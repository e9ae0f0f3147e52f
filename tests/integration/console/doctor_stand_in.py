"""Says what `hintloop doctor --json` says, by its own writer, of a deployment with one fault."""

import sys

from hintloop.doctor.finding import fail, ok, skipped
from hintloop.doctor.show import as_json
from hintloop.doctor.stations import Visit
from hintloop_contract.diagnosis.causes import Cause

VISITS = [
    Visit("configuration", [ok("method", "on_policy_distillation learns from hints")], 0.2),
    Visit(
        "prm",
        [
            fail(
                "log-probabilities",
                "HTTP 200 without logprobs <b>at all</b>",
                Cause.PRM_GIVES_NO_LOGPROBS,
                [{"token": " the", "logprob": None}],
            )
        ],
        1.31,
    ),
    Visit("teacher", [skipped("alignment", "the PRM engine gives no log-probabilities")], 0.0),
]

if __name__ == "__main__":
    sys.stdout.write(as_json(VISITS))
    raise SystemExit(1)
