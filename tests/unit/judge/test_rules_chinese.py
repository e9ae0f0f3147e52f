"""The rules backend on Chinese messages, written with full-width marks as a Chinese keyboard gives them."""

import time

import pytest
from hintloop_contract.config.schema import OpdSection
from hintloop_judge.rules import read_text

# Hints of four characters count here: a whole Chinese wish may have no more.
SECTION = OpdSection(min_hint_length=4)
WIDE = str.maketrans({",": "\uff0c", "?": "\uff1f", "!": "\uff01", ":": "\uff1a"})

CORRECTIONS = [
    ("太啰嗦了。", None),
    ("简短一点。", "简短一点"),
    ("能不能说得简单一点?", "简单一点"),
    ("请不要用列表。", "不要用列表"),
    ("我要的是JSON格式,不是文字。", "JSON格式"),
    ("回答错了,应该是1949年。", "应该是1949年"),
    ("还是报错。", None),
    ("怎么又用英文回答?", None),
    ("以后先运行测试再说完成。", "先运行测试"),
    ("你没有回答我的问题。", None),
    ("我让你改的是第二个函数。", "第二个函数"),
    ("请用中文。", "请用中文"),
    ("重新写一遍,语气礼貌一些。", "语气礼貌一些"),
    ("别加表情符号。", "别加表情符号"),
    ("不是北京,是南京。", "是南京"),
    ("这个解释太专业了,用大白话讲。", "用大白话讲"),
    ("不够详细,多举几个例子。", "多举几个例子"),
    ("代码跑不起来。", None),
    ("可以用表格吗?", "用表格"),
    ("少一点术语,谢谢。", "少一点术语"),
    ("我不喜欢这种开场白,直接给答案。", None),
    ("为什么这么长?", None),
    ("请附上来源。", "附上来源"),
    ("字数控制在100字以内。", "100字以内"),
    ("很好,但是下次请用中文。", "下次请用中文"),
]
CONFIRMATIONS = [
    "太好了!",
    "写得很清楚,谢谢。",
    "正是我想要的。",
    "就喜欢这样简洁的回答。",
    "问题解决了。",
    "不错,继续保持。",
    "现在可以运行了,谢谢!",
    "说得太对了。",
    "这次简短多了,真好。",
    "我喜欢你用表格的方式。",
]
NEUTRAL = [
    "谢谢。",
    "好的。",
    "北京有多少人口?",
    "帮我写一个排序函数。",
    "请把这句话翻译成英文。",
    "用一句话解释量子力学。",
    "房子太贵了怎么办?",
    "为什么天空是蓝色的?",
    "我喜欢法国菜。",
    "现在写测试。",
    "他说报告太长了,你能帮我缩短吗?",
    "哪个更好,茶还是咖啡?",
    "如何写一份简短的简历?",
    "给我讲讲法语的历史。",
    "请列出三个要点介绍法国大革命。",
    "这道菜不好吃,有什么办法?",
    "请在文件里加上注释。",
    "老板不喜欢这个颜色,帮我换一个。",
    "他特别高兴是因为放假了。",
    "我必须明天完成报告。",
    "他只用了三天。",
    "我不是学生,是老师。",
    "请把标题改成红色。",
    "我应该先吃饭。",
]


@pytest.mark.parametrize(("text", "hint"), CORRECTIONS)
def test_corrections(text: str, hint: str | None) -> None:
    verdict = read_text(text.translate(WIDE), SECTION)
    assert verdict.score == -1
    assert hint is None or (verdict.hint is not None and hint in verdict.hint)


@pytest.mark.parametrize("text", CONFIRMATIONS)
def test_confirmations(text: str) -> None:
    assert read_text(text.translate(WIDE), SECTION).score == 1


@pytest.mark.parametrize("text", NEUTRAL)
def test_goes_on_without_a_word_about_the_answer(text: str) -> None:
    verdict = read_text(text.translate(WIDE), SECTION)
    assert (verdict.score, verdict.hint) == (0, None)


def test_a_short_wish_is_widened_by_what_it_answers() -> None:
    text = "这个解释太专业了,用大白话讲。".translate(WIDE)
    assert read_text(text, OpdSection()).hint == text
    assert read_text(text, SECTION).hint == "用大白话讲。"


def test_both_languages_in_one_message() -> None:
    verdict = read_text("Thanks. 但是请用中文回答,谢谢。".translate(WIDE), SECTION)
    assert verdict.score == -1
    assert verdict.hint is not None and "请用中文回答" in verdict.hint


@pytest.mark.parametrize("piece", ["太", "请用", "不是", "一", "的", "这", "简短", "再更", "多给", "我要"])
def test_long_text_is_read_in_little_time(piece: str) -> None:
    started = time.process_time()
    read_text(piece * 2_000, SECTION)
    assert time.process_time() - started < 2
