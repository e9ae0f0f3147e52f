"""What people and agents say, for the console's tests: ordinary exchanges, and such as try to break a page."""

from __future__ import annotations

from hintloop_contract.messages import Vote

from tests.integration.console.traffic import Said

FILE_MISSING = Said(
    asked="Print the first ten lines of config/settings.yaml and tell me which port the server listens on.",
    answer=(
        "I'll read the file and report the port.\n\n```python\nwith open('config/settings.yaml') as file:\n"
        "    for line in file.readlines()[:10]:\n        print(line)\n```\n\nThe server listens on port 8000, "
        "as configured in `settings.yaml`."
    ),
    then="FileNotFoundError: [Errno 2] No such file or directory: 'config/settings.yaml'",
    score=-1,
    hint="Check that the file exists before you open it, and do not state its contents before you have read it.",
    tools=[{"type": "function", "function": {"name": "read_file", "parameters": {"path": {"type": "string"}}}}],
)
TOO_LONG = Said(
    asked="What does `git rebase --onto` do?",
    answer=(
        "Great question! `git rebase --onto` is a very powerful command that lets you transplant a range of commits "
        "from one base to another. It takes three arguments: the new base, the old base and, optionally, a branch. "
        "Let me explain each of them in detail, beginning with some history of version control."
    ),
    then="One short sentence please.",
    score=-1,
    hint="Answer in one short sentence.",
    earlier=[("Hi, I use git daily.", "Good. What do you need?"), ("A few commands.", "Ask away.")],
)
GOOD = Said(
    asked="Rename `fetch_all` to `load_rows` everywhere and run the tests.",
    answer="Renamed in 4 files (12 places); 86 tests pass.",
    then="Perfect, thanks. Always run the tests like that.",
    score=1,
    hint="After a change, run the tests and say how many pass.",
)
CHINESE = Said(
    asked="用一句话说明这个函数做什么。",
    answer="这个函数读取配置文件，检查每个字段的类型，然后返回一个只读的设置对象；缺少字段时会抛出异常。",
    then="太长了，而且没有提到缓存。",
    score=-1,
    hint="用不超过二十个字回答，并提到缓存。",
)
NO_HINT = Said(
    asked="Is main green?",
    answer="Yes, the last run passed.",
    then="ok",
    score=0,
    drop=("judge", "no_hint", "3 votes, none with a hint of 12 to 240 characters"),
)
STALE = Said(
    asked="Summarise the incident.",
    answer="The database ran out of connections at 14:02; a restart of the pool mended it at 14:09.",
    then="Who was on call?",
    score=-1,
    hint="Name who was on call.",
    drop=("train", "stale", "made by version 3, 5 steps behind version 8 (max_staleness_steps = 4)"),
)
SCRIPT = '<script>window.hacked = true</script><img src=x onerror="window.hacked = true"><b>bold?</b> {{ 7 * 7 }}'
HOSTILE = Said(
    asked=f"{SCRIPT}\n\x1b[31mred\x1b[0m \u202eright-to-left override\u202c & &amp; %s ${{x}}",
    answer=f"{SCRIPT} مرحبا بالعالم שלום 👩‍👩‍👧‍👦🏳️‍🌈🇨🇳 e\u0301 \u200b\u200d zero width",
    then="\ud83d alone, " + "Zalgo: " + "a" + "\u0301\u0302\u0303\u0304" * 12,
    score=-1,
    hint=f"Do not write {SCRIPT}",
    votes=(Vote(score=-1, hint=SCRIPT), Vote(failed=SCRIPT)),
)
ARABIC = Said(
    asked="اكتب جملة واحدة عن البحر.",
    answer="البحر واسع وجميل، وموجه لا يهدأ. (The sea, in English.)",
    then="أقصر من فضلك",
    score=-1,
    hint="اكتب خمس كلمات فقط.",
)
VERY_LONG = Said(
    asked="x" * 20_000 + "\n" + "no break " * 4_000,
    answer="The log repeats itself. " * 260,
    then="W" * 5_000,
    score=-1,
    hint="Do not repeat the log; say which line comes first.",
)

#: Turns that reach a step, or a drop, one after the other.
ORDINARY = (FILE_MISSING, TOO_LONG, GOOD, CHINESE, NO_HINT, STALE)
DROPS = (
    ("link", "no_next_state", "timed out after 300 s"),
    ("link", "side", "marked by X-Turn-Type: side"),
    ("capture", "aborted", "the client went away after 31 tokens"),
    ("link", "no_next_state", "timed out after 300 s"),
    ("teach", "render_mismatch", "position 118: captured 4521, rendered 198"),
    ("link", "backpressure", "128 turns wait; 128 can be trained fresh"),
    ("link", "retry", "repeats the request of 2 s before"),
)
