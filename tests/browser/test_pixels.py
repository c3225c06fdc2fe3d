"""What is on the screen: pixels of screenshots, and where things are, held against what they mean."""

import math
import re

from browser import READ_SCALE, Page, pixels, square_of

HEAD = [(0, 114, 178), (230, 159, 0)]  # colours of heads 0 and 1

# The box of what a selector finds, in the window: left, top, right, bottom.
READ_BOX = """
const { left, top, right, bottom } = document.querySelectorAll(arguments[0])[arguments[1] ?? 0].getBoundingClientRect();
return [left, top, right, bottom];
"""

# All points of the curves that are drawn as lines, with their colours.
READ_CURVES = """
const prototype = CanvasRenderingContext2D.prototype, { moveTo, bezierCurveTo } = prototype, curves = [];
let from = null;
prototype.moveTo = function (...point) { from = point; return moveTo.apply(this, arguments); };
prototype.bezierCurveTo = function (...points) {
  if (this.canvas.id === 'lines') curves.push([...from, ...points, this.strokeStyle]);
  return bezierCurveTo.apply(this, arguments);
};
dispatchEvent(new Event('resize'));
Object.assign(prototype, { moveTo, bezierCurveTo });
return curves;
"""


def theme_colour(page, name):
    text = page.run("return getComputedStyle(document.documentElement).getPropertyValue(arguments[0])", name).strip()
    return [int(text[at:at + 2], 16) for at in (1, 3, 5)]


def at(points, t):
    """The point [x, y] of a Bezier curve of four points."""
    weights = ((1 - t)**3, 3 * t * (1 - t)**2, 3 * t * t * (1 - t), t**3)
    return [sum(weight * points[2 * n + axis] for n, weight in enumerate(weights)) for axis in range(2)]


def distance(a, b):
    return max(abs(x - y) for x, y in zip(a, b))


def test_legend(folder):
    """Each tick is below the colour of its weight, linear and logarithmic, on short and long pages."""
    with Page(folder) as page:
        for name, fragment, decades in (("tokens_60", "", 0), ("tokens_60", "scale=log", 4),
                                        ("long_20000", "scale=log", 6), ("pair", "layer=0&head=0", 0)):
            page.open(name, fragment)
            scale = page.run(READ_SCALE)
            assert len(scale["ticks"]) == decades + 1 if decades else 3
            left, top, right, bottom = page.run(READ_BOX, "#legend")
            for n, text in enumerate(scale["ticks"]):
                value = float(text.strip("\u2264+"))
                part = 1 + math.log10(value) / decades if decades else value / scale["end"]
                box = page.run(READ_BOX, "#ticks span", n)
                middle, wanted = (box[0] + box[2]) / 2, left + part * (right - left)
                assert abs(middle - wanted) <= 2, (name, text, middle, wanted)
                x = min(max(middle, left + 2), right - 3)
                seen = pixels(page, [(x, (top + bottom) / 2)])[0]
                colour = scale["colours"][round(255 * part)]
                assert distance(seen, colour) <= 8, (name, text, seen, colour)
        assert scale["ticks"][-1] == "0.99", "nothing is larger: no plus"


def test_unknown_weights_are_hatched(folder):
    """Beside the diagonal of a long page weights that are not known are hatched; those that nobody can have are 0."""
    with Page(folder) as page:
        for theme in ("light", "dark"):
            page.open("long_20000", f"layer=0&head=0&part=9000,8900,60,60&theme={theme}")
            left, top, right, bottom = square_of(page)
            page.run("document.getElementById('map').scrollIntoView({ block: 'center' })")
            x, y, _, _ = page.run(READ_BOX, "#map")
            points = [(x + left + 40 + i % 12, y + top + 40 + i // 12) for i in range(144)]
            seen = pixels(page, points)
            ground, lines = theme_colour(page, "--ground"), theme_colour(page, "--hatch")
            assert sum(distance(one, ground) <= 6 for one in seen) > 30, (theme, seen[:20])
            assert sum(distance(one, lines) <= 24 for one in seen) > 10, (theme, seen[:20])
            page.open("long_20000", f"layer=0&head=0&part=8900,9000,60,60&theme={theme}")
            page.run("document.getElementById('map').scrollIntoView({ block: 'center' })")
            x, y, _, _ = page.run(READ_BOX, "#map")
            points = [(x + left + 40 + i % 12, y + top + 40 + i // 12) for i in range(144)]
            assert all(one == ground for one in pixels(page, points)), "after a causal diagonal all is known to be 0"
        tip = page.run("""
            const map = document.getElementById('map'), box = map.getBoundingClientRect();
            map.dispatchEvent(new MouseEvent('mousemove', { clientX: box.left + arguments[0], clientY: box.top +
                                                            arguments[1] }));
            return document.querySelector('#tip .digits').textContent;""", left + 60, top + 60)
        assert tip == "0", tip
        page.open("long_20000", "layer=0&head=0&part=9000,8900,60,60")
        said = page.text("#part") + page.text("#precision")
        near = page.run("return JSON.parse(document.getElementById('data').textContent).layers[0].heads[0].nearest")
        assert re.findall(r"(\d+) nearest", said) == [str(len(near))] and "around" not in said, said
        kinds = page.run("return [...document.querySelectorAll('.chip')]"
                         ".map(chip => chip.classList.contains('unknown'))")
        assert any(kinds) and not all(kinds)


def test_lines_have_the_colour_of_their_head(folder):
    """A line has its head's colour, a weight of 0.01 can be seen, and two heads' lines to one key are side by side."""
    with Page(folder) as page:
        for theme in ("light", "dark"):
            page.open("pair", f"layer=0&head=1&view=lines&token=0&theme={theme}")
            ground = theme_colour(page, "--ground")
            for heads, drawn in (("", [1]), ("&heads=0,1", [0, 1])):
                page.open("pair", f"layer=0&head=1&view=lines&token=0&theme={theme}{heads}")
                page.run("document.getElementById('lines').scrollIntoView({ block: 'center' })")
                curves = page.run(READ_CURVES)
                assert len(curves) == 4 * len(drawn)
                for n, (*points, colour) in enumerate(curves):
                    head, (i, j) = drawn[n // 4], divmod(n % 4, 2)
                    assert colour == "#%02x%02x%02x" % HEAD[head], (colour, head)
                    alone = lambda t: min([abs(at(points, t)[1] - at(other, t)[1]) for other in curves
                                           if other[:8] != points], default=9)
                    x, y = at(points, max((step / 50 for step in range(5, 46)), key=alone))
                    left, top, _, _ = page.run(READ_BOX, "#lines")
                    seen = max(pixels(page, [(left + x, top + y + shift) for shift in (-1, 0, 1)]),
                               key=lambda one: distance(one, ground))
                    towards = [a - b for a, b in zip(HEAD[head], ground)]
                    moved = [a - b for a, b in zip(seen, ground)]
                    share = sum(a * b for a, b in zip(moved, towards)) / sum(b * b for b in towards)
                    least = 0.75 if i == j == 0 else 0.3 if i == j else 0.15 if i == 0 else 0.08
                    assert share >= least, (theme, head, i, j, share, seen)
                    assert distance(moved, [share * b for b in towards]) <= 24, (theme, head, i, j, seen)


def test_pair(folder):
    """Lines are filtered by the sentences that they go between; a link keeps the choice."""
    with Page(folder) as page:
        page.open("pair", "layer=0&head=0&view=lines&token=0")
        choices = page.run("return [...document.querySelectorAll('#between button')].map(one => one.textContent)")
        assert choices == ["All", "A \u2192 A", "A \u2192 B", "B \u2192 A", "B \u2192 B"], choices
        whole = page.run(READ_CURVES)
        for n, (i, j) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
            page.click("#between button", n + 1)
            assert page.run(READ_CURVES) == [whole[2 * i + j]], (n, "another line")
        assert page.driver.current_url.endswith("between=BB")
        page.open("pair", "layer=0&head=0&view=lines&token=0&between=AB")
        assert page.run(READ_CURVES) == [whole[1]]
        page.open("tokens_60", "layer=0&head=0&view=lines")
        assert not page.run("return document.getElementById('between').offsetParent"), "there is no second sentence"


def test_matrix_fills_its_pane(folder):
    """The matrix fills its pane, at any number of tokens and width, beside the table too; no label is cut."""
    table = 0
    with Page(folder) as page:
        for width, height in ((1280, 900), (1920, 1080), (900, 900), (520, 900), (360, 740)):
            page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
                "width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
            for name in ("tokens_5", "tokens_60", "tokens_318", "tokens_600", "long_20000"):
                table = 1 - table  # an odd number of pages: each with and without
                page.open(name, f"layer=0&head=0&table={table}")
                left, top, right, bottom = square_of(page)
                pane, drawn, scrolled = page.run(
                    "const map = document.getElementById('map');"
                    "return [document.getElementById('plot').clientWidth, map.clientWidth,"
                    "        document.getElementById('canvases').scrollWidth]")
                assert drawn <= pane and scrolled <= pane, (name, width, table, "labels are cut")
                assert right - left >= 0.5 * pane, (name, width, table, right - left, pane)


def test_phone(folder):
    """Nothing is wider than a narrow window, but what scrolls; the scale is whole; what can be clicked looks so."""
    with Page(folder) as page:
        for width in (360, 520):
            page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
                "width": width, "height": 740, "deviceScaleFactor": 1, "mobile": False})
            for name, fragment in (("tokens_60", ""), ("tokens_60", "layer=0&head=0&table=1"),
                                   ("long_20000", "layer=0&head=0&scale=log"), ("pair", "layer=0&head=0&view=lines"),
                                   ("tokens_6", "layer=0&head=0&view=neurons")):
                page.open(name, fragment)
                wide = page.run("return document.documentElement.scrollWidth")
                assert wide <= width, (name, fragment, wide)
                for part in ["#legend"] + [f"#ticks span:nth-child({n})" for n in range(1, 4)]:
                    left, _, right, _ = page.run(READ_BOX, part)
                    assert 0 <= left < right <= width, (name, part, left, right)
        page.open("tokens_60", "layer=0&head=0")
        assert "open" in page.text("#hint")
        cursor = "return getComputedStyle(document.querySelector(arguments[0])).cursor"
        assert page.run(cursor, ".thumb") == page.run(cursor, ".chip") == page.run(cursor, "#map") == "pointer"


def test_table(folder):
    """The table scrolls sideways under its first column and says so; large numbers have darker cells."""
    with Page(folder) as page:
        page.open("tokens_60", "layer=0&head=0&table=1")
        first = page.run(READ_BOX, "#measures tbody td")
        says = "return getComputedStyle(document.getElementById('sideways')).visibility"
        assert page.run(says) == "visible" and "sideways" in page.text("#sideways")
        page.run("const box = document.getElementById('scrolled'); box.scrollLeft = box.scrollWidth;")
        page.wait_for("return getComputedStyle(document.getElementById('sideways')).visibility === 'hidden'")
        assert page.run(READ_BOX, "#measures tbody td") == first, "the head's name stays"
        last, box = page.run(READ_BOX, "#measures tbody td:last-child"), page.run(READ_BOX, "#scrolled")
        assert last[2] <= box[2] + 1, "the last column is whole"
        page.open("tokens_60", "table=1")
        numbers = page.run("return [...document.querySelectorAll('#measures tbody td:nth-child(2)')]"
                           ".map(cell => Number(cell.textContent))")
        boxes = [page.run(READ_BOX, f"#measures tbody tr:nth-child({n + 1}) td:nth-child(2)") for n in range(2)]
        seen = [sum(pixels(page, [(left + 2, top + 2)])[0]) for left, top, _, _ in boxes]
        assert (numbers[0] > numbers[1]) == (seen[0] < seen[1]) and seen[0] != seen[1], (numbers, seen)


def test_tokens(folder):
    """Bytes that form characters are read as these, words in one; a word is chosen at first; no row is cut."""
    with Page(folder) as page:
        page.open("bytes")
        assert page.text("#text") == "[CLS] First a\u65e5\u00fc[SEP]", page.text("#text")
        page.open("bytes", "layer=0&head=0")
        chips = page.run("return [...document.querySelectorAll('.chip')].map(chip => chip.textContent)")
        assert chips[4] == "\u21b5" and chips[6:9] == [f"\u65e5 {n}/3" for n in (1, 2, 3)], chips
        assert chips[9:11] == ["\u00fc 1/2", "\u00fc 2/2"] and "SEP" not in page.text("#chosen"), chips
        for width in (360, 700, 1400):
            page.driver.set_window_size(width, 900)
            page.open("tokens_318", "layer=0&head=0&token=200")
            cut = page.run("""
                const box = document.getElementById('chips').getBoundingClientRect();
                return [...document.querySelectorAll('.chip')].filter(chip => {
                  const { top, bottom } = chip.getBoundingClientRect();
                  return top < box.bottom && bottom > box.top && (top < box.top || bottom > box.bottom);
                }).length;""")
            assert cut == 0, (width, cut)


def test_neurons(folder):
    """Elements are wide enough to be seen, and no text is on another or on the buttons."""
    with Page(folder) as page:
        page.open("tokens_2000", "layer=0&head=0&view=neurons")  # vectors of 32 elements
        rows = page.run("""
            const prototype = CanvasRenderingContext2D.prototype, { fillRect } = prototype, widths = [];
            prototype.fillRect = function (x, y, width) {
              if (this.canvas.id === 'neurons') widths.push(width);
              return fillRect.apply(this, arguments);
            };
            dispatchEvent(new Event('resize'));
            Object.assign(prototype, { fillRect });
            return widths;""")
        assert len(rows) == 32 * (1 + 2 * 12) and min(rows) >= 3.5, (len(rows), min(rows))
        note, canvas = page.run(READ_BOX, "#neurons-note"), page.run(READ_BOX, "#neurons")
        bar = page.run(READ_BOX, "#plot .bar")
        assert bar[3] <= note[1] + 1 and note[3] <= canvas[1] + 1, (bar, note, canvas)
