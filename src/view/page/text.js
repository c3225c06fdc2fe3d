// ------------------------------------------------------------------------------------------------------ text and nodes
// Text from outside reaches the page as text content and canvas text alone.

const byId = id => document.getElementById(id);
const data = JSON.parse(byId('data').textContent);
const layers = data.layers;
const ownText = !data.key_tokens;  // queries and keys are the same tokens

/** Bytes that form a character read as it: of "<0xE6>", "<0x97>", "<0xA5>" each is a part of one, 1/3, 2/3, 3/3.
 *  `joined` has the same texts as they follow one another. */
function readable(texts) {
  const shown = [...texts], joined = [...texts], decoder = new TextDecoder('utf-8', { fatal: true });
  const isByte = text => /^((<0x[\dA-F]{2}>)+|(0x[89A-F][\dA-F])+)$/.test(text ?? '');
  const decoded = part => {
    try {
      return decoder.decode(Uint8Array.from(part.join('').match(/0x../g), Number));
    } catch {
      return null;
    }
  };
  for (let t = 0; t < texts.length; ++t) {
    for (let length = 1; length <= 4 && isByte(texts[t + length - 1]); ++length) {
      const text = decoded(texts.slice(t, t + length));
      if (text === null) continue;
      for (let part = 0; part < length; ++part) {
        shown[t + part] = length > 1 ? `${text} ${part + 1}/${length}` : text;
        joined[t + part] = part ? '' : text;
      }
      t += length - 1;
      break;
    }
  }
  return { shown, joined };
}

const texts = { query: readable(data.tokens) };
texts.key = ownText ? texts.query : readable(data.key_tokens);
const tokens = { query: texts.query.shown, key: texts.key.shown };
const count = { query: tokens.query.length, key: tokens.key.length };
const across = { query: 'key', key: 'query' };
const inside = (value, limit) => Number.isInteger(value) && value >= 0 && value < limit;

/** The text with a visible sign for what would not show or would change how the rest shows; cut to a length. */
function visible(text, limit) {
  const points = Array.from(text.slice(0, 2 * limit + 2));
  const shown = points.slice(0, limit).join('').replace(/[\p{C}\p{Zl}\p{Zp}]|[^\S ]/gu, sign => {
    const code = sign.codePointAt(0);
    if (code === 10) return '\u21b5';
    if (code < 32) return String.fromCharCode(0x2400 + code);
    return '<U+' + code.toString(16).toUpperCase().padStart(4, '0') + '>';
  });
  const edged = shown.replace(/^ +| +$/g, spaces => '\u2423'.repeat(spaces.length));
  return points.length > limit ? edged + '\u2026' : edged;
}

const word = (axis, t) => visible(tokens[axis][t], 14);
const axisWord = (axis, t) => (count[axis] > 16 ? `${t} ${visible(tokens[axis][t], 8)}` : word(axis, t));
const longWord = (axis, t) => visible(tokens[axis][t], 200);  // where there is room

const SPACE = /[\u2423\u2581\u0120]/g;  // how tokenizers write the space that belongs to a token

/** How a text begins, as it reads: tokens have their spaces, or say that they go on with a word (##), or are words. */
function beginning(axis) {
  const list = texts[axis].joined.slice(0, 400).map(text => text.replace(SPACE, ' '));
  const spaced = list.some(text => /^\s/.test(text));
  const apart = part => (part.startsWith('##') ? part.slice(2) : ' ' + part);
  const text = list.map((part, t) => (t === 0 || spaced || part === '' ? part : apart(part)));
  return visible(text.join('').replace(/\s+/g, ' ').trim(), 2400) + (count[axis] > 400 ? ' \u2026' : '');
}

/** The last token that says something: no mark, as [SEP], and no punctuation. */
function lastWord(axis) {
  const at = tokens[axis].findLastIndex(text => /[\p{L}\p{N}]/u.test(text) && !/^(\[.*\]|<.*>)$/s.test(text));
  return at < 0 ? count[axis] - 1 : at;
}

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

const plural = (number, thing) => `${number} ${thing}${number === 1 ? '' : 's'}`;
/** Five digits: how finely weights are known at best. */
const digits = weight => (weight === 0 ? '0' : weight.toPrecision(5));

// What an open head is to the page. Every kind of page has a class of its own, which it puts here:
//
//   new Head(layer, head, arrived)     arrived() is called whenever there is more to draw
//   ready, busy, done                  is there anything to draw; is more on its way; the part that is computed
//   picture(part, rows, columns)       Float32Array [rows, columns]: the largest weights of a part { query, key,
//                                      spans: { query, key } } in so many bands; NaN = not known; null = not yet
//   isMean?.(part, rows, columns)      true where that has mean weights, on the reader's wish
//   outlined?                          parts that have all their weights, where others have not
//   line(axis, token)                  Float32Array: the weights of a query, or of a key; NaN, null: as above
//   unknown?.(cell)                    what can be said of the weight of one that is not known
//   largest(part, weight)              { query, key, weight } of the largest in a part whose picture has that weight,
//                                      null if it is not known which it is
//   note(part, rows, columns)          what a picture shows
//   numbers(axis, token)               what is known of a row or a column beside its weights, as texts
//   vectors(query, key)                { q, k, scale }, null = not yet; undefined = never
//
// isLeft is set of one that is not wanted any more. Beside Head a kind has mostHeads, how many may be there at once.
const kinds = {};

/** Band `band` of `bands` of a span of tokens: its first token and the first after it. */
const bandOf = (band, bands, span) => [Math.ceil(band * span / bands), Math.ceil((band + 1) * span / bands)];

/** What can be said of a row or a column whose weights are all known. */
function numbersOf(axis, line) {
  let sum = 0, entropy = 0;
  for (const weight of line) {
    sum += weight;
    if (weight > 0) entropy -= weight * Math.log(weight);
  }
  return axis === 'query' ? [`entropy ${entropy.toPrecision(3)} nats`] : [`receives ${sum.toPrecision(3)} in all`];
}
