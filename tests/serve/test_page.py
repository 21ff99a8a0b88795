"""The page in a real browser: what a person does, and what is seen on the canvas."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from live_server import CHROMIUM, TOKEN, Running, in_shots, recorded, serving
from strobe.engine.load import load
from strobe.engine.prompts import MODES
from strobe.models.shapes.grammar import BACKGROUNDS, COLOURS
from strobe.models.shapes.picture import PERIOD, SIZE, TILES

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium")
RED, BLUE = (230, 40, 40), (50, 90, 240)
SCRIPTS = Path(__file__).with_name("page_checks.js").read_text()


@pytest.fixture(scope="module")
def here() -> Iterator[Running]:
    with serving(load("shapes"), suspend_s=5.0) as running:
        yield running


@pytest.fixture
def page(browser: Any, here: Running) -> Iterator[Any]:
    said: list[str] = []
    with opened(browser, here, viewport={"width": 1400, "height": 1000}, accept_downloads=True) as page:
        page.context.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
        page.context.on("weberror", lambda error: said.append(str(error.error)))
        page.reload()
        seen(page)
        yield page
    assert not said, said


@contextmanager
def opened(browser: Any, here: Running, script: str = "", **options: Any) -> Iterator[Any]:
    """The page of a server in a browser's context of its own."""
    context = browser.new_context(**options)
    context.add_init_script(script + SCRIPTS)
    page = context.new_page()
    page.goto(here.http)
    seen(page)
    yield page
    context.close()


def seen(page: Any) -> None:
    page.locator("body[data-first='1']").wait_for(timeout=60_000)


def ask(page: Any, prompt: str) -> None:
    page.fill("#prompt", prompt)
    page.press("#prompt", "Enter")


def share(page: Any, colour: tuple[int, int, int]) -> float:
    """Share of the canvas that has about this colour."""
    return float(page.evaluate("(colour) => pageChecks.share(colour)", list(colour)))


def picture(page: Any) -> str:
    """What the canvas shows."""
    return str(page.evaluate("() => pageChecks.picture()"))


def wait_for(page: Any, what: str, check: Any, seconds: float = 30) -> None:
    for _ in range(int(seconds * 10)):
        if check():
            return
        page.wait_for_timeout(100)
    raise AssertionError(what)


def test_the_first_frame_shows_the_prompt_and_it_moves(page: Any) -> None:
    wait_for(page, "no red circle on the canvas", lambda: share(page, RED) > 0.03)
    before = picture(page)
    wait_for(page, "the picture stands still", lambda: picture(page) != before)
    moves = page.evaluate("() => pageChecks.moves(12)")
    assert all(x > 0 for x, _ in moves) and all(abs(y) < 0.5 for _, y in moves), moves  # under a shape that moves to the left
    assert "h264" in page.inner_text("#facts") and page.inner_text("#state-text") in ("live", "waiting for frames")


def test_a_prompt_is_seen_and_the_time_is_shown(page: Any) -> None:
    ask(page, "a blue square moving up fast")
    page.locator("body[data-epoch='1']").wait_for(timeout=30_000)
    wait_for(page, "no blue square on the canvas", lambda: share(page, BLUE) > 0.03 and share(page, RED) < 0.01)
    assert re.fullmatch(r"\d+ ms", page.inner_text("#f-prompt"))
    assert "blue square" in page.text_content("#timeline")
    wait_for(page, "the timeline has no time", lambda: "ms" in page.text_content("#timeline"))


def test_words_change_either_of_two_shapes(page: Any) -> None:
    """Each shape has rows of its own; what holds for both is changed wherever it is said."""
    page.click("#gallery button >> nth=0")
    both = "a green star and a red circle moving right on gray"
    assert page.input_value("#prompt") == both
    rows = page.locator("#words .kind > span").all_inner_texts()
    assert rows == ["first colour", "first shape", "second colour", "second shape", "direction", "speed", "background"]
    pressed = page.locator("#words [aria-pressed='true']")
    assert pressed.all_inner_texts() == ["green", "star", "red", "circle", "right", "gray"]
    row = "[aria-label='{}'] [data-word='{}']"
    page.click(row.format("second colour", "blue"))
    page.click(row.format("second shape", "square"))
    page.click(row.format("first colour", "white"))
    assert page.input_value("#prompt") == "a white star and a blue square moving right on gray"
    page.fill("#prompt", "a red circle moving left, a blue square moving left")
    page.click(row.format("direction", "down"))
    assert page.input_value("#prompt") == "a red circle moving down, a blue square moving down"
    wait_for(page, "the prompt does not hold", lambda: "moving down" in page.inner_text("#caption-a"))
    page.fill("#prompt", "a red circle")
    assert page.locator("#words .kind > span").all_inner_texts() == ["colour", "shape", "direction", "speed", "background"]


def test_no_warm_up_is_shown_by_a_server_that_is_ready(browser: Any, here: Running) -> None:
    page = browser.new_page()
    asked: list[Any] = []
    page.route("**/readyz", lambda route: asked.append(route))  # the answer is on its way
    page.goto(here.http)
    wait_for(page, "the page does not ask", lambda: asked)
    assert not page.is_visible("#veil")
    asked[0].fulfill(json={"ready": False, "doing": "read weights", "done": 1, "total": 4})
    page.get_by_text("Warming up").wait_for(timeout=10_000)
    page.unroute_all(behavior="ignoreErrors")
    page.close()


def test_pause_reset_and_keys(page: Any) -> None:
    page.click("#play")
    page.get_by_text("paused").first.wait_for(timeout=10_000)
    page.wait_for_timeout(300)
    still = picture(page)
    page.wait_for_timeout(700)
    assert picture(page) == still
    page.evaluate("() => document.activeElement.blur()")
    page.keyboard.press("Space")
    wait_for(page, "it did not go on", lambda: picture(page) != still)
    page.click("#mode + button")
    page.keyboard.press("Control+b")  # the browser's own
    page.keyboard.press("b")
    page.locator("#branches li").wait_for(timeout=10_000)
    page.keyboard.press("/")
    assert page.evaluate("() => document.activeElement.id") == "prompt" and page.locator("#branches li").count() == 1
    first = page.evaluate("() => { globalThis.decoder = strobe.player.decoder; return window['f-first'].innerText }")
    page.click("#reset")
    page.get_by_text("began again").wait_for(timeout=20_000)
    page.wait_for_function("() => strobe.timeline.frame > 0 && decoder.state === 'closed'")
    assert page.inner_text("#f-first") == first  # of the stream, not of its reset


def test_branches_go_back_and_beside(page: Any, here: Running) -> None:
    wait_for(page, "no red circle", lambda: share(page, RED) > 0.03)
    page.click("#branch")
    page.locator("#branches li").wait_for(timeout=20_000)
    ask(page, "a blue square moving up fast")
    wait_for(page, "no blue square", lambda: share(page, BLUE) > 0.03)
    page.click("#branches >> text=Go back")
    wait_for(page, "not back", lambda: share(page, RED) > 0.03 and share(page, BLUE) < 0.01 and page.is_visible("svg .fork"))
    ask(page, "a blue square moving up fast")
    page.click("#branches >> text=Beside")
    page.get_by_text("branch: a red circle moving left on navy").wait_for(timeout=20_000)
    for name in list(here.hub.channels):
        here.hub.failed(name, RuntimeError("it failed"))
    page.get_by_text("begins again under the same prompt").wait_for(timeout=20_000)
    page.wait_for_function("() => /blue/.test(strobe.player.options.prompt) && /no stream/.test(window['caption-b'].innerText)")
    page.click("#close-b")
    assert not page.is_visible("#screen-b")


def test_another_preset_or_picture_shows_what_it_is_and_a_wrong_picture_costs_nothing(page: Any, tmp_path: Path) -> None:
    page.select_option("#preset", "sparse")
    page.click("#settings button.wide")
    page.get_by_text("began again").wait_for(timeout=20_000)
    assert "shapes · sparse ·" in page.inner_text("#facts")
    page.click("#branch")
    page.click("#record")
    page.locator("#record[aria-pressed='true']").wait_for(timeout=10_000)
    page.set_input_files("#image", {"name": "notes.png", "mimeType": "image/png", "buffer": b"no picture"})
    page.click("#settings button.wide")
    page.get_by_text("the image cannot be read; choose a PNG").wait_for(timeout=10_000)
    assert page.inner_text("#state") != "refused" and page.locator("#branches li").count() == 1
    page.evaluate("() => { strobe.player.dry = 0; document.getElementById('play').click() }")
    page.get_by_text("paused").first.wait_for(timeout=10_000)
    assert page.evaluate("() => strobe.player.dry") is None and page.evaluate("() => strobe.player.stallMs > 0")
    page.locator("#picture").screenshot(path=tmp_path / "start.png")
    page.set_input_files("#image", tmp_path / "start.png")
    page.click("#settings button.wide")
    wait_for(page, "branches of the stream before", lambda: page.locator("#branches li").count() == 0)
    assert page.inner_text("#record") == "Record" and page.evaluate("() => strobe.timeline.branches.length") == 0
    assert page.inner_text("#play-text") == "Pause" and page.evaluate("() => strobe.player.playing && !strobe.player.stallMs")


def test_a_recorded_clip_downloads(page: Any, tmp_path: Path) -> None:
    recorded(page, tmp_path / "clip.mp4")


def test_a_lost_connection_comes_back(page: Any) -> None:
    wait_for(page, "no red circle", lambda: share(page, RED) > 0.03)
    page.evaluate("() => { strobe.player.tries = 4; strobe.player.socket.close() }")  # it waits for longer than its buffer lasts
    page.press("#prompt", "Enter")
    page.get_by_text("no connection to the server").wait_for(timeout=10_000)
    page.wait_for_function("() => strobe.player.dry && /lost/.test(window['state-text'].innerText)")
    page.locator("#state[data-state='live']").wait_for(timeout=30_000)
    before = picture(page)
    wait_for(page, "no frame after the connection came back", lambda: picture(page) != before)
    page.click("#play")
    page.locator("#state[data-state='paused']").wait_for(timeout=10_000)
    page.evaluate("() => globalThis.strobe.player.socket.close()")
    page.locator("#state[data-state='lost']").wait_for(timeout=10_000)
    page.locator("#state[data-state='paused']").wait_for(timeout=30_000)


def test_prompts_close_together_are_not_written_over_each_other(page: Any) -> None:
    for colour in ("red", "green", "blue", "yellow"):
        ask(page, f"a {colour} square moving up fast on a forest background")
        page.wait_for_timeout(1200)
    wait_for(page, "no yellow square", lambda: share(page, (245, 225, 50)) > 0.03)
    boxes = "(all) => all.map((each) => { const box = each.getBBox(); return [box.y, box.x, box.x + box.width] })"
    labels = sorted(page.locator("#timeline text").evaluate_all(boxes))
    rows = [(one, two) for one, two in pairwise(labels) if abs(one[0] - two[0]) < 1]
    assert rows and all(one[2] <= two[1] + 2 for one, two in rows), labels


def test_two_tabs_are_two_streams(page: Any, here: Running) -> None:
    other = page.context.new_page()
    other.goto(here.http)
    seen(other)
    ask(other, "a blue square moving up fast")
    wait_for(other, "no blue square in the second tab", lambda: share(other, BLUE) > 0.03)
    assert all(y > 0 for _, y in other.evaluate("() => pageChecks.moves(8)"))  # the floor under a shape that moves up
    page.bring_to_front()
    wait_for(page, "the first tab shows no circle", lambda: share(page, RED) > 0.03 and share(page, BLUE) < 0.01)
    other.close()
    before = picture(page)
    wait_for(page, "the first tab stopped with the second", lambda: picture(page) != before)


def sound(page: Any) -> None:
    """Everything has a name, can be read, and stays where it belongs."""
    assert page.evaluate("() => pageChecks.unlabelled()") == []
    assert page.evaluate("() => pageChecks.lowContrast()") == []
    assert page.evaluate("() => pageChecks.broken()") == []
    assert page.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0


@pytest.mark.few("1400-dark", "390-light")
@pytest.mark.parametrize("scheme", ["dark", "light"])
@pytest.mark.parametrize("width", [1400, 390])
def test_everything_has_a_name_and_can_be_read(browser: Any, here: Running, width: int, scheme: str) -> None:
    size = {"width": width, "height": 844}
    with opened(browser, here, viewport=size, color_scheme=scheme, reduced_motion="reduce") as page:
        ask(page, "a purple elephant")
        page.locator("#prompt-said[data-kind='error']").wait_for(timeout=20_000)
        sound(page)
        page.click("#record")
        page.click("#branch")
        page.locator("#branches li").wait_for(timeout=20_000)
        page.locator("#record[aria-pressed='true']").wait_for(timeout=10_000)
        page.wait_for_timeout(600)
        sound(page)
        page.evaluate("() => strobe.player.on.refused({reason: 'two streams are open', fits: ['turbo']})")
        page.get_by_text("Use turbo").wait_for(timeout=10_000)
        sound(page)


def test_keys_alone_reach_everything(page: Any) -> None:
    """Each control is reached by Tab, in the order in which it is seen, and shows that it has the focus."""
    page.evaluate("() => document.activeElement.blur()")
    reached = []
    for _ in range(80):
        page.keyboard.press("Tab")
        found = page.evaluate(
            "() => { const at = document.activeElement; return [at.id || at.dataset.word || at.textContent.trim(), "
            "at.matches(':focus-visible') && getComputedStyle(at).outlineStyle !== 'none'] }"
        )
        if found[0] in [name for name, _ in reached]:
            break
        reached.append(tuple(found))
    names = [name for name, _ in reached]
    wanted = ["prompt", "mode", "Show it", "play", "reset", "branch", "record", "recipe", "red", "preset", "seed", "image"]
    assert [name for name in names if name in wanted] == wanted
    assert all(shown for name, shown in reached if name in wanted)


def test_jpeg_where_there_is_no_decoder(browser: Any, here: Running) -> None:
    with opened(browser, here, "delete globalThis.VideoDecoder;") as page:
        assert "jpeg" in page.inner_text("#facts")
        wait_for(page, "no red circle", lambda: share(page, RED) > 0.03)


def test_a_token_is_asked_for(browser: Any, closed: Running) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(closed.http)
    page.locator("#token").wait_for(state="visible", timeout=20_000)
    page.fill("#token", "wrong")
    page.press("#token", "Enter")
    page.get_by_text("that is not the token").wait_for(timeout=10_000)
    page.fill("#token", TOKEN)
    page.press("#token", "Enter")
    seen(page)
    context.close()
    assert httpx.get(f"{closed.http}/metrics").status_code == 401


def test_the_frames_that_a_shot_pins_are_drawn_apart(browser: Any) -> None:
    """Behind the sink and in a colour of their own, with their numbers; a window without shots has none."""
    with serving(in_shots(), "balanced") as here:
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.goto(here.http)
        seen(page)
        page.locator("#cache .k-sink").first.wait_for(timeout=20_000)
        assert page.locator("#cache .k-shot").count() == 0 and "shot" not in page.text_content("#cache-note")
        page.fill("#prompt", "a blue square moving up fast")
        page.select_option("#mode", "shot")
        page.press("#prompt", "Enter")
        page.locator("#cache .k-shot").first.wait_for(timeout=30_000)
        kinds = page.evaluate("() => [...document.querySelectorAll('#cache rect')].map((each) => each.getAttribute('class'))")
        assert kinds[:6] == ["k-sink"] * 3 + ["k-shot"] * 3 and len(kinds) == 12 and kinds[-3:] == ["k-now"] * 3
        assert re.search(r"shot 2: frames \d+ to \d+", page.text_content("#cache"))
        assert "the first frames of its shot," in page.text_content("#cache-note")
        edges = page.evaluate("() => [...document.querySelectorAll('#cache rect')].map((each) => Number(each.getAttribute('x')))")
        assert edges == sorted(edges) and edges[6] - edges[5] > edges[5] - edges[4] < edges[3] - edges[2]
        page.evaluate(SCRIPTS)
        sound(page)
        page.close()


def test_the_picture_is_framed_and_grows_by_whole_pixels(page: Any) -> None:
    for width, height in ((1400, 1000), (390, 844), (800, 600)):
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_timeout(100)
        side, edge = page.evaluate(
            "() => { const at = getComputedStyle(document.getElementById('picture')); return [at.width, at.borderTopWidth] }"
        )
        assert float(side.removesuffix("px")) % 128 == 0 and float(side.removesuffix("px")) >= 256 and edge == "1px"
        assert page.evaluate("() => getComputedStyle(document.getElementById('picture')).imageRendering") == "pixelated"
        page.evaluate("() => scrollTo(0, 200)")
        over = "() => { const at = document.getElementById('picture').getBoundingClientRect(); return Math.max(at.top, 0) }"
        covered = page.evaluate(f"() => document.elementFromPoint(innerWidth / 4, ({over})() + 9).closest('header') === null")
        assert covered


def test_the_page_says_what_the_model_knows_and_what_its_words_mean(page: Any) -> None:
    said = "this tiny model knows coloured shapes over a tiled floor, and a camera that follows them; real prompts"
    assert page.inner_text("#model-note").lower().startswith(said)
    assert page.get_attribute("#guide", "href").endswith("howto_checkpoint.md")
    assert page.locator("#mode option").all_inner_texts() == ["hard cut (recache)", "drift (soft)", "blend (interpolate)"]
    page.select_option("#mode", "soft")
    assert page.inner_text("#prompt-said") == f"drift: {MODES['soft']}"
    offers = page.locator("#preset option").all_inner_texts()
    assert re.fullmatch(r"turbo: \d+ FPS", next(each for each in offers if each.startswith("turbo")))  # measured at the start
    assert all(re.match(r"\w+: about \d+ FPS", each) for each in offers if not each.startswith("turbo"))
    assert page.locator("dt", has_text="real-time factor now").count() == 1
    said = page.inner_text("#settings ~ .note >> nth=0")
    assert "measured before this page opened" in said and "real-time factor above is of this stream now" in said


def test_a_prompt_with_two_shapes_has_both_in_its_picture(page: Any, here: Running) -> None:
    here.server.examples.insert(1, "a red circle and a blue square moving left on a navy background")
    page.reload()
    seen(page)
    marks = page.locator("#gallery button").first.locator("rect, path")
    fills = marks.evaluate_all("(all) => all.map((each) => each.getAttribute('fill'))")
    assert fills == ["rgb(20,35,125)", "rgb(12,21,75)", "#e62828", "#325af0"]
    boxes = marks.evaluate_all("(all) => all.map((each) => each.getBoundingClientRect().toJSON())")
    assert boxes[2]["right"] <= boxes[3]["left"] + 1 and all(each["bottom"] <= boxes[0]["bottom"] for each in boxes)
    del here.server.examples[1]


def test_thumbnails_have_the_floor_and_the_colours_of_the_model(page: Any) -> None:
    """Two tiles a period, as many pixels of the picture wide as the model's, brighter and darker as it draws them."""
    fills = "(text) => [...strobe.drawn(text).querySelectorAll('rect, path')].map((each) => each.getAttribute('fill'))"
    for ground, rgb in BACKGROUNDS.items():
        light, dark = page.evaluate(fills, f"a red circle moving left on {ground}")[:2]
        for fill, brightness in ((light, 1 + TILES), (dark, 1 - TILES)):
            assert [int(part) for part in re.findall(r"\d+", fill)] == pytest.approx([part * brightness for part in rgb], abs=0.5)
    for colour, rgb in COLOURS.items():
        assert page.evaluate(fills, f"a {colour} circle moving left")[2] == "#" + bytes(rgb).hex()
    tiles = page.evaluate("() => strobe.drawn('a red circle moving left').querySelector('path').getAttribute('d')")
    side = 24 * PERIOD / 2 / SIZE
    wanted = [(side * x, side * y) for y in range(8) for x in range(8) if (x + y) % 2]
    assert [(float(x), float(y)) for x, y in re.findall(r"M(\S+) (\S+?)h3v3h-3z", tiles)] == wanted and side == 3


def test_what_is_offered_works_and_what_does_not_is_answered(page: Any) -> None:
    """The placeholder, the gallery, a chip after a refused prompt, and an empty prompt."""
    ask(page, " ")
    assert "the prompt is empty" in page.inner_text("#prompt-said") and page.get_attribute("#prompt-said", "data-kind") == "error"
    shown = page.get_attribute("#prompt", "placeholder").removeprefix("for example: ")
    ask(page, shown)
    page.locator("body[data-epoch='1']").wait_for(timeout=30_000)
    page.locator("#gallery button").nth(2).click()
    page.locator("body[data-epoch='2']").wait_for(timeout=30_000)
    assert page.locator("#gallery button").count() == 3 and "blue square" in page.input_value("#prompt")
    ask(page, "a purple elephant")
    page.locator("#prompt-said[data-kind='error']").wait_for(timeout=20_000)
    assert "elephant" in page.inner_text("#prompt-said")
    page.click("[data-word='star']")
    assert page.input_value("#prompt") == "a blue star moving up fast on gray"
    assert page.get_attribute("[data-word='star']", "aria-pressed") == "true"
    page.locator("body[data-epoch='3']").wait_for(timeout=30_000)
