#!/usr/bin/env python3
"""The page of attention in a real browser, from a file and without network: what it shows is what the library computes.

usage: test_page.py FOLDER [TEST...]     FOLDER: what the program pages has written
"""

import itertools
import json
import math
import os
import pathlib
import re
import sys
import time

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

MEGABYTES_OF_2000_TOKENS = 20
LINE = 12  # CSS pixels between baselines of labels: the font's size

# Every weight as the tokens' own buttons show it: chosen one after another, the others hovered.
READ_CHIPS = """
const chips = [...document.querySelectorAll('.chip')];
const digits = () => Number(document.querySelector('#tip .digits').textContent);
return chips.map(chip => {
  chip.click();
  return chips.map(other => { other.dispatchEvent(new MouseEvent('mousemove')); return digits(); });
});
"""

# What hovering over the map says, point by point, and the colour there: [[query, key, weight, [red, green, blue]]...].
READ_MAP = """
const map = document.getElementById('map'), box = map.getBoundingClientRect(), seen = {};
const picture = map.getContext('2d').getImageData(0, 0, map.width, map.height);
for (let y = 0; y < box.height; y += arguments[0]) {
  for (let x = 0; x < box.width; x += arguments[0]) {
    map.dispatchEvent(new MouseEvent('mousemove', { clientX: box.left + x, clientY: box.top + y }));
    const tip = document.getElementById('tip'), digits = tip.querySelector('.digits');
    const tokens = /^query (\\d+).* \\u2192 key (\\d+)/s.exec(tip.textContent);
    if (!tip.hidden && tokens && digits) {
      const at = 4 * (y * map.width + x);
      seen[[tokens[1], tokens[2]]] = [Number(digits.textContent), [...picture.data.slice(at, at + 3)]];
    }
  }
}
return Object.entries(seen).map(([pair, found]) => [...pair.split(',').map(Number), ...found]);
"""

# Draws the map anew and notes the labels: text, and the corners of its box in CSS pixels.
READ_LABELS = """
const labels = [], original = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y, most) {
  if (this.canvas.id === 'map' && !this.font.includes('monospace')) {
    const metrics = this.measureText(text), width = Math.min(metrics.width, most), ratio = devicePixelRatio;
    const left = this.textAlign === 'right' ? x - width : x, high = %d / 2;
    const matrix = this.getTransform();
    const corner = (u, v) => { const p = matrix.transformPoint({ x: u, y: v }); return [p.x / ratio, p.y / ratio]; };
    labels.push({ text, corners: [corner(left, y - high), corner(left + width, y - high),
                                  corner(left + width, y + high), corner(left, y + high)] });
  }
  return original.apply(this, arguments);
};
dispatchEvent(new Event('resize'));
CanvasRenderingContext2D.prototype.fillText = original;
const map = document.getElementById('map');
return { labels, width: map.clientWidth, height: map.clientHeight };
""" % LINE

# Colours of the map at points.
READ_COLOURS = """
const map = document.getElementById('map').getContext('2d');
return arguments[0].map(([x, y]) => [...map.getImageData(Math.round(x), Math.round(y), 1, 1).data].slice(0, 3));
"""

# The colours of the scale, and what is written below.
READ_SCALE = """
const colours = document.getElementById('legend').getContext('2d').getImageData(0, 0, 256, 1).data;
const ticks = [...document.querySelectorAll('#ticks span')].map(tick => tick.textContent);
return { colours: Array.from({ length: 256 }, (_, i) => [...colours.slice(4 * i, 4 * i + 3)]), ticks,
         end: parseFloat(ticks.at(-1)) };
"""


class Page:
    def __init__(self, folder, width=1400, height=1000):
        options = Options()
        options.binary_location = "/usr/bin/chromium"
        arguments = ["--headless=new", "--disable-gpu", f"--window-size={width},{height}"]
        for argument in arguments + (["--no-sandbox"] if os.geteuid() == 0 else []):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
        self.folder = folder

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.driver.quit()

    def open(self, name, fragment="", seconds=120):
        """The page with its weights computed; nothing it says to the console is expected."""
        self.driver.get_log("browser")  # forgets what was said of reading canvases
        self.driver.get("about:blank")  # a new fragment alone would not load the page anew
        self.driver.get(f"file://{self.folder}/{name}.html#{fragment}")
        self.wait(seconds)
        said = self.driver.get_log("browser")
        assert not said, f"{name}: {said}"

    def wait(self, seconds=120):
        end = time.monotonic() + seconds
        while self.run("return document.getElementById('detail').getAttribute('aria-busy') === 'true'"):
            assert time.monotonic() < end, "the weights are never computed"
            time.sleep(0.02)

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def click(self, selector, place=0):
        self.run("document.querySelectorAll(arguments[0])[arguments[1]].click()", selector, place)
        self.wait()

    def text(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector).text

    def press(self, *keys):
        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()
        self.wait()


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
    """Under the pointer lies the pair that is named: its weight has the colour that is seen there."""
    found = page.run(READ_MAP, 17)
    scale = page.run(READ_SCALE)
    assert len(found) > 200 and sum(weight > 0 for _, _, weight, _ in found) > 50
    for i, j, weight, colour in found:
        assert weight == 0 or j <= i, "nobody sees what is to come"
        wanted = round(255 * min(weight / scale["end"], 1))
        assert colour in scale["colours"][max(wanted - 1, 0):wanted + 2], f"query {i}, key {j}: {weight}, {colour}"


def separate(a, b):
    """True if a line parts two convex shapes."""
    for shape in (a, b):
        for (x, y), (u, v) in zip(shape, shape[1:] + shape[:1]):
            normal = (v - y, x - u)
            project = lambda points: [p[0] * normal[0] + p[1] * normal[1] for p in points]
            if max(project(a)) <= min(project(b)) or max(project(b)) <= min(project(a)):
                return True
    return False


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


def check_labels(drawn, least, name):
    labels = drawn["labels"]
    assert len(labels) >= least, f"{name}: only {len(labels)} labels"
    for label in labels:
        inside = all(-1 <= x <= drawn["width"] + 1 and -1 <= y <= drawn["height"] + 1 for x, y in label["corners"])
        assert inside, f"{name}: {label} leaves {drawn['width']} x {drawn['height']}"
    for a, b in itertools.combinations(labels, 2):
        assert separate(a["corners"], b["corners"]), f"{name}: {a} touches {b}"


def colours_of(page, parts):
    """Colours at parts of the drawn square, whose corners are where the frame is."""
    square = page.run("""
        const map = document.getElementById('map'), box = map.getBoundingClientRect();
        const there = (x, y) => {
          map.dispatchEvent(new MouseEvent('mousemove', { clientX: box.left + x, clientY: box.top + y }));
          return document.querySelector('#tip:not([hidden]) .digits') !== null;
        };
        let left = 0, top = 0, right = box.width - 1, bottom = box.height - 1;
        while (!there(left, box.height - 30)) ++left;
        while (!there(left + 20, top)) ++top;
        while (!there(right, top + 20)) --right;
        while (!there(left + 20, bottom)) --bottom;
        map.dispatchEvent(new MouseEvent('mouseleave'));
        return [left, top, right, bottom];""")
    left, top, right, bottom = square
    points = [(left + x * (right - left), top + y * (bottom - top)) for x, y in parts]
    return page.run(READ_SCALE) | {"points": page.run(READ_COLOURS, points)}


def test_flat(folder):
    """600 equal weights are seen with the linear scale: in the last colour, whose weight stands on the scale."""
    with Page(folder) as page:
        page.open("flat", "layer=0&head=0")
        seen = colours_of(page, [(x, y) for x in (0.02, 0.5, 0.98) for y in (0.02, 0.5, 0.98)])
        assert seen["ticks"][0] == "0" and seen["ticks"][-1] == "0.0017", seen["ticks"]
        # 1 / 600 of 0.0017, which is 1 / 600 up to two digits
        expected = round(255 / 600 / 0.0017)
        assert all(seen["colours"].index(point) == expected for point in seen["points"]), seen["points"]

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


def test_size(folder):
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


def test_inert(folder):
    """Nothing is loaded, and tokens are text: signs stand for what would not show."""
    with Page(folder) as page:
        page.open("tokens_17", "layer=0&head=0")
        assert page.run("return performance.getEntriesByType('resource').length") == 0
        chips = page.run("return [...document.querySelectorAll('.chip')].map(chip => chip.textContent)")
        assert len(chips) == 17 and chips[4] == "\u241b[31mred" and chips[6] == "\u2423x\u2423"
        assert chips[8] == "<U+202E>abc" and chips[5] == "a rather long\u2423\u2026"
        page.open("tokens_1", "layer=0&head=mean")
        assert page.text("#top .digits") == "1.0000"


def main():
    tests = {name[5:]: test for name, test in globals().items() if name.startswith("test_")}
    wanted = sys.argv[2:] or list(tests)
    for name in wanted:
        tests[name](pathlib.Path(sys.argv[1]).resolve())
        print(f"{name}: ok")


if __name__ == "__main__":
    main()
