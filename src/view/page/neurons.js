// ------------------------------------------------------------------------------------------------------------- neurons
// Why a weight is what it is: query, key and their product, element by element, for the chosen token and those that it
// has most to do with. Blue is below zero, orange above: colours that everybody can tell apart.

const STRIP = 18;  // CSS pixels of a row

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
      : 'A strip has an element of the vector a cell: query, key, and their product, whose sum times ' +
        `${vectors[0].scale.toPrecision(4)} is the score, before masks and biases. Blue is below zero, orange above.`;
  }
  if (byId('neurons').hidden) return;
  const width = Math.max(Math.min(byId('neurons').parentElement.clientWidth - 8, 1100), 480);
  const columns = { token: 4, query: 120, key: 0, product: 0, score: width - 120, weight: width - 54 };
  const strip = (columns.score - columns.query - 30) / 3;
  columns.key = columns.query + strip + 8;
  columns.product = columns.key + strip + 8;
  const context = fit(byId('neurons'), width, 26 + pairs.length * (STRIP + 6));
  context.font = '11px system-ui, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif';
  context.fillStyle = themeColour('--muted');
  for (const [name, x] of Object.entries({ ...columns, token: columns.token }))
    context.fillText(name === 'token' ? across[axis] : name === 'product' ? 'query \u00d7 key' : name, x, 10);
  const most = list => list.reduce((largest, value) => Math.max(largest, Math.abs(value)), 1e-30);
  const products = vectors.map(({ q, k }) => Float64Array.from(q, (value, d) => value * k[d]));
  const largest = { query: most(vectors.flatMap(({ q }) => [...q])), key: most(vectors.flatMap(({ k }) => [...k])),
                    product: most(products.flatMap(product => [...product])) };
  pairs.forEach(([query, key], row) => {
    const y = 24 + row * (STRIP + 6), far = axis === 'query' ? key : query;
    const draw = (values, name) => values.forEach((value, d) => {
      const x = columns[name] + d * strip / values.length;
      context.fillStyle = signedColour(value, largest[name]);
      context.fillRect(x, y, Math.max(strip / values.length - (strip / values.length > 4 ? 1 : 0), 0.5), STRIP);
    });
    draw(vectors[row].q, 'query');
    draw(vectors[row].k, 'key');
    draw(products[row], 'product');
    context.fillStyle = themeColour('--ink');
    context.font = FONT;
    context.fillText(`${far} ${word(across[axis], far)}`, columns.token, y + STRIP / 2, 108);
    const score = products[row].reduce((sum, value) => sum + value, 0) * vectors[row].scale;
    context.fillText(score.toPrecision(4), columns.score, y + STRIP / 2, 60);
    context.fillText(line[far].toPrecision(3), columns.weight, y + STRIP / 2, 50);
  });
}
