"""A page of attention in a real browser, and what it shows read from there."""

import itertools
import os
import time

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By

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
        self.driver.set_script_timeout(300)  # machines that do other things, too
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

    def wait_for(self, script, seconds=60):
        end = time.monotonic() + seconds
        while not self.run(script):
            assert time.monotonic() < end, f"never: {script}"
            time.sleep(0.05)

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


def pixels(page, points):
    """What the screen shows at these points of the window: [red, green, blue] each."""
    return page.driver.execute_async_script("""
        const [image, points, done] = arguments, bytes = Uint8Array.from(atob(image), sign => sign.charCodeAt(0));
        createImageBitmap(new Blob([bytes], { type: 'image/png' })).then(bitmap => {
          const canvas = document.createElement('canvas'), { width, height } = Object.assign(canvas, {
            width: bitmap.width, height: bitmap.height });
          const context = canvas.getContext('2d');
          context.drawImage(bitmap, 0, 0);
          const { data } = context.getImageData(0, 0, width, height);
          const first = ([x, y]) => 4 * (Math.floor(y) * width + Math.floor(x));
          done(points.map(point => [...data.slice(first(point), first(point) + 3)]));
        });""", page.driver.get_screenshot_as_base64(), points)


def separate(a, b):
    """True if a line parts two convex shapes."""
    for shape in (a, b):
        for (x, y), (u, v) in zip(shape, shape[1:] + shape[:1]):
            normal = (v - y, x - u)
            project = lambda points: [p[0] * normal[0] + p[1] * normal[1] for p in points]
            if max(project(a)) <= min(project(b)) or max(project(b)) <= min(project(a)):
                return True
    return False


def check_labels(drawn, least, name):
    labels = drawn["labels"]
    assert len(labels) >= least, f"{name}: only {len(labels)} labels"
    for label in labels:
        inside = all(-1 <= x <= drawn["width"] + 1 and -1 <= y <= drawn["height"] + 1 for x, y in label["corners"])
        assert inside, f"{name}: {label} leaves {drawn['width']} x {drawn['height']}"
    for a, b in itertools.combinations(labels, 2):
        assert separate(a["corners"], b["corners"]), f"{name}: {a} touches {b}"


def square_of(page):
    """Left, top, right and bottom of the drawn square in the map."""
    return page.run("""
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


def colours_of(page, parts):
    """Colours at parts of the drawn square, whose corners are where the frame is."""
    left, top, right, bottom = square_of(page)
    points = [(left + x * (right - left), top + y * (bottom - top)) for x, y in parts]
    return page.run(READ_SCALE) | {"points": page.run(READ_COLOURS, points)}
