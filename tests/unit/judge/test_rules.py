"""The rules backend on sentences of many kinds. The demo's scripted user has wordings of its own."""

import time

import pytest
from hintloop_contract.config.schema import OpdSection
from hintloop_judge.rules import Verdict, read_text

SECTION = OpdSection()

# (what the user wrote, score, what the hint must say (lower case), or None for no hint)
CORRECTIONS = [
    ("Way too wordy. Could you stick to a single short sentence?", -1, "stick to a single short sentence"),
    ("I don't need an essay, just one sentence.", -1, "just one sentence"),
    ("That's a lot of text - next time one sentence is enough.", -1, "next time one sentence is enough"),
    ("Shorter answers, please. What is a comet?", -1, "shorter answers"),
    ("Hmm, that was long-winded. Keep it to one brief line please. How do bees fly?", -1, "keep it to one brief line"),
    ("Please answer in French from now on.", -1, "answer in french from now on"),
    ("I'd prefer French answers.", -1, "i'd prefer french answers"),
    ("En anglais? No, I asked for French.", -1, "i asked for french"),
    ("Could you reply in French instead?", -1, "reply in french instead"),
    ("Use a numbered list next time.", -1, "use a numbered list next time"),
    ("I wanted a numbered list, not prose.", -1, "i wanted a numbered list, not prose"),
    ("Can you format that as a numbered list please?", -1, "format that as a numbered list"),
    ("You forgot to greet me. Start with a friendly greeting.", -1, "start with a friendly greeting"),
    ("Begin with 'Hi Sam,' before anything else.", -1, "begin with 'hi sam,'"),
    ("Stop using emojis.", -1, "stop using emojis"),
    ("No emojis please.", -1, "no emojis"),
    ("I really don't like all these smileys, leave them out.", -1, "leave them out"),
    ("Always cite your sources.", -1, "always cite your sources"),
    ("Where are the sources? You should cite them with links.", -1, "you should cite them with links"),
    ("Don't use bullet points.", -1, "don't use bullet points"),
    ("That is wrong, the capital of Australia is Canberra.", -1, "the capital of australia is canberra"),
    ("No, I meant Paris in Texas.", -1, "i meant paris in texas"),
    ("That's not what I asked for. I need the date in ISO format.", -1, "i need the date in iso format"),
    ("Great, but in French please.", -1, "in french"),
    ("Thanks! Please keep your answers shorter, though.", -1, "keep your answers shorter"),
    ("Nice, but next time skip the disclaimer.", -1, "next time skip the disclaimer"),
    ("Too technical for me, explain it in simple words.", -1, "in simple words"),
    ("Please be less formal with me.", -1, "be less formal with me"),
    ("Less jargon please, and tell me what gravity is.", -1, "less jargon"),
    ("Why is it so long? One sentence would do.", -1, "one sentence would do"),
    ("Next time run the tests before you say it is done.", -1, "next time run the tests"),
    ("You should have read the config file first.", -1, "you should have read the config file first"),
    ("Don't edit the generated files, change the template instead.", -1, "change the template instead"),
    ("I told you to use pytest, not unittest.", -1, "i told you to use pytest, not unittest"),
    ("That isn't quite right.", -1, None),
    ("This doesn't work.", -1, "this doesn't work"),
    ("not helpful at all", -1, None),
    ("Exactly one sentence, please.", -1, "exactly one sentence"),
    ("That answer was far too long.", -1, "far too long"),
    ("End with a question next time, please.", -1, "end with a question next time"),
]
FORMS = [
    ("Be concise.", -1, "be concise"),
    ("Make it shorter", -1, "make it shorter"),
    ("Could you explain that more simply?", -1, "explain that more simply"),
    ("I said one sentence.", -1, "i said one sentence"),
    ("Still more than one line. I need just one line.", -1, "i need just one line"),
    ("You're rambling. One short line!", -1, "one short line"),
    ("You didn't say hello. Please always start with a greeting. What is rain?", -1, "always start with a greeting"),
    ("A greeting first would be nice.", -1, "a greeting first would be nice"),
    ("It'd be great if you could cite sources.", -1, "you could cite sources"),
    ("No lists, please.", -1, "no lists"),
    ("Please don't apologize so much.", -1, "don't apologize so much"),
    ("answer me in plain text without markdown", -1, "in plain text without markdown"),
    ("Why didn't you use a table?", -1, "use a table"),
    ("Sorry, I meant the second file.", -1, "i meant the second file"),
    ("The function still throws an error when the list is empty.", -1, "still throws an error"),
    ("One sentence is plenty for me. What is sand?", -1, "one sentence is plenty"),
    ("Exactly right, in French and with a greeting.", 1, "in french and with a greeting"),
    ("Short and to the point, thank you. What is a camera?", 1, "short and to the point"),
    ("I like how you always give examples, thanks!", 1, "you always give examples"),
    ("Thanks for keeping it short.", 1, "keeping it short"),
    ("Looks good to me, merge it.", 1, None),
]
FORMS += [
    ("It's Bern, not Zurich.", -1, "it's bern, not zurich"),
    ("It's not Zurich, it's Bern.", -1, "it's not zurich, it's bern"),
    ("You renamed my files as well. Leave the other ones alone please.", -1, "leave the other ones alone"),
    ("Don't touch the tests unless I ask.", -1, "don't touch the tests unless i ask"),
    ("Precisely the kind of answer I hoped for.", 1, None),
]
CONFIRMATIONS = [
    ("Perfect, a single sentence is all I need.", 1, "a single sentence is all i need"),
    ("Exactly what I wanted: short and clear.", 1, "short and clear"),
    ("Great, keep it that short! Now, what is a glacier?", 1, "keep it that short"),
    ("Yes! One sentence, that's how I like it. What is a comet?", 1, "one sentence"),
    ("Love it, short and sweet.", 1, "short"),
    ("That's the way I like it, in French.", 1, "in french"),
    ("Thanks, a numbered list is exactly what I asked for.", 1, "a numbered list"),
    ("I love the friendly greeting, keep doing that.", 1, "friendly greeting"),
    ("Good, no emojis this time.", 1, "no emojis this time"),
    ("Wonderful, with sources and links, just the way I wanted.", 1, "with sources and links"),
    ("Much better! More answers like that.", 1, None),
    ("That's perfect, thanks.", 1, None),
    ("not bad", 1, None),
    ("that's not too long", 1, "not too long"),
    ("Nothing wrong with that, thanks.", 1, None),
    ("That worked, thank you!", 1, None),
    ("Great answer! What is the tallest mountain?", 1, None),
    ("👍", 1, None),
]
NEUTRAL = [
    "I'm not sure why the sky is blue?",
    "Please tell me about whales.",
    "Briefly tell me about opera.",
    "In short, what is a battery?",
    "What is the longest sentence ever written?",
    "no, thanks, that's all",
    "No, I don't have any other questions.",
    "Yes, but what about Mars?",
    "Yes please.",
    "ok",
    "Thanks. What is a volcano?",
    "Can you please name a short river in France?",
    "Could you write a short poem about autumn?",
    "Please write a function that sorts a list.",
    "In one short sentence, why do leaves fall?",
    "The wall is too short for the poster, what should I do with it?",
    "What is the Great Wall of China?",
    "What's wrong with the economy of Venezuela?",
    "I asked my sister about owls yesterday.",
    "Please translate this sentence into French: the cat sleeps.",
    "Who wrote 'Too Long a Winter'?",
    "Another question please: how do magnets work?",
    "I want to know how bread is made.",
    "Now fix the failing test in utils.py.",
    "How do I stop a nosebleed?",
    "Which is better, tea or coffee?",
    "What do you like about French?",
    "I love French cuisine. What should I cook?",
    "I hate mondays",
    "Tell me about the French language.",
    "Give me three bullet points on the French revolution.",
    "Please summarize the attached report in one paragraph.",
    "My boss said the report is too long, can you shorten it?",
    "Why are the answers on the exam so long?",
    "Do you prefer short or long answers?",
    "Now do the same for Mars",
    "Please also add a section about pricing.",
    "Don't you think cats are better than dogs?",
    "Is that correct?",
    "The bus is red, not blue. Where do I get off?",
    "It's blue, not green, right?",
    "My dog is brown, not black.",
]


@pytest.mark.parametrize(("text", "score", "hint"), CORRECTIONS + FORMS + CONFIRMATIONS)
def test_reads_corrections_and_confirmations(text: str, score: int, hint: str | None) -> None:
    verdict = read_text(text, SECTION)
    assert verdict.score == score
    if hint is None:
        return
    assert verdict.hint is not None
    assert hint in verdict.hint.lower()
    assert SECTION.min_hint_length <= len(verdict.hint) <= SECTION.max_hint_length


@pytest.mark.parametrize("text", NEUTRAL)
def test_goes_on_without_a_word_about_the_answer(text: str) -> None:
    verdict = read_text(text, SECTION)
    assert (verdict.score, verdict.hint) == (0, None)


def test_a_hint_with_a_control_token_is_not_offered() -> None:
    verdict = read_text("Too long. Answer in one sentence<|im_end|>.", SECTION)
    assert verdict.score == -1
    assert verdict.hint is None or "<|" not in verdict.hint


@pytest.mark.parametrize(
    "unit",
    [
        "no, thanks. too long (please ",
        "yes, ",
        "太长了，",
        "<context>",
        "<context ",
        "```{ x",
        "e.g. ",
        "a" + " " * 9000,
    ],
)
def test_a_very_long_message_is_read_in_linear_time(unit: str) -> None:
    text = (unit * 64_000)[:64_000]
    started = time.process_time()
    read_text(text, SECTION)
    assert time.process_time() - started < 3.0  # a quadratic reading takes minutes


def test_what_a_harness_wrote_in_one_long_line_is_left_out() -> None:
    block = "<context>" + '{"too": "long"} ' * 800 + "</context>"
    verdict = read_text(f"{block} One short sentence please. {block}", SECTION)
    assert verdict == Verdict(-1, "One short sentence.")
