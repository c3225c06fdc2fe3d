// ---------------------------------------------------------------------------------------------------------------- copy
// The part in sight as PNG, SVG or CSV: to the clipboard, or where the browser does not allow that, as a file.

const SHARP = 12;  // CSS pixels of a cell that SVG draws as a shape of its own; smaller ones are an image

const FRAME = 16;  // CSS pixels around a picture

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

/** What is to be seen, with its head, its scale and the text's title, on the page's ground: light or dark. */
function pictureOfView() {
  const from = [byId('map'), byId('lines'), byId('neurons')].find(canvas => canvas.offsetParent);
  const width = Math.max(from.offsetWidth, 460), canvas = element('canvas');
  const context = fit(canvas, width + 2 * FRAME, from.offsetHeight + 64 + 2 * FRAME);
  const write = (text, x, y, room, font, colour, align = 'left') => {
    context.font = font;
    context.fillStyle = themeColour(colour);
    context.textAlign = align;
    context.fillText(text, x, y, room);
  };
  context.fillStyle = themeColour('--ground');
  context.fillRect(0, 0, canvas.width, canvas.height);
  const { name, heads } = layers[state.layer], several = state.view === 'lines' && state.heads.length > 1;
  const head = several ? `${visible(name, 60)}, heads ${state.heads.map(h => heads[h].name).join(', ')}`
    : headName(state.layer, state.view === 'lines' ? drawnHeads()[0] : state.head);
  write(head, FRAME, FRAME + 8, width - 240, 'bold 15px ' + FONT.slice(5), '--ink');
  write(document.title, FRAME, FRAME + 30, width - 240, FONT, '--muted');
  write(byId('chosen').textContent, FRAME, FRAME + 48, width - 240, FONT, '--muted');
  const left = FRAME + width - 210, scale = state.view === 'matrix' ? plot.scale : range();
  context.drawImage(byId('legend'), left, FRAME + 4, 190, 10);
  for (const [weight, text] of ticksOf(scale))
    write(text, left + 190 * (255 * position(weight, scale) + 0.5) / 256, FRAME + 24, 50, FONT, '--muted', 'center');
  context.drawImage(from, FRAME, FRAME + 64, from.offsetWidth, from.offsetHeight);
  return canvas;
}

const copyPng = () => pictureOfView().toBlob(blob => hand('PNG', blob));

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
  make(svg, 'title', {}, `${document.title}: ${headName(state.layer, state.head)}`);
  if (cells.some(Number.isNaN)) {  // what is not known
    const hatched = element('canvas'), context = fit(hatched, side.key, side.query);
    context.fillStyle = hatch(context);
    context.fillRect(0, 0, side.key, side.query);
    make(svg, 'image', { x: left, y: top, width: side.key, height: side.query, href: hatched.toDataURL() });
  }
  if (Math.min(cell.query, cell.key) >= SHARP) {
    cells.forEach((weight, i) => {
      if (Number.isNaN(weight)) return;
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
