// ------------------------------------------------------------------------------------------------------ text and nodes
// Text from outside reaches the page as text content and canvas text alone.

const byId = id => document.getElementById(id);
const data = JSON.parse(byId('data').textContent);
const n = data.tokens.length;
const layers = data.layers;
const inside = (value, count) => Number.isInteger(value) && value >= 0 && value < count;

/** The text with a visible sign for what would not show or would change how the rest shows; cut to a length. */
function visible(text, limit) {
  const points = Array.from(text.slice(0, 2 * limit + 2));
  const shown = points.slice(0, limit).join('').replace(/[\p{C}\p{Zl}\p{Zp}]|[^\S ]/gu, sign => {
    const code = sign.codePointAt(0);
    if (code < 32) return String.fromCharCode(0x2400 + code);
    return '<U+' + code.toString(16).toUpperCase().padStart(4, '0') + '>';
  });
  const edged = shown.replace(/^ +| +$/g, spaces => '\u2423'.repeat(spaces.length));
  return points.length > limit ? edged + '\u2026' : edged;
}

const words = data.tokens.map(token => visible(token, 14));
const axisWords = data.tokens.map((token, t) => (n > 16 ? `${t} ${visible(token, 8)}` : words[t]));
const longWords = data.tokens.map(token => visible(token, 200));  // where there is room

function element(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children);  // strings become text nodes
  return node;
}

/** Layer and head as places in `layers`. */
function headName(l, h) {
  const { name } = layers[l].heads[h];
  return `${visible(layers[l].name, 60)}, ${name === 'mean' ? 'mean of heads' : 'head ' + name}`;
}

