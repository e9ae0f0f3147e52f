"""What a tool's output says of its run: words about failure in what it shows are no failure."""

import time

import pytest
from hintloop_judge.conversation import ToolResult
from hintloop_judge.tool_rules import tool_score

FAILURES = [
    'Traceback (most recent call last):\n  File "a.py", line 1\nNameError: x',
    "start\nTraceback (most recent call last):\n  File \"a.py\", line 1, in <module>\n    f()\nKeyError: 'a'",
    "ValueError: invalid literal for int()",
    "Error: file not found",
    "error[E0382]: borrow of moved value\n --> src/main.rs:3:5\n  |\n3 |     let y = x;\n  |             - moved",
    "Process exited with code 127",
    "exit code: 1",
    "exit status 2",
    "Exit code 1\nsome output",
    "Error: Process completed with exit code 1.",
    "container app exited with code 137",
    "Command failed with exit code 2: make",
    "compiling\nlinking\n[exit code: 2]",
    "Command failed with exit code 1: npm test",
    '{"exit_code": 3, "stdout": ""}',
    '{"returncode": 1}',
    '{"output": "bad flag", "metadata": {"exit_code": 2, "duration_seconds": 0.1}}',
    '{"stdout": "", "stderr": "bash: foo: command not found"}',
    '{"success": false}',
    '{"isError": true, "content": []}',
    '{"error": "no such user"}',
    '{"error": {"code": 7, "message": "no such user"}}',
    '{"status": "error", "message": "no"}',
    "{'error': 'no such user'}",
    "HTTP/1.1 404 Not Found",
    "status code 500",
    "Status: 404 Not Found",
    "404 Not Found",
    "Error 403 Forbidden: quota",
    "Request failed with status code 502",
    '{"status": 422}',
    "curl: (6) Could not resolve host: nowhere",
    "===== 2 failed, 8 passed in 0.31s =====",
    "F..\n2 failed, 8 passed in 0.31s",
    "FAILED (failures=1)",
    "FAILED tests/test_a.py::test_b - assert 1 == 2",
    "def test_b():\n>       assert 1 == 2\nE       assert 1 == 2\n\n=== 1 failed in 0.02s ===",
    "Tests:       1 failed, 4 passed, 5 total",
    "test result: FAILED. 3 passed; 1 failed; 0 ignored",
    "--- FAIL: TestAdd (0.00s)",
    "[INFO] compiling\n[INFO] BUILD FAILURE\n[INFO] Total time: 3 s\n[INFO] Finished",
    "Found 3 errors in 1 file (checked 12 source files)",
    "a.c:3:5: error: expected ';' before '}' token",
    "src/a.ts(3,5): error TS2322: Type 'x' is not assignable",
    "make: *** [Makefile:3: all] Error 2",
    "npm ERR! missing script: test",
    "bash: foo: command not found",
    "bash: line 1: foo: command not found",
    "zsh: command not found: foo",
    "cat: a.txt: No such file or directory",
    "ls: cannot access 'x': No such file or directory",
    "/bin/sh: 1: foo: not found",
    "fatal: not a git repository",
    "git@example.org: Permission denied (publickey).",
    "CONFLICT (content): Merge conflict in a.py\nAutomatic merge failed; fix conflicts",
    "Segmentation fault (core dumped)",
    "run.sh: line 3:  4242 Killed                  python train.py",
    "cat: docs: Is a directory",
    "Killed",
    "panic: runtime error: index out of range",
    "Uncaught ReferenceError: x is not defined",
    'Exception in thread "main" java.lang.NullPointerException',
    "ERROR: Could not find a version that satisfies the requirement x\nERROR: No matching distribution found for x",
    "[Errno 2] No such file or directory: 'a'",
    "<tool_use_error>File has not been read yet</tool_use_error>",
    'psql: ERROR\nERROR:  relation "users" does not exist\nLINE 1: select 1',
]

SUCCESSES = [
    "exit code 0",
    "Process exited with code 0",
    "10 passed in 0.2s",
    "===== 8 passed, 1 skipped in 0.31s =====",
    '{"success": true}',
    '{"exit_code": 0, "stdout": "3 errors"}',
    "HTTP 200",
    "HTTP/1.1 200 OK",
    "Successfully installed x",
    "0 failed, 3 passed",
    "All 5 tests passed.",
    "test result: ok. 3 passed; 0 failed",
]

SOURCE = """def count(path):
    try:
        return read(path)
    except OSError as error:
        raise ValueError("Error: no such file or directory") from error
    return 1"""
LOG = """2026-01-02 10:00:00 INFO starting
2026-01-02 10:00:01 ERROR: connection refused, HTTP 500
2026-01-02 10:00:02 INFO retried, 3 failed, 8 passed
2026-01-02 10:00:03 INFO done"""
LOG_WITH_TRACE = """INFO:root:starting
ERROR:root:job 7
Traceback (most recent call last):
  File "a.py", line 1, in run
ValueError: bad job
INFO:root:next job
INFO:root:done"""
DOCUMENT = """# Exit codes
- 0: found
- 1: nothing found
Error: is printed on standard error, with status 404 when a page is missing.
```
exit code 1 means nothing was found
```"""

ORDINARY = [
    "total 4\n-rw-r--r-- 1 a a 5 notes.md",
    "0 errors",
    "no errors found",
    "class ParseError(Exception): pass",
    '{"error": null}',
    "The search returned 12 results.",
    "Query returned 7 rows",
    "returned with 3 items",
    "return 0;",
    "return 1",
    'int main(void) {\n    puts("hi");\n    return 1;\n}',
    "     1\tdef f():\n     2\t    raise ValueError('x')\n     3\tError: none of this ran\n     4\t    return 1",
    '{"count": 5, "returned": 5}',
    '{"pages": 404, "status": "ready", "failures": 2}',
    '{"jobs": [{"id": 1, "error": "lost", "exit_code": 3}], "total": 1}',
    '[{"status": 500, "path": "/a"}, {"status": 404, "path": "/b"}]',
    '{"errors": 3, "warnings": 1}',
    '{"error": "", "exitCodes": [1, 2]}',
    "status: 404 pages crawled",
    "404 pages were crawled, 500 remain",
    "grep: 3 errors fixed",
    "3 errors fixed, 2 failed attempts before",
    "5 failed logins today",
    "errors: 3\nwarnings: 4\nnotes: 1\nlines: 400",
    "Error: none",
    "error: 0",
    "name: ci\non: push\nerror: '#f00'\nfailure: stop",
    SOURCE,
    LOG,
    LOG_WITH_TRACE,
    DOCUMENT,
    "src/a.py:12:    raise ValueError('x')\nsrc/b.py:7:    # Error: never",
    "app.log:3: error: connection refused",
    "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-Error: old\n+fatal: new",
    "commit 1a2b3c\n    Fix exit code 1 on empty input\n    ValueError: is now caught",
    "The server answers with status code 404 when a page is missing.",
    "Exit code 1 means that no lines were selected.",
    '127.0.0.1 - - [02/Jan/2026] "GET / HTTP/1.1" 404 153\n127.0.0.1 - - [02/Jan/2026] "GET /a HTTP/1.1" 500 1',
    "How to fix 'command not found' in bash\nPermission denied when running a script - what to do?",
    "I read that the build failed because of a missing header, in 2019.",
    "Found 3 errors (3 fixed, 0 remaining).",
    "ERRORS.md\nFailed.java\nfailed_jobs.csv\nTraceback.py",
    "Killed by Death is a song",
    "aborted transactions: 5",
    "result: not found",
    "docs: is a directory",
    "Tests failed: 0",
    "12 files changed, 3 insertions(+), 404 deletions(-)",
]


@pytest.mark.parametrize("text", FAILURES)
def test_failures(text: str) -> None:
    assert tool_score([ToolResult(text)]) == -1


@pytest.mark.parametrize("text", SUCCESSES)
def test_successes(text: str) -> None:
    assert tool_score([ToolResult(text)]) == 1


@pytest.mark.parametrize("text", ORDINARY)
def test_output_that_does_not_tell(text: str) -> None:
    assert tool_score([ToolResult(text)]) == 0


def test_long_output_is_read_at_its_edges() -> None:
    middle = [f"line {number}" for number in range(50)]
    assert tool_score([ToolResult("\n".join([*middle, "exit code: 3"]))]) == -1
    assert tool_score([ToolResult("\n".join([*middle, "exit code: 3", *middle]))]) == 0


def test_nesting_without_end_is_only_text() -> None:
    assert tool_score([ToolResult("[" * 100_000)]) == 0


@pytest.mark.parametrize("piece", ["a: ", "exit ", "- ", "status ", ".", "4", " ", "Error"])
def test_long_lines_are_read_in_little_time(piece: str) -> None:
    started = time.process_time()
    assert tool_score([ToolResult((piece * 100_000).strip() + "x")]) == 0
    assert time.process_time() - started < 1
