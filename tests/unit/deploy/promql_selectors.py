"""Reads a JSON list of PromQL expressions, writes for each its selectors: `[[name, [[label, op, value], ...]], ...]`.

Runs in the environment of `scripts/deploy-tools.sh`, which alone has the parser.
"""

import json
import sys

import promql_parser

OPS = {"MatchOp.Equal": "=", "MatchOp.NotEqual": "!=", "MatchOp.Re": "=~", "MatchOp.NotRe": "!~"}


def selectors(node: object) -> list[list[object]]:
    """Every vector selector below ``node``."""
    found: list[list[object]] = []
    if type(node).__name__ == "VectorSelector":
        matchers = [[m.name, OPS[str(m.op)], m.value] for m in node.matchers.matchers]
        found.append([node.name, matchers])
    for name in ("lhs", "rhs", "expr", "vector_selector", "param"):
        below = getattr(node, name, None)
        if below is not None:
            found += selectors(below)
    for below in getattr(node, "args", None) or []:
        found += selectors(below)
    return found


print(json.dumps([selectors(promql_parser.parse(text)) for text in json.load(sys.stdin)]))
