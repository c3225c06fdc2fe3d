// ------------------------------------------------------------------------------------------------------------- neurons
// Why a weight is what it is: the chosen token's vector, and below it, element under element, the vectors of those that
// it has most to do with and their products. Blue is below zero, orange above: colours that everybody can tell apart.

const STRIP = 11;         // CSS pixels of a strip's height
const THINNEST = 4;       // of an element's width; where the window is narrower, the strips scroll
const BESIDE = { left: 118, right: 118 };  // a token on the left; score and weight on the right

const signed = { below: [33, 102, 172], above: [217, 95, 2] };
function signedColour(value, largest) {
  const strength = Math.min(Math.abs(value) / largest, 1);
  const [red, green, blue] = value < 0 ? signed.below : signed.above;
  return `rgb(${red} ${green} ${blue} / ${strength.toFixed(3)})`;
}

function drawNeurons() {
  const { axis, token } = state, line = shown.source.line(axis, token), note = byId('neurons-note');
  const pairs = line ? ranked(line, RANKED).best.map(t => (axis === 'query' ? [token, t] : [t, token])) : [];
  const vectors = pairs.map(([query, key]) => shown.source.vectors(query, key));
  byId('neurons').hidden = vectors.length === 0 || vectors.some(both => !both);
  if (vectors.includes(undefined)) {
    note.textContent = current().name === 'mean' ? 'A mean of heads has no queries and keys: choose a head.'
      : 'This page is of a long text and holds no queries and keys: attn see --serve shows them.';
  } else {
    note.textContent = pairs.length === 0 ? 'No weight is above zero.' : vectors.includes(null) ? ''
      : `Of each ${across[axis]} two strips: its vector, an element a cell, and the vector times that of the ${axis} ` +
        `on top. The products' sum times ${vectors[0].scale.toPrecision(4)} is the score, before masks and biases. ` +
        'Blue is below zero, orange above.';
  }
  if (!byId('neurons').hidden) drawStrips(line, pairs, vectors);
}

/** `vectors`: { q, k, scale } of each pair. */
function drawStrips(line, pairs, vectors) {
  const { axis, token } = state, far = across[axis], [own, other] = axis === 'query' ? ['q', 'k'] : ['k', 'q'];
  const D = vectors[0].q.length, around = BESIDE.left + BESIDE.right;
  const cell = Math.max((byId('neurons-view').clientWidth - 4 - around) / D, THINNEST);
  const right = BESIDE.left + D * cell;
  const high = 2 * STRIP + 9, context = fit(byId('neurons'), Math.ceil(right + BESIDE.right), 54 + pairs.length * high);
  const products = vectors.map(({ q, k }) => Float64Array.from(q, (value, d) => value * k[d]));
  const most = list => list.reduce((largest, value) => Math.max(largest, Math.abs(value)), 1e-30);
  const largest = { own: most(vectors[0][own]), other: Math.max(...vectors.map(both => most(both[other]))),
                    product: Math.max(...products.map(most)) };
  const strip = (values, y, scale) => values.forEach((value, d) => {
    context.fillStyle = signedColour(value, scale);
    context.fillRect(BESIDE.left + d * cell, y, cell - (cell >= 6 ? 1 : 0.5), STRIP);
  });
  const write = (text, x, y, room, font = FONT, colour = '--ink') => {
    context.font = font;
    context.fillStyle = themeColour(colour);
    context.fillText(text, x, y, room);
  };
  const small = '11px system-ui, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif';
  write(`${axis} ${token}`, 2, 8, BESIDE.left - 10, small, '--muted');
  write(word(axis, token), 2, 24, BESIDE.left - 10, 'bold ' + FONT, '--accent');
  strip(vectors[0][own], 18, largest.own);
  write(far === 'key' ? 'keys' : 'queries', 2, 44, BESIDE.left - 10, small, '--muted');
  write('score', right + 10, 44, 50, small, '--muted');
  write('weight', right + 66, 44, 50, small, '--muted');
  pairs.forEach((pair, row) => {
    const y = 54 + row * high, t = pair[far === 'key' ? 1 : 0];
    strip(vectors[row][other], y, largest.other);
    strip(products[row], y + STRIP + 1, largest.product);
    write(`${t} ${word(far, t)}`, 2, y + STRIP, BESIDE.left - 10);
    const score = products[row].reduce((sum, value) => sum + value, 0) * vectors[row].scale;
    write(score.toPrecision(4), right + 10, y + STRIP, 52);
    write(line[t].toPrecision(3), right + 66, y + STRIP, 50);
  });
}
