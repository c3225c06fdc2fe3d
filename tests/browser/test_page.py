"""The page in a browser, from a file and without network: it shows what the library computes."""

import itertools
import json
import math
import re

from browser import READ_CHIPS, READ_LABELS, READ_MAP, READ_SCALE, Page, check_labels, colours_of
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

MEGABYTES_OF_2000_TOKENS = 20


def check_weights(shown, wanted, bound, least, name):
    for i, (row, expected) in enumerate(zip(shown, wanted, strict=True)):
        for j, (a, b) in enumerate(zip(row, expected, strict=True)):
            assert a is not None and abs(a - b) <= bound * b + least, f"{name}: query {i}, key {j} shows {a}, not {b}"


def test_weights(folder):
    """Every pair of every head under every option, and the mean of the heads."""
    cases = json.loads((folder / "options.json").read_text())
    assert len(cases) >= 15
    with Page(folder) as page:
        for case in cases:
            page.open(f"option_{case['name']}")
            said = page.run("return JSON.parse(document.getElementById('data').textContent).error")
            assert 0 < said < case["most_said"], f"{case['name']}: {said}"
            assert float(re.search(r"at most (\S+)", page.text("#precision"))[1]) == float(f"{said:.2g}")
            heads = case["weights"]
            mean = [[sum(cells) / len(heads) for cells in zip(*rows)] for rows in zip(*heads)]
            for head, wanted in enumerate([*heads, mean]):
                page.click(".thumb", head)
                check_weights(page.run(READ_CHIPS), wanted, case["bound"] + math.expm1(said), case["least"],
                              f"{case['name']}, head {head}")


def test_map_and_chips(folder):
    """What is hovered on the map is what is seen there: whole, zoomed and pooled, by query and by key."""
    case = next(case for case in json.loads((folder / "options.json").read_text()) if case["name"] == "alibi")
    with Page(folder) as page:
        page.open("option_alibi", "layer=0&head=1")
        chips = page.run(READ_CHIPS)
        for count in (9 * 9, 8 * 8):
            found = page.run(READ_MAP, 12)
            assert len(found) == count, len(found)
            assert all(chips[i][j] == weight for i, j, weight, _ in found)
            page.click("#in")
        page.press("0", "d")
        by_key = page.run(READ_CHIPS)
        assert by_key == [list(column) for column in zip(*chips)]
        assert case["weights"][1][8][8] > 0

        page.open("tokens_2000", "layer=1&head=2&token=1500")
        assert "largest of" in page.text("#part")
        ranked = page.run("return [...document.querySelectorAll('#top li')].map(li => li.innerText.split(/\\s+/))")
        assert len(ranked) == 12 and 0 < float(ranked[11][-1]) <= float(ranked[0][-1])
        check_colours(page)
        for tokens in (1000, 500, 250):
            page.click("#in")
            first, last, first_key, last_key = map(int, re.findall(r"\d+", page.text("#part"))[:4])
            assert last - first == last_key - first_key == tokens - 1 and first <= 1500 <= last, page.text("#part")
            assert first_key <= int(ranked[0][0]) <= last_key, "its strongest key stays in sight"
            check_colours(page)
        page.click("#whole")
        assert "queries" not in page.text("#part")


def check_colours(page):
    """Under the pointer is the pair that is named: its weight has the colour that is seen there."""
    found = page.run(READ_MAP, 17)
    scale = page.run(READ_SCALE)
    assert len(found) > 200 and sum(weight > 0 for _, _, weight, _ in found) > 50
    for i, j, weight, colour in found:
        assert weight == 0 or j <= i, "nobody sees what is to come"
        wanted = round(255 * min(weight / scale["end"], 1))
        assert colour in scale["colours"][max(wanted - 1, 0):wanted + 2], f"query {i}, key {j}: {weight}, {colour}"


def test_labels(folder):
    """No label touches another or leaves the picture, at any count and width, whatever token is chosen."""
    with Page(folder) as page:
        for n in (1, 5, 17, 60, 600, 2000):
            page.open(f"tokens_{n}", "layer=0&head=0")
            for (width, height), key in itertools.product(((700, 900), (1100, 700), (1900, 1200)), (0, 1)):
                page.driver.set_window_size(width, height)
                page.click("#axis button", key)
                for chosen in {n - 1, n // 2}:
                    page.click(".chip", chosen)
                    check_labels(page.run(READ_LABELS), min(2 * n, 8), f"{n} tokens at {width}")


def test_equal_weights_are_seen(folder):
    """600 equal weights are seen with the linear scale: in the last colour, whose weight is on the scale."""
    with Page(folder) as page:
        page.open("flat", "layer=0&head=0")
        seen = colours_of(page, [(x, y) for x in (0.02, 0.5, 0.98) for y in (0.02, 0.5, 0.98)])
        assert seen["ticks"][0] == "0" and seen["ticks"][-1] == "0.0017", seen["ticks"]
        # 1 / 600 of 0.0017, which is 1 / 600 up to two digits
        expected = round(255 / 600 / 0.0017)
        # Where 250 is what it comes to, a rounding of the weight may make it the colour beside.
        assert all(abs(seen["colours"].index(point) - expected) <= 1 for point in seen["points"]), seen["points"]

        page.open("flat_causal", "layer=0&head=0")
        seen = colours_of(page, [(0.1, 0.98), (0.5, 0.98), (0.9, 0.98), (0.9, 0.1)])
        assert seen["ticks"][-1].endswith("+"), "the first rows are sharper"
        places = [seen["colours"].index(point) for point in seen["points"]]
        assert all(place > 50 for place in places[:3]), f"the last rows are hardly seen: {places}"
        assert places[3] == 0, "what is hidden is the ground"

        page.open("flat", "scale=log")
        assert page.run("return [...document.querySelectorAll('#ticks span')].map(t => t.textContent)")[-1] == "1"
        page.open("flat")
        seen = page.run("const c = document.querySelector('.thumb canvas').getContext('2d');"
                        "return [...c.getImageData(40, 40, 1, 1).data].slice(0, 3)")
        assert seen != [255, 255, 255] and sum(seen) < 400, f"the thumbnail is blank: {seen}"


def test_size_of_the_page(folder):
    size = (folder / "tokens_2000.html").stat().st_size
    assert size < MEGABYTES_OF_2000_TOKENS * 1e6, f"{size} bytes"
    with Page(folder) as page:
        page.open("tokens_2000", "layer=3&head=mean")
        assert page.text("#name") == "layer 3, mean of heads"
        assert "2000 tokens" in page.text("#facts") and "16 heads" in page.text("#facts")


def test_selection(folder):
    """Only what was selected is there, in its order and under its own numbers."""
    with Page(folder) as page:
        page.open("selected")
        names = page.run("return [...document.querySelectorAll('.thumb')].map(t => t.getAttribute('aria-label'))")
        assert names == ["layer 2, head 3", "layer 2, head 1", "layer 2, mean of heads",
                         "layer 0, head 3", "layer 0, head 1", "layer 0, mean of heads"], names
        page.open("selected", "layer=0&head=1")
        assert page.text("#name") == "layer 0, head 1"
        page.open("selected", "layer=1&head=1")
        assert not page.driver.find_element(By.ID, "detail").is_displayed(), "layer 1 is not in it"


def test_controls(folder):
    """Keys, the wheel with Ctrl and dragging; every button has a name."""
    with Page(folder) as page:
        page.open("selected")
        page.press(Keys.ARROW_RIGHT)
        assert page.text("#name") == "layer 2, head 3"
        page.press(Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
        assert page.text("#name") == "layer 0, head 1"
        page.press("l", "d")
        assert "scale=log" in page.driver.current_url and "by=key" in page.driver.current_url
        page.press("+")
        assert "queries" in page.text("#part")
        page.press("0")
        assert "queries" not in page.text("#part")
        page.run("""const map = document.getElementById('map'), box = map.getBoundingClientRect();
            map.dispatchEvent(new WheelEvent('wheel', { deltaY: -200, ctrlKey: true, cancelable: true,
                                                        clientX: box.right - 70, clientY: box.bottom - 10 }));""")
        assert page.text("#part") == "queries 1\u20138, keys 1\u20138."
        chosen = page.text("#chosen")
        canvas = page.driver.find_element(By.ID, "map")
        ActionChains(page.driver).click_and_hold(canvas).move_by_offset(120, 90).release().perform()
        assert page.text("#part") == "queries 0\u20137, keys 0\u20137." and page.text("#chosen") == chosen
        page.press(Keys.ESCAPE)
        assert not page.driver.find_element(By.ID, "detail").is_displayed()
        assert page.run("return [...document.querySelectorAll('button')].every(b => b.ariaLabel || b.textContent)")


def test_colours(folder):
    """Weight 0 is the ground, on light and on dark."""
    with Page(folder) as page:
        grounds = []
        for scheme in ("light", "dark"):
            page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia",
                                        {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
            page.open("flat_causal", "layer=0&head=0")
            seen = colours_of(page, [(0.9, 0.1)])
            ground = page.run("return getComputedStyle(document.getElementById('detail')).backgroundColor")
            assert ground == "rgb({}, {}, {})".format(*seen["points"][0]), f"{scheme}: {ground}, {seen['points']}"
            grounds.append(ground)
        assert grounds[0] != grounds[1]


def test_nothing_is_loaded_and_tokens_are_text(folder):
    """Nothing is loaded, and tokens are text: signs mean what would not show."""
    with Page(folder) as page:
        page.open("tokens_17", "layer=0&head=0")
        assert page.run("return performance.getEntriesByType('resource').length") == 0
        chips = page.run("return [...document.querySelectorAll('.chip')].map(chip => chip.textContent)")
        assert len(chips) == 17 and chips[4] == "\u241b[31mred" and chips[6] == "\u2423x\u2423"
        assert chips[8] == "<U+202E>abc" and chips[5] == "a rather long\u2423\u2026"
        page.open("tokens_1", "layer=0&head=mean")
        assert page.text("#top .digits") == "1.0000"
