"""Long texts, two texts, the other views and the page of a server in a real browser, held against q, k and lse."""

import csv
import http.client
import io
import math
import re
import signal
import subprocess
import xml.etree.ElementTree

import numpy
from browser import READ_CHIPS, READ_LABELS, READ_MAP, READ_SCALE, Page, check_labels
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

MEGABYTES = 20       # of a page of any length
FIRST_PAINT = 2000   # milliseconds
CELL = 2 ** (12 / 254) - 1    # half a step of 24 powers of two in 8 bits, of a weight
MEAN = 2 ** (16 / 254) - 1    # the same of 32 powers of two
TOP = 2 ** (16 / 65534) - 1   # of 32 powers of two in 16 bits
SHOWN = 6e-5         # five digits
ROUNDING = 1e-5      # of weights in float32, whose scores are small here

# Whatever the map says at points so far apart: [[text, its digits, [red, green, blue]]...].
READ_TIPS = """
const map = document.getElementById('map'), box = map.getBoundingClientRect(), seen = [];
const picture = map.getContext('2d').getImageData(0, 0, map.width, map.height);
for (let y = 3; y < box.height; y += arguments[0]) {
  for (let x = 3; x < box.width; x += arguments[0]) {
    map.dispatchEvent(new MouseEvent('mousemove', { clientX: box.left + x, clientY: box.top + y }));
    const tip = document.getElementById('tip'), at = 4 * (y * map.width + x);
    const digits = tip.querySelector('.digits');
    if (!tip.hidden && digits) seen.push([tip.textContent, digits.textContent, [...picture.data.slice(at, at + 3)]]);
  }
}
map.dispatchEvent(new MouseEvent('mouseleave'));
return seen;
"""

# Draws anew and notes what a canvas is asked to: its texts, and of its curves ends, opacity and colour.
READ_DRAWN = """
const prototype = CanvasRenderingContext2D.prototype, { fillText, moveTo, bezierCurveTo } = prototype;
const texts = [], curves = [], id = arguments[0];
let from = null;
prototype.fillText = function (text, x, y) {
  if (this.canvas.id === id) texts.push([text, x, y]);
  return fillText.apply(this, arguments);
};
prototype.moveTo = function (x, y) { from = y; return moveTo.apply(this, arguments); };
prototype.bezierCurveTo = function (...points) {
  if (this.canvas.id === id) curves.push([from, points[5], this.globalAlpha, this.strokeStyle, this.lineWidth]);
  return bezierCurveTo.apply(this, arguments);
};
dispatchEvent(new Event('resize'));
Object.assign(prototype, { fillText, moveTo, bezierCurveTo });
return { texts, curves };
"""

# Weights of each row that a pooled page of one head has: how many of the largest, and of those up to its own token.
READ_KNOWN = """
const { ranks, nearest } = JSON.parse(document.getElementById('data').textContent).layers[0].heads[0];
return [ranks.length, nearest.length];
"""


class Numbers:
    """Weights of one head, computed in float64 from the q, k and lse beside a page."""

    def __init__(self, folder, name, heads=1, causal=False, head=0):
        read = lambda end: numpy.fromfile(folder / f"{name}.{end}", numpy.float32).astype(numpy.float64)
        self.lse = read("lse").reshape(heads, -1)[head]
        self.q = read("q").reshape(heads, len(self.lse), -1)[head]
        self.k = read("k").reshape(len(self.lse), -1)
        self.causal = causal

    def part(self, first, end, low, high):
        """The weights of queries first .. end - 1 on keys low .. high - 1."""
        scores = self.q[first:end] @ self.k[low:high].T / math.sqrt(self.q.shape[1])
        weights = numpy.exp(scores - self.lse[first:end, None])
        hidden = numpy.arange(low, high)[None, :] > numpy.arange(first, end)[:, None]
        return numpy.where(hidden, 0, weights) if self.causal else weights

    def row(self, query):
        return self.part(query, query + 1, 0, len(self.k))[0]

    def column(self, key):
        return self.part(0, len(self.q), key, key + 1)[:, 0]


def spans_of(text):
    """((first, last) of queries, of keys) that a tip names."""
    found = re.match(r"query (\d+)(?:\u2013(\d+))? .*?\u2192 key (\d+)(?:\u2013(\d+))? ", text, re.S)
    query, query_end, key, key_end = (int(number) if number else None for number in found.groups())
    return (query, query if query_end is None else query_end), (key, key if key_end is None else key_end)


def check_pooled(tips, numbers, cells, scale):
    """What a cell shows is at least the largest weight of its tokens, at most that of all cells they have a part in."""
    n = len(numbers.lse)
    pooled = 0
    for text, digits, colour in tips:
        if "not known" in digits:
            continue
        (top, bottom), (left, right) = spans_of(text)
        shown = float(digits.split()[-1])
        if "largest" in digits:
            pooled += 1
            extended = lambda first, last: (first * cells // n * n // cells,
                                            min(-(-(last * cells // n + 1) * n // cells), n))
            outer = numbers.part(*extended(top, bottom), *extended(left, right)).max()
            inner = numbers.part(top, bottom + 1, left, right + 1).max()
            assert inner * (1 - CELL - SHOWN) - 2**-24 <= shown <= outer * (1 + CELL + SHOWN), (text, inner, outer)
        else:
            true = numbers.part(top, top + 1, left, left + 1)[0, 0]
            assert abs(shown - true) <= (TOP + SHOWN + ROUNDING) * true, (text, true)
        wanted = round(255 * min(shown / scale["end"], 1))
        slack = round(255 * shown * 2 * CELL / scale["end"]) + 1
        assert colour in scale["colours"][max(wanted - slack, 0):wanted + slack + 1], (text, colour)
    return pooled


def test_long_texts(folder):
    """20,000 and 100,000 tokens: pictures, single weights, rows and columns, links, labels; nothing is fetched."""
    for n in (20000, 100000):
        name = f"long_{n}"
        numbers = Numbers(folder, name, causal=True)
        assert (folder / f"{name}.html").stat().st_size < MEGABYTES * 1e6
        with Page(folder) as page:
            page.open(name)
            page.wait_for("return performance.getEntriesByName('first-contentful-paint').length > 0")
            paint = page.run("return performance.getEntriesByName('first-contentful-paint')[0].startTime")
            assert paint < FIRST_PAINT, f"{n} tokens: {paint} ms"
            assert f"{n} tokens" in page.text("#facts")
            data = page.run("return JSON.parse(document.getElementById('data').textContent).pooled")
            page.open(name, "layer=0&head=0")
            check_labels(page.run(READ_LABELS), 8, name)
            pooled = check_pooled(page.run(READ_TIPS, 97), numbers, data["rows"], page.run(READ_SCALE))
            assert pooled > 5, pooled
            query = n - 77
            page.open(name, f"layer=0&head=0&token={query}&part={n - 3000},{n - 3000},3000,3000")
            assert page.text("#part").startswith(f"queries {n - 3000}\u2013{n - 1}, keys {n - 3000}\u2013{n - 1}. ")
            check_pooled(page.run(READ_TIPS, 97), numbers, data["rows"], page.run(READ_SCALE))
            check_row(page, numbers, query)
            check_single(page, numbers, name, n)
            page.press("d")
            received = float(re.search(r"receives (\S+) in all", page.text("#numbers"))[1])
            assert abs(received - numbers.column(query).sum()) <= 6e-3 * received
            check_windows(page, numbers, name)
            check_means(page, numbers, name, data)
            assert page.run("return performance.getEntriesByType('resource').length") == 0
            assert not page.driver.get_log("browser")


def check_row(page, numbers, query):
    row = numbers.row(query)
    order = numpy.argsort(-row, kind="stable")[:12]
    ranked = page.run("return [...document.querySelectorAll('#top li')].map(li => li.innerText.split(/\\s+/))")
    assert [int(item[0]) for item in ranked] == list(order), (ranked, order)
    for item, key in zip(ranked, order):
        assert abs(float(item[-1]) - row[key]) <= (TOP + SHOWN + ROUNDING) * row[key], item
    entropy = -(row[row > 0] * numpy.log(row[row > 0])).sum()
    assert abs(float(re.search(r"entropy (\S+)", page.text("#numbers"))[1]) - entropy) <= 6e-3 * entropy


def check_single(page, numbers, name, n):
    """Zoomed in, the largest weights of each row and those around its token are at their places, and the others say
    that they are not known."""
    first, low = n - 100, int(numpy.argmax(numbers.row(n - 77))) // 50 * 50
    page.open(name, f"layer=0&head=0&token={n - 77}&part={first},{low},50,50")
    check_labels(page.run(READ_LABELS), 8, f"{name}, zoomed")
    assert "Known and drawn: " in page.text("#part")
    tips = page.run(READ_TIPS, 6)
    known = {spans_of(text): float(digits) for text, digits, _ in tips if "not known" not in digits}
    top, band = page.run(READ_KNOWN)
    assert top > 4 and band > 8, (top, band)
    expected = {}
    for query in range(first, first + 50):
        row = numbers.row(query)
        expected.update({((query, query), (key, key)): 0 for key in range(max(low, query + 1), low + 50)})
        for key in {*numpy.argsort(-row, kind="stable")[:top], *range(query - band + 1, query + 1)}:
            if low <= key < low + 50:
                expected[(query, query), (int(key), int(key))] = row[key]
    assert known.keys() == expected.keys() and known, (known.keys() ^ expected.keys())
    for pair, weight in known.items():
        assert abs(weight - expected[pair]) <= (TOP + SHOWN + ROUNDING) * expected[pair], (pair, weight)


def check_windows(page, numbers, name):
    """A window that was asked for has every weight, and so have a row and a column."""
    page.open(name, "layer=0&head=0&part=15010,3020,40,50")
    assert "exact window" in page.text("#part") and "3 outlined windows" in page.text("#precision")
    expected = numbers.part(15010, 15050, 3020, 3070)
    found = page.run(READ_MAP, 6)
    assert len(found) == 40 * 50, len(found)
    for i, j, weight, _ in found:
        wanted = expected[i - 15010, j - 3020]
        assert abs(weight - wanted) <= (TOP + SHOWN + ROUNDING) * wanted + 2**-32, (i, j, weight, wanted)
    row, column = numbers.row(19000), numbers.column(12345)
    for fragment, line in (("token=19000", row), ("by=key&token=12345", column)):
        page.open(name, "layer=0&head=0&" + fragment)
        shown = [float(item.split()[-1]) for item in
                 page.run("return [...document.querySelectorAll('#top li')].map(li => li.innerText)")]
        wanted = numpy.sort(line)[::-1][:12]
        off = abs(numpy.array(shown) - wanted)
        assert (off <= (TOP + SHOWN + ROUNDING) * wanted + 2**-32).all(), (fragment, shown, wanted)


def check_means(page, numbers, name, data):
    """The reader's other picture: means of the cells' weights, on a scale of their own."""
    n, cells = len(numbers.lse), data["mean_rows"]
    page.open(name, f"layer=0&head=0&part={n - n // 5},{n - n // 5},{n // 5},{n // 5}&scale=log")
    page.click("#pool button", 1)
    assert "pool=mean" in address_of(page) and "show the mean" in page.text("#part")
    tips = [(text, digits) for text, digits, _ in page.run(READ_TIPS, 83) if digits.startswith("mean")]
    assert len(tips) > 5
    for text, digits in tips:
        (top, bottom), (left, right) = spans_of(text)
        shares = lambda first, last: {t * cells // n: sum(u * cells // n == t * cells // n
                                                          for u in range(first, last + 1)) / (last + 1 - first)
                                      for t in range(first, last + 1)}
        of_cell = lambda cell: (-(-cell * n // cells), -(-(cell + 1) * n // cells))
        wanted = sum(down * across * numbers.part(*of_cell(y), *of_cell(x)).mean()
                     for y, down in shares(top, bottom).items() for x, across in shares(left, right).items())
        assert abs(float(digits.split()[-1]) - wanted) <= (MEAN + SHOWN + ROUNDING) * wanted + 2**-31, (text, wanted)
    page.press("m")
    assert "pool=mean" not in address_of(page) and "show the largest" in page.text("#part")


def test_two_texts(folder):
    """Rows are of one text, columns of the other; hostile tokens stay text."""
    numbers = Numbers(folder, "two_texts", heads=2, head=1)
    expected = numbers.part(0, 5, 0, 9)
    with Page(folder) as page:
        page.open("two_texts", "layer=0&head=1")
        assert "5 queries \u00b7 9 keys" in page.text("#facts")
        check_labels(page.run(READ_LABELS), 8, "two texts")
        found = page.run(READ_MAP, 10)
        assert len(found) == 45
        for i, j, weight, _ in found:
            assert abs(weight - expected[i, j]) <= (SHOWN + 1e-4) * expected[i, j]
        assert page.run("return document.querySelectorAll('#chips .chip').length") == 9
        assert page.run("return document.querySelectorAll('#choices .chip').length") == 5
        page.click("#choices .chip", 2)
        assert "token=2" in address_of(page) and "by=key" not in address_of(page)
        page.click("#chips .chip", 7)
        assert "token=7" in address_of(page) and "by=key" in address_of(page)
        assert page.run("return document.querySelectorAll('#chips .chip').length") == 5
        assert page.run("return document.querySelector('#choices .chip').textContent") == "<b>"
        hovered = page.run("""
            document.querySelectorAll('#chips .chip')[3].dispatchEvent(new MouseEvent('mousemove'));
            return document.getElementById('tip').textContent;""")
        assert re.match(r"query 3 .*key 7 ", hovered, re.S) and "0." in hovered, hovered
        page.press("v")
        assert page.run("return document.querySelectorAll('script').length") == 2
        assert page.run("return document.querySelectorAll('b:not(:is(#chosen, #tip) > b)').length") == 0


def test_lines_are_as_strong_as_weights(folder):
    """A line from each query to each key, as strong as the weight."""
    weights = Numbers(folder, "tokens_6", heads=2).part(0, 6, 0, 6)
    with Page(folder) as page:
        page.open("tokens_6", "layer=0&head=0&view=lines&token=4")
        end = page.run(READ_SCALE)["end"]
        drawn = page.run(READ_DRAWN, "lines")
        height = sorted({start for start, *_ in drawn["curves"]})
        assert len(height) == 6
        seen = {(height.index(start), height.index(stop)): alpha for start, stop, alpha, *_ in drawn["curves"]}
        for i in range(6):
            for j in range(6):
                strength = min(weights[i, j] / end, 1)
                if strength < 0.008 * (1 - 1e-3):
                    assert (i, j) not in seen
                elif strength > 0.008 * (1 + 1e-3):
                    wanted = opacity(strength, i == 4)
                    assert abs(seen[i, j] - wanted) <= 1e-3 * wanted + 1e-4, (i, j, seen[i, j], wanted)
        assert len([text for text, _, _ in drawn["texts"] if re.match(r"\d ", text)]) == 12
        page.click("#view button", 0)
        assert page.driver.find_element(By.ID, "map").is_displayed()
        numbers = Numbers(folder, "long_20000", causal=True)
        row = numbers.row(14000)
        page.open("long_20000", "layer=0&head=0&view=lines&token=14000")
        top, band = page.run(READ_KNOWN)
        known = {*numpy.argsort(-row, kind="stable")[:top], *range(14000 - band + 1, 14001), 12345}
        most = sorted(known, key=lambda key: -row[key])[:24]
        listed = [text.split()[0] for text, _, _ in page.run(READ_DRAWN, "lines")["texts"] if re.match(r"\d", text)]
        assert listed == ["14000", *map(str, sorted(most))]
        shown = float(re.search(r"most to do with: (\S+) of its weight", page.text("#lines-note"))[1])
        assert abs(shown - row[most].sum()) <= 6e-3 * shown


def test_lines_of_several_heads(folder):
    """Lines of several heads, each in its colour on one scale; squares show and hide them, and a link keeps them."""
    weights = [Numbers(folder, "tokens_6", heads=2, head=head).part(0, 6, 0, 6) for head in range(2)]
    with Page(folder) as page:
        page.open("tokens_6", "layer=0&head=0&token=4")
        ends = [page.run("return JSON.parse(document.getElementById('data').textContent).layers[0].heads[arguments[0]]"
                         ".end", head) for head in range(2)]
        page.click("#view button", 1)
        assert page.run("return [...document.querySelectorAll('.square')].map(one => one.textContent)") == \
            ["0", "1", "all"]
        page.click(".square", 1)
        assert "heads=0%2C1" in address_of(page)
        kept = page.run("""
            const square = document.querySelectorAll('.square')[0];
            square.focus();
            dispatchEvent(new Event('resize'));
            return square === document.querySelectorAll('.square')[0] && square === document.activeElement;""")
        assert kept, "what is drawn anew takes no square away"
        check_lines(page, weights, max(ends))
        page.click(".square", 0)
        assert "heads=1" in address_of(page)
        pressed = "return [...document.querySelectorAll('.square')].map(one => one.getAttribute('aria-pressed'))"
        assert page.run(pressed) == ["false", "true", "false"]
        alone = {colour for *_, colour, _ in page.run(READ_DRAWN, "lines")["curves"]}
        assert alone == {"#e69f00"}, "one head has its own colour, too"
        page.open("tokens_6", "layer=0&head=0&token=4&view=lines&heads=0,1,mean,7")
        check_lines(page, weights, max(ends))
        page.click(".square", 2)
        assert "heads=" not in address_of(page)
        page.open("tokens_600", "layer=0&head=1&token=400&view=lines&heads=0,1")
        assert "most to do with. " in page.text("#lines-note")
        curves = page.run(READ_DRAWN, "lines")["curves"]
        assert len({colour for *_, colour, _ in curves}) == 2 and len(curves) > 12
        page.press(Keys.ESCAPE)
        assert not page.driver.get_log("browser")


def check_lines(page, weights, end):
    """Lines of each of these heads, from each query to each key."""
    curves = page.run(READ_DRAWN, "lines")["curves"]
    colours = list(dict.fromkeys(colour for *_, colour, _ in curves))
    assert colours == ["#0072b2", "#e69f00"], colours
    heights = [sorted({start for start, _, _, colour, _ in curves if colour == one}) for one in colours]
    shift = heights[1][0] - heights[0][0]
    assert all(abs(b - a - shift) < 1e-6 for a, b in zip(*heights)) and len(heights[0]) == 6
    assert shift >= max(width for *_, width in curves), "lines of two heads run side by side"
    seen = {(head, heights[head].index(start), heights[head].index(stop)): alpha
            for start, stop, alpha, colour, _ in curves for head in [colours.index(colour)]}
    assert len(seen) == len(curves)
    for (head, i, j), alpha in seen.items():
        wanted = opacity(min(weights[head][i, j] / end, 1), i == 4)
        assert abs(alpha - wanted) <= 1e-3 * wanted + 1e-4, (head, i, j, alpha, wanted)
    assert len(seen) >= sum((one / end > 0.009).sum() for one in weights)


def test_neurons(folder):
    """The products of a query and the keys that it sees most add up to the scores, whose softmax the weights are."""
    numbers = Numbers(folder, "tokens_6", heads=2, head=1)
    with Page(folder) as page:
        page.open("tokens_6", "layer=0&head=1&view=neurons&token=2")
        texts = [text for text, _, _ in page.run(READ_DRAWN, "neurons")["texts"]]
        rows = [texts[at:at + 3] for at, text in enumerate(texts) if re.match(r"\d ", text)]
        assert len(rows) == 6
        for name, score, weight in rows:
            key = int(name.split()[0])
            wanted = numbers.q[2] @ numbers.k[key] / math.sqrt(8)
            assert abs(float(score) - wanted) <= 1e-3 * abs(wanted) + 1e-4
            assert abs(float(weight) - math.exp(wanted - numbers.lse[2])) <= 6e-3 * float(weight)
        page.open("tokens_6", "layer=0&head=mean&view=neurons")
        assert "no queries and keys" in page.text("#neurons-note")
        page.open("long_20000", "layer=0&head=0&view=neurons")
        assert "--serve" in page.text("#neurons-note")


def opacity(strength, is_chosen):
    return 0.3 + 0.7 * math.sqrt(strength) if is_chosen else 0.18 + 0.4 * strength


def address_of(page):
    return page.run("return location.href")


def table_of(page):
    return page.run("return [...document.querySelectorAll('#measures tr')].map(row => "
                    "[...row.children].map(cell => cell.textContent))")


def test_table(folder):
    """Numbers of heads, sorted by any column, both ways; a head opens from there."""
    expected = [Numbers(folder, "tokens_6", heads=2, head=head).part(0, 6, 0, 6) for head in range(2)]
    with Page(folder) as page:
        page.open("tokens_6", "table=1")
        shown, *rows = table_of(page)
        assert shown[:4] == ["head", "max", "keys", "prev"] and max(map(len, shown)) <= 16, shown
        names = page.run("return [...document.querySelectorAll('#measures th')].map(th => th.title.split(':')[0])")
        assert names[:3] == ["by layer and head", "maximum", "keys"] and len(names) == 24 and len(rows) == 2
        for weights, row in zip(expected, rows):
            wanted = {"entropy": -(weights * numpy.log(weights)).sum(1).mean(), "maximum": weights.max(1).mean(),
                      "keys": (1 / (weights**2).sum(1)).mean(), "first": weights[:, 0].mean(),
                      "previous": numpy.diagonal(weights, -1).mean(), "next": numpy.diagonal(weights, 1).mean(),
                      "self": numpy.diagonal(weights).mean(), "first_four": weights[:, :4].sum(1).mean(),
                      "confidence": weights.max(1).mean(),
                      "entropy_of_first": -(weights[0] * numpy.log(weights[0])).sum(),
                      "distance": (weights * abs(numpy.subtract.outer(range(6), range(6)))).sum(1).mean()}
            for name, value in wanted.items():
                assert abs(float(row[names.index(name)]) - value) <= 6e-4, (name, row, value)
            for name in ("separator", "duplicate", "induction"):  # of tokens that the text has not
                assert row[names.index(name)] == "\u2013", (name, row)
        for column in (1, 2):
            for way in (1, -1):
                page.click("#measures th button", column)
                shown = [float(row[column]) for row in table_of(page)[1:]]
                assert shown == sorted(shown, reverse=way == 1), (column, way, shown)
        assert page.run("return document.querySelectorAll('th')[2].getAttribute('aria-sort')") == "ascending"
        opened = table_of(page)[1][0]
        page.click("#measures td button", 0)
        assert page.text("#name") == opened and "table=1" in address_of(page)


def test_copying(folder):
    """What is copied as CSV, SVG and PNG is what is shown; a token is no formula."""
    with Page(folder) as page:
        page.driver.execute_cdp_cmd("Browser.grantPermissions", {
            "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]})
        page.open("tokens_6", "layer=0&head=0&theme=dark")
        shown = page.run(READ_CHIPS)
        rows = list(csv.reader(io.StringIO(copied(page, "#csv"))))
        assert len(rows) == 7 and [[float(cell) for cell in row[1:]] for row in rows[1:]] == shown
        assert all(re.match(r"\d ", name) for name in rows[0][1:] + [row[0] for row in rows[1:]]), rows
        svg = xml.etree.ElementTree.fromstring(copied(page, "#svg-copy"))
        kinds = [node.tag.split("}")[1] for node in svg.iter()]
        assert set(kinds) == {"svg", "title", "rect", "text"}
        assert kinds.count("rect") == 2 + 36 and kinds.count("text") == 12
        assert any(node.text and "\u241b" in node.text for node in svg.iter()), "escapes are visible signs"
        page.click("#png")
        size = page.driver.execute_async_script("""
            const done = arguments[0];
            setTimeout(async () => {
              const items = await navigator.clipboard.read();
              const bitmap = await createImageBitmap(await items[0].getType('image/png'));
              const canvas = document.createElement('canvas');
              Object.assign(canvas, { width: bitmap.width, height: bitmap.height });
              const context = canvas.getContext('2d'), map = document.getElementById('map');
              context.drawImage(bitmap, 0, 0);
              const read = (from, x, y, w, h) => [...from.getContext('2d').getImageData(x, y, w, h).data];
              const inside = read(canvas, 16, bitmap.height - 16 - map.height, map.width, map.height);
              const drawn = read(map, 0, 0, map.width, map.height), ground = [19, 22, 29, 255];
              const same = drawn.every((value, n) => drawn[n - n % 4 + 3] < 255 || value === inside[n]);
              const heading = read(canvas, 16, 16, 200, 20), legend = read(canvas, bitmap.width - 40, 24, 1, 1);
              done({ same, corner: read(canvas, 0, 0, 1, 1), legend, size: [bitmap.width, bitmap.height],
                     heading: heading.filter((value, n) => value !== ground[n % 4]).length });
            }, 500);""")
        assert size["same"] and size["corner"] == [19, 22, 29, 255] and size["heading"] > 200, size
        end = page.run(READ_SCALE)["colours"][255]
        assert all(abs(a - b) <= 12 for a, b in zip(size["legend"], end)), (size, end)
        ground = page.run("return getComputedStyle(document.getElementById('detail')).backgroundColor")
        assert ground == "rgb(19, 22, 29)", "the page's own theme goes before the system's"
        page.open("long_20000", "layer=0&head=0")
        rows = list(csv.reader(io.StringIO(copied(page, "#csv"))))
        assert len(rows) > 200 and re.match(r"0\u2013\d+$", rows[0][1]), rows[0][:3]


def copied(page, button):
    page.click(button)
    return page.driver.execute_async_script(
        "const done = arguments[0]; setTimeout(async () => done(await navigator.clipboard.readText()), 300);")


def test_search(folder):
    """A token is found by any part of it, one after the other, and is in sight then."""
    with Page(folder) as page:
        page.open("long_100000", "layer=0&head=0&part=0,0,100,100")
        page.press("/")
        page.press("needle", Keys.ENTER)
        assert page.text("#found") == "1 of 1" and "token=33333" in address_of(page)
        first = int(re.match(r"queries (\d+)", page.text("#part"))[1])
        assert first <= 33333 < first + 100 and "needle in </s" in page.text("#chosen")
        page.open("tokens_60")
        page.press("/")
        page.press("wWw", Keys.ENTER, Keys.ENTER)
        assert page.text("#found") == "2 of 6" and "token=19" in address_of(page)
        ActionChains(page.driver).key_down(Keys.SHIFT).send_keys(Keys.ENTER).key_up(Keys.SHIFT).perform()
        assert page.text("#found") == "1 of 6" and "token=9" in address_of(page)
        page.driver.find_element(By.ID, "search").clear()
        page.press("/")
        page.press("nothing such", Keys.ENTER)
        assert page.text("#found") == "none"


def test_served(folder, attn):
    """The page of a server shows every weight; it requests them from its server, which answers nobody else."""
    numbers = Numbers(folder, "served", heads=4, causal=True, head=1)
    program = subprocess.Popen([attn, "see", folder / "served.safetensors", "--serve"], stdout=subprocess.PIPE,
                               text=True)
    try:
        address = re.match(r"(http://127\.0\.0\.1:(\d+)/)", program.stdout.readline())
        check_served(folder, numbers, address[1])
        check_refusals(int(address[2]))
    finally:
        program.send_signal(signal.SIGTERM)
    assert program.wait(20) == 128 + signal.SIGTERM


def check_served(folder, numbers, address):
    with Page(folder) as page:
        page.driver.get(address)
        page.wait_for("return [...document.querySelectorAll('.thumb canvas')].every(canvas => "
                      "new Set(canvas.getContext('2d').getImageData(0, 0, 96, 96).data).size > 4)")
        page.driver.get(address + "#layer=0&head=1&token=400")
        page.wait()
        assert "shows the largest of" in page.text("#part") or page.text("#part") == ""
        row = numbers.row(400)
        ranked = page.run("return [...document.querySelectorAll('#top li')].map(li => li.innerText.split(/\\s+/))")
        assert [int(item[0]) for item in ranked] == list(numpy.argsort(-row, kind="stable")[:12])
        page.driver.get("about:blank")
        page.driver.get(address + "#layer=0&head=1&token=400&part=390,380,30,40")
        page.wait()
        found = page.run(READ_MAP, 10)
        expected = numbers.part(390, 420, 380, 420)
        assert len(found) > 1000
        for i, j, weight, _ in found:
            wanted = expected[i - 390, j - 380]
            assert abs(weight - wanted) <= (SHOWN + ROUNDING) * wanted, (i, j, weight, wanted)
        page.driver.get("about:blank")
        page.driver.get(address + "#layer=0&head=1&token=400&part=390,380,30,40&view=lines&heads=0,1,2,3")
        page.wait()
        assert len({colour for *_, colour, _ in page.run(READ_DRAWN, "lines")["curves"]}) == 4, "each head is answered"
        page.press("v")
        texts = [text for text, _, _ in page.run(READ_DRAWN, "neurons")["texts"]]
        assert len([text for text in texts if re.match(r"\d+ ", text)]) == 12
        page.press("t")
        page.wait_for("return ![...document.querySelectorAll('#measures td')].some(td => td.textContent === '\u2026')")
        _, *rows = table_of(page)
        maximum = numbers.part(0, 600, 0, 600).max(1).mean()
        assert abs(float(rows[1][1]) - maximum) <= 6e-4, (rows, maximum)
        names = page.run("return performance.getEntriesByType('resource').map(entry => entry.name)")
        assert names and all(name.startswith(address) for name in names), names
        said = [line for line in page.driver.get_log("browser") if "favicon" not in line["message"]]
        assert not [line for line in said if "willReadFrequently" not in line["message"]], said


def check_refusals(port):
    def ask(path, method="GET", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.putrequest(method, path, skip_host="host" in headers)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read()

    row = "/row?layer=0&head=0&query=3"
    assert ask(row)[0] == 200 and len(ask(row)[1]) == 2400
    assert ask(row, host="attacker.example")[0] == ask(row, host=f"attacker.example:{port}")[0] == 403
    assert ask("/", sec_fetch_site="cross-site")[0] == 403
    assert ask(row, host=f"localhost:{port}")[0] == 200
    assert ask("/row?layer=0&head=0&query=600") == (400, b"[ServedPage::answer] /row: query is 600, must be from 0 "
                                                         b"to 599\n")
    for path in ("/row", "/none?layer=0&head=0", "/../etc/passwd", row + "&query=4", row + "%00", row + "&a=b"):
        assert ask(path)[0] >= 400, path
    assert ask(row, method="DELETE")[0] >= 400
