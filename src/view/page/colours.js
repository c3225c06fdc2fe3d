// ------------------------------------------------------------------------------------------------------------- colours

const dark = matchMedia('(prefers-color-scheme: dark)');
let palette;  // [256][3]

function choosePalette() {
  const hex = dark.matches ? data.dark : data.light;
  palette = Array.from({ length: 256 }, (_, i) => [0, 2, 4].map(at => parseInt(hex.substr(6 * i + at, 2), 16)));
}

/** The linear scale ends where the open head's does, or where that of all heads does. */
const range = () => (isOpen() ? current() : data);

/** Where a weight stands on the scale: 0 to 255. */
function place(weight) {
  const position = state.scale === 'linear' ? weight / range().end : weight > 0 ? 1 + Math.log10(weight) / 4 : 0;
  return Math.round(255 * Math.min(1, Math.max(0, position)));
}

const css = ([red, green, blue]) => `rgb(${red} ${green} ${blue})`;
const ground = weight => css(palette[place(weight)]);
function ink(weight) {
  const [red, green, blue] = palette[place(weight)];
  return 299 * red + 587 * green + 114 * blue > 140000 ? '#14161b' : '#ffffff';
}
const themeColour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** One pixel a weight of a square matrix. */
function paint(canvas, weights) {
  const side = Math.sqrt(weights.length);
  canvas.width = canvas.height = side;
  const image = new ImageData(side, side);
  const pixels = new Uint32Array(image.data.buffer);
  const packed = Uint32Array.from(palette, ([red, green, blue]) => (255 << 24 | blue << 16 | green << 8 | red) >>> 0);
  for (let i = 0; i < pixels.length; ++i) pixels[i] = packed[place(weights[i])];
  canvas.getContext('2d').putImageData(image, 0, 0);
}

/** The scale in the head of the page. */
function drawLegend() {
  const legend = byId('legend').getContext('2d');
  for (let i = 0; i < 256; ++i) {
    legend.fillStyle = css(palette[i]);
    legend.fillRect(i, 0, 1, 1);
  }
  const { end, ends } = range();
  const middle = String(Number((end / 2).toPrecision(3)));
  const ticks = state.scale === 'linear' ? ['0', middle, ends] : ['\u22640.0001', '0.001', '0.01', '0.1', '1'];
  byId('ticks').replaceChildren(...ticks.map(tick => element('span', '', tick)));
}

