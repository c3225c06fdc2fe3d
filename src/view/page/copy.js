// ---------------------------------------------------------------------------------------------------------------- copy
// The part in sight as PNG, SVG or CSV: to the clipboard, or where the browser does not allow that, as a file.

const SHARP = 12;  // CSS pixels of a cell that SVG draws as a shape of its own; smaller ones are an image

function say(text) {
  byId('said').textContent = text;
}

async function hand(name, blob) {
  try {
    if (blob.type === 'image/png') await navigator.clipboard.write([new ClipboardItem({ [blob.type]: blob })]);
    else await navigator.clipboard.writeText(await blob.text());
    say(`${name} copied`);
  } catch {
    const link = element('a');
    link.download = `attention.${name.toLowerCase()}`;
    link.href = URL.createObjectURL(blob);
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    say(`${name} saved as a file`);
  }
}

/** What is to be seen, on the page's ground. */
function copyPng() {
  const from = [byId('map'), byId('lines'), byId('neurons')].find(canvas => canvas.offsetParent);
  const canvas = element('canvas'), context = canvas.getContext('2d');
  canvas.width = from.width;
  canvas.height = from.height;
  context.fillStyle = themeColour('--ground');
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(from, 0, 0);
  canvas.toBlob(blob => hand('PNG', blob));
}

function svgText() {
  const space = byId('svg').namespaceURI, { left, top, cell, side, bands, width, height, cells, scale } = plot;
  const make = (parent, name, fields, text) => {
    const node = document.createElementNS(space, name);
    for (const [field, value] of Object.entries(fields)) node.setAttribute(field, value);
    if (text !== undefined) node.textContent = text;
    parent.append(node);
    return node;
  };
  const svg = make(document.createDocumentFragment(), 'svg', { width, height, viewBox: `0 0 ${width} ${height}` });
  make(svg, 'rect', { width, height, fill: themeColour('--ground') });
  if (Math.min(cell.query, cell.key) >= SHARP) {
    cells.forEach((weight, i) => {
      if (!(weight > 0)) return;
      const x = left + i % bands.key * cell.key, y = top + Math.floor(i / bands.key) * cell.query;
      make(svg, 'rect', { x, y, width: cell.key, height: cell.query, fill: ground(weight, scale) });
    });
  } else {
    const small = element('canvas');
    paint(small, cells, bands.query, bands.key, scale);
    make(svg, 'image', { x: left, y: top, width: side.key, height: side.query, preserveAspectRatio: 'none',
                         'image-rendering': 'pixelated', href: small.toDataURL() });
  }
  make(svg, 'rect', { x: left, y: top, width: side.key, height: side.query, fill: 'none',
                      stroke: themeColour('--line') });
  for (const axis of ['query', 'key']) {
    const { list, chosen } = labelled(axis), isQuery = axis === 'query';
    for (const t of chosen === null ? list : [...list, chosen]) {
      const middle = along(axis, t) + cell[axis] / 2, x = isQuery ? left - 10 : left + middle + 2;
      const y = isQuery ? top + middle : top - 8;
      make(svg, 'text', { x, y, 'font-size': 12, 'font-family': 'sans-serif', fill: themeColour('--muted'),
                          'dominant-baseline': 'central', 'text-anchor': isQuery ? 'end' : 'start',
                          ...(isQuery ? {} : { transform: `rotate(-45 ${x} ${y})` }) }, axisWord(axis, t));
    }
  }
  return new XMLSerializer().serializeToString(svg) + '\n';
}

/** A row a query. Names begin with the token's number, so that no program takes one for a formula. */
function csvText() {
  const { bands, cells } = plot, quoted = text => `"${text.replaceAll('"', '""')}"`;
  const names = axis => Array.from({ length: bands[axis] }, (_, band) => {
    const [first, end] = bandOf(band, bands[axis], sight.spans[axis]), t = sight[axis] + first;
    return quoted(end - first > 1 ? `${t}\u2013${sight[axis] + end - 1}` : `${t} ${longWord(axis, t)}`);
  });
  const lines = [['"query \\ key"', ...names('key')].join(',')];
  names('query').forEach((name, row) => {
    const weights = cells.subarray(row * bands.key, (row + 1) * bands.key);
    lines.push([name, ...Array.from(weights, weight => (Number.isNaN(weight) ? '' : digits(weight)))].join(','));
  });
  return lines.join('\n') + '\n';
}

byId('png').addEventListener('click', copyPng);
byId('svg-copy').addEventListener('click', () => hand('SVG', new Blob([svgText()], { type: 'image/svg+xml' })));
byId('csv').addEventListener('click', () => hand('CSV', new Blob([csvText()], { type: 'text/csv' })));
byId('table-csv').addEventListener('click', () => hand('CSV', new Blob([tableText()], { type: 'text/csv' })));
