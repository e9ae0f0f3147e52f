"""Whether a tool's output says that it failed or succeeded. Words about failure in what a tool shows are no failure.

Only statements count: an exit code, a test runner's closing line, an error in its language's own syntax, a field of
a JSON answer. Listings, logs, settings and documents that merely hold such words say nothing (0).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from hintloop_judge.conversation import ToolResult

_REASONS = (
    r"(?:Bad Request|Unauthorized|Payment Required|Forbidden|Not Found|Method Not Allowed|Not Acceptable|Conflict|Gone|"
    r"Unprocessable (?:Entity|Content)|Too Many Requests|Internal Server Error|Not Implemented|Bad Gateway|"
    r"Service (?:Temporarily )?Unavailable)"
)
_WHO = r"^\W*(?:(?:the )?[\w./'\"`-]+(?: [\w./'\"`-]+){0,5} )??"
_CODE = (
    _WHO + r"(?:(?:exited|failed|finished|completed|terminated)(?: with)? )?(?:a )?(?:non-zero )?"
    r"(?:(?:exit|return)[ _-]?(?:code|status)|returncode|退出(?:代码|码|状态)|返回(?:码|值)|"
    r"(?<=exited with )(?:code|status))['\"]?"
    r"(?:\s*[:=\uff1a]\s*| (?:of |is )?)"
)
_EXITED = r"^\W*(?:[\w./-]+ ){0,3}exited with "
_STATED_CODE = re.compile(rf"{_CODE}(-?\d+)(?:\W*$|: )|{_EXITED}(-?\d+)\W*$", re.IGNORECASE)
#: More of a line than this is never a statement.
_MAX_LINE = 1000


def _compiled(*patterns: str, flags: int = re.IGNORECASE) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern, flags) for pattern in patterns)


#: A whole line, near the beginning or the end: what the shell or the agent's harness says of the run.
_FAILED_RUN = _compiled(
    _CODE + r"-?0*[1-9]\d*(?:\W*$|: )",
    _EXITED + r"-?[1-9]\d*\W*$",
    r"^make(?:\[\d+\])?: \*\*\* .*\bError \d+",
    r"^(?:npm|yarn|pnpm)[ :]+err(?:or|!)",
    r"^(?:[\w.~/@-]+: ){1,4}(?:line \d+: )?(?:.*: )?(?:command not found|no such file or directory|"
    r"no space left on device|permission denied(?: \([^)]*\))?|未找到命令|"
    r"没有那个文件或目录|权限不够|设备上没有空间)(?:: \S+)?\W*$",
    r"^[\w./-]*sh: (?:\d+: )?.*: not found$|^[\w./-]+: .*: (?:is|not) a directory$",
    r"^[\w./-]+: (?:cannot|can't|could not|unable to) \w+ ",
    r"^.*\bis not recognized as an internal or external command",
    r"^(?:.*: )?(?:segmentation fault|bus error|aborted|killed)(?: +\(core dumped\))?\W*$",
    r"^.*: line \d+: +\d+ (?:segmentation fault|bus error|aborted|killed)\b",
    r"^(?:command|build|execution|compilation|request|operation|deployment|installation|task|job|tool)(?: \S+){0,3} "
    r"failed(?:\W*$|[:.]| with\b| because\b)",
    r"^request failed with (?:http )?status(?: code)? [45]\d\d",
    r"^curl: \(\d+\) ",
)
#: A whole line anywhere: what only a test runner, a compiler's driver or a server writes.
_FAILED_SUMMARY = _compiled(
    r"^=+ (?:.*, )?[1-9]\d* (?:failed|errors?)\b.* in [\d.:]+.* =+$",
    r"^[1-9]\d* (?:failed|errors?)(?:, \d+ [a-z]+)* in [\d.]+ ?s",
    r"^[1-9]\d* (?:tests? )?(?:failed|failing)(?:, \d+ (?:tests? )?(?:passed|passing|skipped|pending))*\W*$",
    r"^\s+[1-9]\d* failing$",
    r"^FAILED \((?:failures|errors)=",
    r"^FAILED [\w./-]+(?:::\S+| - )",
    r"^FAIL(?:ED)?: \w+",
    r"^--- FAIL: |^FAIL\t\S+",
    r"^test result: FAILED",
    r"^Tests?(?: suites)?: +(?:\d+ \w+, )*[1-9]\d* failed",
    r"^(?:\[\w+\] )?Tests run: \d+.*\b(?:Failures|Errors): [1-9]",
    r"^(?:\[\w+\] )?BUILD (?:FAILED|FAILURE)\b",
    r"^Found [1-9]\d* errors?(?: in \d+ files?\b.*|\W*$| \(.*\b[1-9]\d* remaining.*)",
    r"^\W*[1-9]\d* problems? \([1-9]\d* errors?",
    rf"^HTTP/\d(?:\.\d)? [45]\d\d\b|^HTTP[ :]+[45]\d\d(?: {_REASONS})?\W*$",
    rf"^\W*(?:http )?status(?: ?code)?(?:\s*[:=]\s*| )[45]\d\d(?: {_REASONS})?\W*$",
    rf"^\W*(?:error:? |http error:? )?[45]\d\d {_REASONS}\b(?:\W*$|[:.(])",
    r"^CONFLICT \(|^Automatic merge failed",
)
_NOTHING = r"(?!\s*(?:0|none|null|nil|false|n/?a|\[\]|\{\}|''|\"\")\s*[,.]?\s*$)"
#: The beginning of a line, in output that is no listing: an error in its own syntax.
_ERROR_LINE = _compiled(
    rf"^(?:error|fatal|fatal error|panic|fail(?:ed|ure)?)(?:\[\w+\])? ?:{_NOTHING}\s*\S",
    r"^error (?:executing|reading|calling|running|opening|loading|fetching|parsing|writing|occurred|while|when|in) ",
    rf"^(?:错误|致命错误|异常|失败)\s*[:\uff1a]{_NOTHING}(?!\s*无\W*$)\s*\S",
    r"^error TS\d+: |^ERROR \d+ \(\w+\)",
    r"^\[(?:error|fatal)\] ?\S",
    r"^\[errno -?\d+\]",
    r"^<(?:tool_use_)?error>",
    r"^thread '[^']*' (?:\(\d+\) )?panicked at |^undefined reference to |^ld: |^collect2: error",
    r"^Exception in thread |^Unhandled exception\b|^Uncaught \w",
    r"^[\w./\\-]+\.(?:c|cc|cpp|cu|h|hpp|rs|go|py|tsx?|jsx?|java|kt|swift|cs|scala|rb|php|hs|zig|f90|tex|s)"
    r"(?::\d+(?::\d+)?:?|\(\d+,\d+\):) (?:fatal )?error\b",
) + _compiled(
    r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)(?: \[\w+\])?:\s*\S", r"^[A-Z]\w*(?:Error|Exception)$", flags=0
)
_TRACEBACK = re.compile(r"^\W*Traceback \(most recent call last\):")

_SUCCEEDED_RUN = _compiled(
    _CODE + r"0+\W*$",
    _EXITED + r"0\W*$",
    r"^successfully \w+ed\b|^(?:the )?build succeeded\b|^(?:\[\w+\] )?BUILD SUCCESS",
)
_SUCCEEDED_SUMMARY = _compiled(
    r"^=+ (?:\d+ (?:skipped|deselected|xfailed|warnings?), )*[1-9]\d* passed\b.* in [\d.:]+.* =+$",
    r"^[1-9]\d* (?:tests? )?passed\b(?:, \d+ [a-z]+)*(?: in [\d.]+ ?s.*)?\W*$",
    r"^Tests?(?: suites)?: +(?:\d+ (?:skipped|todo|pending), )*[1-9]\d* passed, \d+ total\W*$",
    r"^\s+[1-9]\d* passing(?: \([\d.]+m?s\))?$",
    r"^all (?:\d+ )?tests? passed\W*$|^0 failed, [1-9]\d* passed\W*$",
    r"^test result: ok\.",
    r"^HTTP/\d(?:\.\d)? 2\d\d\b|^HTTP[ :]+2\d\d(?: \w+)?\W*$",
    r"^\W*(?:http )?status(?: ?code)?(?:\s*[:=]\s*| )2\d\d(?: OK| Created| Accepted| No Content)?\W*$",
)

#: Kinds of lines of which a shown file or log is made.
_LOG_LINE = re.compile(
    r"^\W*(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d|\d\d:\d\d:\d\d\b|"
    r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +\d+ \d\d:|"
    r"\d+\.\d+\.\d+\.\d+ - |(?:DEBUG|INFO|NOTICE|TRACE|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b\W)"
)
_CALM_LOG_LINE = re.compile(r"^\W*(?:\d|[A-Z][a-z]{2} +\d|(?:DEBUG|INFO|NOTICE|TRACE)\b)")
_NUMBERED_LINE = re.compile(r"^\s*\d+(?:\t|→|\s*[|│]|: |-\s)")
_DIFF_LINE = re.compile(r"^(?:diff --git |@@ -\d|\+\+\+ |--- [ab/])")
_SETTING_LINE = re.compile(r"^\s*(?:#|;|//|-\s|\[[\w .-]+\]$|[\w.\"'-]+\s*[:=](?:\s|$))")
_CODE_LINE = re.compile(
    r"^\s*(?:(?:async )?def \w|class \w|import \w|from \w[\w.]* import|return\b|raise \w|throw \w|try\b|except\b|"
    r"finally\b|catch\b|elif |else\b|if \(|"
    r"if \w.*[:{]$|for \(?\w.*[:{]$|while .*[:{]$|with .*:$|@\w|#include|#define|#!|using |"
    r"(?:public|private|protected|static|const|let|var|function|fn|func|package|export|struct|enum|impl|use|mod|type) |"
    r"[}\])]+[;,]?$|//|/\*|\*/|\w[\w.]* ?= ?\S|\w[\w.]*\(.*\)[;,:]?$|(?:int|void|char|double|float|bool) \w)"
)
_MARKDOWN_LINE = re.compile(r"^(?:#{1,6} \S|```|\* \S|- \S|\|.*\|$)")

_JSON_ERRORS = ("error", "errors", "exception", "traceback")
_JSON_FAILED = ("is_error", "isError", "failed")
_JSON_PASSED = ("success", "ok", "passed", "succeeded")
_JSON_CODES = ("exit_code", "exitCode", "exit_status", "exitStatus", "returncode", "return_code", "returnCode")
_JSON_STATUS = ("status", "status_code", "statusCode", "http_status")
_JSON_WRAPPERS = ("metadata", "meta", "result", "data")
_JSON_TEXTS = ("stderr", "output", "stdout")
_REPR_ERROR = re.compile(r"^\{[^{}\[\]]*'error': (?:'[^']+'|\"[^\"]+\")|^\{[^{}\[\]]*'(?:success|ok)': False\b")


def strongest(scores: Sequence[int | None]) -> int | None:
    """Of several tools' scores: -1 when any failed, else the highest; ``None`` when none said anything."""
    judged = [score for score in scores if score is not None]
    if not judged:
        return None
    return -1 if -1 in judged else max(judged)


def one_tool(result: ToolResult) -> int | None:
    """Score of one tool's output by what any tool's output may say; ``None`` when it says nothing."""
    if result.is_error is not None:
        return -1 if result.is_error else 1
    text = result.text.strip("\n")
    if not text.strip():
        return None
    if text.lstrip()[0] in "{[":
        try:
            return _json_score(json.loads(text))
        except (ValueError, RecursionError):
            if _REPR_ERROR.search(text.lstrip()):
                return -1
    return text_score(text)


def _json_score(value: Any) -> int:
    """The verdict of a JSON answer's own fields; a list is data, whatever its items say."""
    if not isinstance(value, dict):
        return 0
    if _json_failed(value):
        return -1
    if _json_succeeded(value):
        return 1
    inner = [_json_score(value[key]) for key in _JSON_WRAPPERS if isinstance(value.get(key), dict)]
    inner += [text_score(text) for key in _JSON_TEXTS if isinstance(text := value.get(key), str) and text.strip()]
    return -1 if -1 in inner else max(inner, default=0)


def _json_failed(value: dict[str, Any]) -> bool:
    named = any(value.get(key) and not isinstance(value[key], int | float) for key in _JSON_ERRORS)
    flagged = value.get("error") is True or any(value.get(key) is True for key in _JSON_FAILED)
    denied = any(value.get(key) is False for key in _JSON_PASSED)
    return named or flagged or denied or any(_whole(value.get(key)) for key in _JSON_CODES) or _bad_status(value)


def _bad_status(value: dict[str, Any]) -> bool:
    return any(400 <= _whole(value.get(key)) < 600 or value.get(key) == "error" for key in _JSON_STATUS)


def _json_succeeded(value: dict[str, Any]) -> bool:
    if any(value.get(key) is True for key in _JSON_PASSED):
        return True
    if any(type(value.get(key)) is int and value[key] == 0 for key in _JSON_CODES):
        return True
    return any(200 <= _whole(value.get(key)) < 300 for key in _JSON_STATUS)


def exit_code(lines: Sequence[str], value: dict[str, Any]) -> int | None:
    """The exit code that an output states in the common forms: a field of its JSON, or a line near its edges."""
    for holder in (value, *(value[key] for key in _JSON_WRAPPERS if isinstance(value.get(key), dict))):
        for key in _JSON_CODES:
            if type(holder.get(key)) is int:
                return int(holder[key])
    for line in reversed(_edges(lines)):
        if match := _STATED_CODE.match(_shortened(line)):
            return int(match[1] or match[2])
    return None


def _edges(lines: Sequence[str]) -> list[str]:
    return list(lines) if len(lines) <= 6 else [*lines[:2], *lines[-4:]]


def _whole(value: Any) -> int:
    """A whole number as itself, anything else as 0."""
    return value if type(value) is int else 0


def text_score(text: str) -> int:
    """-1, 0 or +1 of plain output."""
    lines = [_shortened(line.rstrip()) for line in text.splitlines() if line.strip()]
    edges = _edges(lines)
    shown = _is_record(lines)
    failed_run = _any_match(_FAILED_RUN, edges[:1] + edges[-1:] if shown else edges)
    if failed_run or _any_match(_FAILED_SUMMARY, lines) or _ends_in_traceback(lines):
        return -1
    if not shown and _any_match(_ERROR_LINE, lines[:1] if _is_source(lines) else lines):
        return -1
    if _any_match(_SUCCEEDED_RUN, edges) or _any_match(_SUCCEEDED_SUMMARY, lines):
        return 1
    return 0


def _shortened(line: str) -> str:
    return line if len(line) <= _MAX_LINE else line[:_MAX_LINE] + " (cut)"


def _any_match(patterns: Sequence[re.Pattern[str]], lines: Sequence[str]) -> bool:
    return any(pattern.match(line) for line in lines for pattern in patterns)


def _ends_in_traceback(lines: list[str]) -> bool:
    """Whether the last thing the output says is an uncaught exception: nothing but its message stands after it."""
    starts = [index for index, line in enumerate(lines) if _TRACEBACK.match(line)]
    if not starts or _share(_NUMBERED_LINE, lines) > 0.6:
        return False
    after = lines[starts[-1] + 1 :]
    unindented = next((index for index, line in enumerate(after) if not line[0].isspace()), len(after))
    return not any(_LOG_LINE.match(line) for line in after[unindented + 1 :])


def _is_record(lines: list[str]) -> bool:
    """Whether the output is a log, settings, a diff, numbered lines or search hits: all of it is something shown."""
    if any(_DIFF_LINE.match(line) for line in lines[:3]):
        return True
    if len(lines) < 2:
        return False
    calm = any(_CALM_LOG_LINE.match(line) for line in lines)
    if calm and _share(_LOG_LINE, lines) >= 0.5:
        return True
    return _share(_NUMBERED_LINE, lines) > 0.6 or (len(lines) >= 4 and _share(_SETTING_LINE, lines) > 0.8)


def _is_source(lines: list[str]) -> bool:
    """Whether the output is a source listing or a written document; what an error quotes of one stays below that."""
    return len(lines) >= 2 and (_share(_CODE_LINE, lines) >= 0.4 or _share(_MARKDOWN_LINE, lines) >= 0.3)


def _share(pattern: re.Pattern[str], lines: list[str]) -> float:
    return sum(pattern.match(line) is not None for line in lines) / len(lines)
