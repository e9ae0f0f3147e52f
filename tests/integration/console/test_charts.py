"""What a chart's axes say, read where it is drawn."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Page, Route

from tests.integration.console.conftest import Deployment
from tests.integration.console.looking import Looker

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: Keeps what is written onto each canvas since it was last wiped: text and how it is aligned.
LISTEN = """() => {
  const { fillText, clearRect } = CanvasRenderingContext2D.prototype
  CanvasRenderingContext2D.prototype.clearRect = function (...box) {
    this.canvas.written = []
    return clearRect.apply(this, box)
  }
  CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
    this.canvas.written?.push([text, this.textAlign])
    return fillText.call(this, text, ...place)
  }
}"""


async def labels_of(page: Page, name: str) -> list[str]:
    """Labels of the value axis of a chart, from below; those of the steps are centred."""
    canvas = page.get_by_role("img", name=re.compile(f"^{name}")).locator("canvas").first
    # The canvas is there a frame before something is drawn.
    look = "canvas => canvas.written?.length ? canvas.written : null"
    drawn = await page.wait_for_function(look, arg=await canvas.element_handle())
    written: list[list[str]] = await drawn.json_value()
    return [text for text, align in written if align == "right"]


@pytest.mark.parametrize("losses", [[0.3791, 0.3792, 0.3793], [0.3791], [1.0e-5, 1.00001e-5], [-0.25, 0.5]])
async def test_no_two_labels_of_a_value_axis_are_equal(
    looker: Looker, deployment: Deployment, losses: list[float]
) -> None:
    async def few(route: Route) -> None:
        response = await route.fetch()
        told = await response.json()
        rows = [row | {"figures": {"loss": loss}} for row, loss in zip(told["rows"], losses, strict=False)]
        await route.fulfill(json=told | {"rows": rows, "next": None})

    page = await looker.open("loop")
    await page.evaluate(LISTEN)
    await page.route(re.compile(r"/steps\b"), few)
    await looker.go(page, "learning")
    labels = await labels_of(page, "Loss and its parts")
    assert len(labels) >= 3
    assert len(set(labels)) == len(labels)
    numbers = [float(label.replace("−", "-")) for label in labels]
    assert min(numbers) <= min(losses) and max(losses) <= max(numbers)
    if len(losses) > 1:
        # Drawn over the height that there is: a small change shows.
        assert max(numbers) - min(numbers) < 3 * (max(losses) - min(losses))
