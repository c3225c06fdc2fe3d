// ------------------------------------------------------------------------------------------------------------- colours

const dark = matchMedia('(prefers-color-scheme: dark)');
let palette;  // [256][3]

/** The page's own choice of light or dark goes before the system's. */
function choosePalette() {
  document.documentElement.dataset.theme = state.theme;
  const hex = (state.theme === 'auto' ? dark.matches : state.theme === 'dark') ? data.dark : data.light;
  palette = Array.from({ length: 256 }, (_, i) => [0, 2, 4].map(at => parseInt(hex.substr(6 * i + at, 2), 16)));
}

/** The linear scale ends where the open head's does, or where that of all heads does. */
const range = () => (isOpen() ? current() : data);

/** The logarithmic scale begins at 1e-4, for long texts lower: even weights must show. */
const decades = data.kind === 'exact' ? 4 : Math.max(4, Math.ceil(Math.log10(10 * count.key)));

/** The place of a weight on the scale, 0 to 1, and as a colour, 0 to 255. */
function position(weight, { end } = range()) {
  if (!(weight > 0)) return 0;
  return Math.min(1, Math.max(0, state.scale === 'linear' ? weight / end : 1 + Math.log10(weight) / decades));
}
const place = (weight, scale) => Math.round(255 * position(weight, scale));

const css = ([red, green, blue]) => `rgb(${red} ${green} ${blue})`;
const ground = (weight, scale) => css(palette[place(weight, scale)]);
function ink(weight, scale) {
  const [red, green, blue] = palette[place(weight, scale)];
  return 299 * red + 587 * green + 114 * blue > 140000 ? '#14161b' : '#ffffff';
}
const themeColour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** One pixel a weight of a matrix; none for a weight that is not known. */
function paint(canvas, weights, rows, columns, scale = range()) {
  canvas.width = columns;
  canvas.height = rows;
  const image = new ImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  const packed = Uint32Array.from(palette, ([red, green, blue]) => (255 << 24 | blue << 16 | green << 8 | red) >>> 0);
  for (let i = 0; i < pixels.length; ++i)
    if (!Number.isNaN(weights[i])) pixels[i] = packed[place(weights[i], scale)];
  canvas.getContext('2d').putImageData(image, 0, 0);
}

const HATCH = 6;  // CSS pixels from one line to the next

/** Marks unknown weights: slanted lines on the background. */
function hatch(context) {
  const tile = element('canvas'), ratio = devicePixelRatio || 1;
  const lines = fit(tile, HATCH, HATCH);
  lines.fillStyle = themeColour('--ground');
  lines.fillRect(0, 0, HATCH, HATCH);
  lines.strokeStyle = themeColour('--hatch');
  lines.lineWidth = 1.25;
  for (const shift of [-HATCH, 0, HATCH]) {
    lines.moveTo(shift - 1, HATCH + 1);
    lines.lineTo(shift + HATCH + 1, -1);
  }
  lines.stroke();
  const pattern = context.createPattern(tile, 'repeat');
  pattern.setTransform(new DOMMatrix().scale(1 / ratio));
  return pattern;
}

/** The scale in the head of the page: that of the heads, or, while they are looked at, that of mean weights. Each tick
 *  is below the colour of its weight. */
function drawLegend({ end, ends } = range()) {
  const legend = byId('legend').getContext('2d');
  for (let i = 0; i < 256; ++i) {
    legend.fillStyle = css(palette[i]);
    legend.fillRect(i, 0, 1, 1);
  }
  byId('ticks').replaceChildren(...ticksOf({ end, ends }).map(([weight, text]) => {
    const tick = element('span', '', text);
    tick.style.left = `${100 * (255 * position(weight, { end }) + 0.5) / 256}%`;
    return tick;
  }));
}

/** [weight, text] of what is written below the scale. */
function ticksOf({ end, ends }) {
  if (state.scale === 'linear') return [[0, '0'], [end / 2, String(Number((end / 2).toPrecision(3)))], [end, ends]];
  const power = n => (n < -3 ? `1e${n}` : String(Number((10 ** n).toPrecision(1))));
  return Array.from({ length: decades + 1 }, (_, i) =>
    [10 ** (i - decades), (i === 0 ? '\u2264' : '') + power(i - decades)]);
}
