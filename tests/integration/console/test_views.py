"""Every view of the console in a real browser, against the real service."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from hintloop_contract.streams import FUNNEL
from playwright.async_api import Route, expect

from tests.integration.console.conftest import ALARM, Deployment
from tests.integration.console.exchanges import CHINESE, FILE_MISSING, GOOD, SCRIPT
from tests.integration.console.looking import PATIENCE_MS, PHONE, Looker, check_accessible, overflow, version_row

pytestmark = pytest.mark.asyncio(loop_scope="session")

VIEWS = ("loop", "sessions", "turns", "learning", "drops", "doctor")


def find(deployment: Deployment, words: str) -> dict:
    """The turn that these words find, in full."""
    row = deployment.console.get("turns", q=words, limit=1).json()["rows"][0]
    return deployment.console.get(f"turns/{row['turn_id']}").json()


def shown(number: float, digits: int = 3) -> str:
    """A signed number as the page writes it."""
    text = f"{abs(number):.{digits}f}"
    if float(text) == 0:
        return text
    return f"−{text}" if number < 0 else f"+{text}"


def unsigned(number: float, digits: int = 3) -> str:
    return shown(number, digits).removeprefix("+")


async def test_loop_shows_stations_flows_and_the_funnel(looker: Looker, deployment: Deployment):
    page = await looker.open("loop")
    diagram = page.get_by_role("group", name="The pipeline with what flows through it each minute")
    for station in ("Agents", "Rollout proxy", "Policy engine", "Linker", "Judge", "Teacher", "Trainer", "Dropped"):
        await expect(diagram.get_by_role("region", name=station, exact=True)).to_be_visible()
    await expect(page.get_by_test_id("judge")).to_contain_text("× 2")
    await expect(diagram).to_contain_text(f"v{deployment.traffic.version}")
    counted = (await deployment.broker.funnel()).steps
    rows = await page.locator("table.funnel tr").all_inner_texts()
    assert [int(re.sub(r"\D+", " ", row).split()[0]) for row in rows] == [counted.get(step, 0) for step in FUNNEL]
    await expect(page.get_by_test_id("alarm")).to_contain_text(ALARM.seen)


async def test_new_turns_appear_by_themselves(looker: Looker, deployment: Deployment):
    page = await looker.open("turns")
    await expect(page.get_by_test_id("link")).to_have_text("Live")
    total = deployment.console.get("turns", limit=1).json()["total"]
    await expect(page.get_by_test_id("total")).to_have_text(f"{total} turns")
    (turn_id,) = await deployment.traffic.session([GOOD])
    newest = page.get_by_role("row").nth(1)
    await expect(newest.get_by_role("link")).to_have_attribute("href", f"#/turns/{turn_id}")
    # The row itself changes as the turn goes on.
    await expect(newest).to_contain_text("trained")
    await expect(page.get_by_test_id("total")).to_have_text(f"{total + 1} turns")


async def test_what_happens_while_a_page_is_on_its_way_is_not_lost(looker: Looker, deployment: Deployment):
    page = await looker.open("turns?stage=trained")
    total = deployment.console.get("turns", limit=1).json()["total"]
    answered, told = asyncio.Event(), asyncio.Event()

    async def late(route: Route) -> None:
        response = await route.fetch()
        answered.set()
        await told.wait()
        await route.fulfill(response=response)

    await page.route(re.compile(r"/turns\?"), late)
    await page.get_by_role("combobox", name="Stage").select_option("")
    await answered.wait()
    (turn_id,) = await deployment.traffic.session([GOOD])
    newest = page.get_by_role("row").nth(1)
    await expect(newest.get_by_role("link")).to_have_attribute("href", f"#/turns/{turn_id}")
    await expect(newest).to_contain_text("trained")
    told.set()
    await expect(page.get_by_test_id("total")).to_have_text(f"{total + 1} turns")
    await expect(newest.get_by_role("link")).to_have_attribute("href", f"#/turns/{turn_id}")
    await expect(newest).to_contain_text("trained")


async def test_what_happens_while_the_first_page_is_on_its_way_is_not_lost(looker: Looker, deployment: Deployment):
    page = await looker.open("loop")
    await expect(page.get_by_test_id("link")).to_have_text("Live")
    total = deployment.console.get("turns", limit=1).json()["total"]
    answered, told, trained = asyncio.Event(), asyncio.Event(), set[str]()

    async def late(route: Route) -> None:
        response = await route.fetch()
        answered.set()
        await told.wait()
        await route.fulfill(response=response)

    def heard(event: dict[str, str]) -> None:
        if event["eventName"] == "turn" and (row := json.loads(event["data"]))["stage"] == "trained":
            trained.add(row["turn_id"])

    network = await page.context.new_cdp_session(page)
    network.on("Network.eventSourceMessageReceived", heard)
    await network.send("Network.enable")
    await page.route(re.compile(r"/turns\?"), late)
    await page.goto(f"{looker.url}#/turns")
    await answered.wait()
    (turn_id,) = await deployment.traffic.session([GOOD])
    # Nothing is shown yet by which it could be seen that the last was told.
    async with asyncio.timeout(PATIENCE_MS / 1000):
        while turn_id not in trained:
            await asyncio.sleep(0.05)
    told.set()
    newest = page.get_by_role("row").nth(1)
    await expect(newest.get_by_role("link")).to_have_attribute("href", f"#/turns/{turn_id}")
    await expect(newest).to_contain_text("trained")
    await expect(page.get_by_test_id("total")).to_have_text(f"{total + 1} turns")


async def test_sessions_are_listed_and_searched(looker: Looker, deployment: Deployment):
    page = await looker.open("sessions")
    rows = page.get_by_role("row")
    total = deployment.console.get("sessions", limit=1).json()["total"]
    await expect(rows).to_have_count(total + 1)
    await page.keyboard.press("/")
    await page.keyboard.type("settings.yaml")
    wanted = deployment.console.get("sessions", q="settings.yaml").json()["total"]
    assert 0 < wanted < total
    await expect(rows).to_have_count(wanted + 1)
    await page.get_by_role("searchbox").fill("no such words anywhere")
    await expect(page.get_by_role("heading", name="Nothing matches")).to_be_visible()
    await page.get_by_role("button", name="Clear the search").click()
    await expect(rows).to_have_count(total + 1)
    # Scripts without spaces are found by any part.
    await page.get_by_role("searchbox").fill("配置文件")
    await expect(rows.nth(1)).to_contain_text(CHINESE.answer[:12])
    await page.keyboard.press("Escape")
    await page.keyboard.press("j")
    await expect(rows.nth(1).get_by_role("link")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(re.compile(r"#/turns\?session="))
    await page.get_by_role("combobox", name="Stage").select_option("dropped")
    await expect(page).to_have_url(re.compile("stage=dropped"))


async def test_a_turn_shows_request_answer_votes_hint_and_tokens(looker: Looker, deployment: Deployment):
    turn = find(deployment, "settings.yaml")
    page = await looker.open(f"turns/{turn['turn_id']}")
    for text in (FILE_MISSING.asked, FILE_MISSING.then, "failed: the vote was cut by hint_max_tokens = 64"):
        await expect(page.get_by_text(text).first).to_be_visible()
    await expect(page.get_by_test_id("judgement")).to_contain_text(FILE_MISSING.hint or "")
    tokens = page.get_by_test_id("tokens")
    assert (await tokens.text_content() or "").replace("↵", "") == FILE_MISSING.answer + "<|im_end|>"
    for index, token in enumerate(turn["tokens"]):
        value = token["advantage"]
        level = sum(abs(value) >= bound for bound in (0.1, 0.5, 1, 2, 5))
        name = "level-0" if level == 0 else f"level-{'n' if value < 0 else 'p'}{level}"
        assert name in (await page.locator(f"#token-{index}").get_attribute("class") or "").split()


async def test_token_numbers_by_pointer_and_by_keyboard(looker: Looker, deployment: Deployment):
    turn = find(deployment, "settings.yaml")
    page = await looker.open(f"turns/{turn['turn_id']}")
    panel = page.locator(".wide-panel")

    async def check(index: int) -> None:
        token = turn["tokens"][index]
        await expect(panel.get_by_test_id("advantage")).to_have_text(shown(token["advantage"]))
        for name in ("teacher", "student", "behaviour"):
            await expect(panel.get_by_test_id(name)).to_contain_text(unsigned(token[name]))
        rows = panel.get_by_test_id("top").locator("tbody tr")
        await expect(rows).to_have_count(len(token["top"]))
        await expect(rows.first).to_contain_text(unsigned(token["top"][0]["logprob"], 2))
        sampled = [candidate["id"] == token["id"] for candidate in token["top"]]
        assert [await row.get_attribute("class") == "sampled" for row in await rows.all()] == sampled

    await page.locator("#token-12").hover()
    await check(12)
    await page.mouse.move(5, 5)
    tokens = page.get_by_test_id("tokens")
    await tokens.focus()
    await page.keyboard.press("ArrowRight")
    await check(13)
    assert await tokens.get_attribute("aria-activedescendant") == "token-13"
    name = await page.locator("#token-13").get_attribute("aria-label") or ""
    assert shown(turn["tokens"][13]["advantage"], 2) in name
    await page.keyboard.press("End")
    await check(len(turn["tokens"]) - 1)
    await page.keyboard.press("Home")
    strong = [index for index, token in enumerate(turn["tokens"]) if abs(token["advantage"]) >= 1 and index > 0]
    await page.keyboard.press("]")
    await check(strong[0])
    await page.get_by_role("button", name="Table", exact=True).click()
    await page.locator("[role=row][data-index='2'] button").focus()
    await check(2)


async def test_hostile_text_stays_text(looker: Looker, deployment: Deployment):
    page = await looker.open("turns")
    hostile = find(deployment, "hacked")
    await looker.go(page, f"turns/{hostile['turn_id']}")
    await expect(page.get_by_text(SCRIPT).first).to_be_visible()
    assert await page.evaluate("window.hacked") is None
    assert await page.locator("main script, main img, main b:has-text('bold?')").count() == 0
    await expect(page.get_by_text("\ufffd alone, Zalgo")).to_be_visible()
    text = (await page.get_by_test_id("tokens").text_content() or "").replace("\ufffd", "")
    assert text.startswith(SCRIPT) and "مرحبا بالعالم שלום" in text and "49" not in text
    assert await overflow(page) <= 0
    long = find(deployment, "which line comes first")
    await looker.go(page, f"turns/{long['turn_id']}")
    await expect(page.get_by_role("button", name=re.compile("Show all")).first).to_be_visible()
    assert await overflow(page) <= 0


async def test_learning_shows_charts_histogram_and_versions(looker: Looker, deployment: Deployment):
    page = await looker.open("learning")
    steps = deployment.console.get("steps").json()["rows"]
    loss = page.get_by_role("img", name=re.compile("^Loss and its parts"))
    await expect(loss).to_have_attribute("aria-label", re.compile(rf"at step {steps[-1]['step']}"))
    await expect(page.locator(".chart canvas")).to_have_count(8)
    colours = await page.evaluate(
        "() => [...document.querySelectorAll('.chart canvas')].map(canvas => new Set(new Uint32Array("
        "canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size)"
    )
    assert min(colours) > 10  # drawn, not blank
    counted = deployment.console.get("advantages").json()
    await expect(page.get_by_test_id("histogram")).to_contain_text(f"{100 * counted['share_positive']:.1f} % above 0")
    versions = page.get_by_test_id("versions").locator("tbody tr")
    await expect(version_row(page, deployment.traffic.version)).to_contain_text("current")
    await expect(versions.filter(has_text="current")).to_have_count(1)
    held = versions.filter(has_text="mean entropy of answers 0.41")
    await expect(held.first).to_contain_text("held back")
    await page.get_by_role("combobox", name="Figure").select_option("clip_fraction")
    await expect(page.get_by_role("img", name=re.compile("^Any figure. clip_fraction"))).to_be_visible()


async def test_drops_are_counted_explained_and_lead_to_their_turns(looker: Looker, deployment: Deployment):
    page = await looker.open("drops")
    told = deployment.console.get("drops", minutes=60).json()
    reasons = page.get_by_test_id("reasons").locator("li")
    await expect(reasons).to_have_count(len(told["reasons"]))
    stale = reasons.filter(has=page.get_by_role("button", name="stale", exact=True))
    await expect(stale).to_contain_text(str(told["reasons"]["train:stale"]))
    await expect(stale).to_contain_text("raise max_staleness_steps")
    await stale.get_by_role("button").click()
    examples = page.get_by_test_id("examples").locator("li")
    await expect(examples).to_have_count(sum(row["reason"] == "stale" for row in told["examples"]))
    await examples.first.get_by_role("link").click()
    await expect(page.get_by_test_id("drop")).to_contain_text("made by version 3, 5 steps behind")


async def test_doctor_shows_alarms_and_runs(looker: Looker, deployment: Deployment):
    page = await looker.open("doctor")
    await expect(page.get_by_test_id("alarms")).to_contain_text(ALARM.seen)
    await expect(page.get_by_test_id("alarms")).to_contain_text("0.31")
    await expect(page.get_by_role("heading", name="The doctor has not run yet")).to_be_visible()
    await looker.sign_in(page)
    await page.get_by_role("button", name="Run the doctor").click()
    report = page.get_by_test_id("report")
    await expect(report).to_contain_text("Mend first prm_gives_no_logprobs")
    await expect(report).to_contain_text("HTTP 200 without logprobs <b>at all</b>")
    await page.get_by_label("Only what is wrong").check()
    await expect(report).not_to_contain_text("learns from hints")
    said = deployment.console.get("doctor").json()
    assert said["exit_code"] == 1 and json.dumps(said["report"]).count("prm_gives_no_logprobs") == 2


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_accessible(looker: Looker, deployment: Deployment, theme: str):
    page = await looker.open("loop", color_scheme=theme)
    turn = find(deployment, "settings.yaml")
    for view in (*VIEWS, f"turns/{turn['turn_id']}"):
        await looker.go(page, view)
        if view.startswith("turns/"):
            await page.locator("#token-3").hover()
        await check_accessible(page)
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog")).to_be_visible()
    await check_accessible(page)


async def test_usable_on_a_phone(looker: Looker, deployment: Deployment):
    page = await looker.open("loop", viewport=PHONE, has_touch=True, is_mobile=True)
    turn = find(deployment, "settings.yaml")
    for view in (*VIEWS, f"turns/{turn['turn_id']}"):
        await looker.go(page, view)
        assert await overflow(page) <= 0, view
        await expect(page.get_by_role("link", name="Doctor").first).to_be_in_viewport()
    await page.locator("#token-12").tap()
    panel = page.locator(".narrow-panel")
    await expect(panel.get_by_test_id("advantage")).to_have_text(shown(turn["tokens"][12]["advantage"]))
    await expect(panel).to_be_in_viewport()
    await check_accessible(page)
