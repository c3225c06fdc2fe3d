// ------------------------------------------------------------------------------------------------------------ measures
// The table of heads, sorted by any of its columns. A page names its columns and gives each head as many numbers.

const SHORT = { maximum: 'max', previous: 'prev', separator: 'sep', separators: 'sep', punctuation: 'punct',
                uniform: 'unif', relative: 'rel', distance: 'dist', confidence: 'conf', positional: 'posit',
                duplicate: 'dup', induction: 'induct' };
const shortName = name => name.split('_').map(part => SHORT[part] ?? part).join(' ');

const table = { column: -1, falling: true, rows: [] };  // column -1: by layer and head

function tableRows() {
  const rows = [];
  layers.forEach((layer, l) => layer.heads.forEach((head, h) => {
    if (head.name !== 'mean') rows.push({ l, h, layer, head });
  }));
  return rows;
}

/** The request of a page with a server. */
function askMeasures() {
  const { measures } = kinds[data.kind];
  for (const { layer, head } of measures ? table.rows : []) {
    if (head.measures) continue;
    head.measures = [];
    measures(layer, head).then(numbers => {
      head.measures = Array.from(numbers ?? [], number => (Number.isFinite(number) ? number : null));
      drawTable();
    }, () => {});
  }
}

function sortBy(column) {
  table.falling = table.column === column ? !table.falling : true;
  table.column = column;
  drawTable();
}

function sortedRows() {
  const { column, falling } = table;
  if (column < 0) return falling ? table.rows : [...table.rows].reverse();
  const value = ({ head }) => head.measures?.[column] ?? null;
  return [...table.rows].sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === null || y === null) return (x === null) - (y === null);  // what is not known comes last
    return falling ? y - x : x - y;
  });
}

function drawTable() {
  if (byId('table').hidden) return;
  if (table.rows.length === 0) table.rows = tableRows();
  askMeasures();
  const heading = (name, column, meaning) => {
    const button = element('button', '', name);
    button.addEventListener('click', () => sortBy(column));
    const cell = element('th', '', button);
    cell.title = meaning;
    const falls = table.falling !== (column < 0);  // by layer and head they rise first
    const sorted = table.column === column ? (falls ? 'descending' : 'ascending') : 'none';
    cell.setAttribute('aria-sort', sorted);
    return cell;
  };
  const measures = data.measures.map(({ name, meaning }, column) =>
    heading(visible(shortName(name), 30), column, visible(`${name}: ${meaning}`, 240)));
  const ends = data.measures.map((_, column) =>
    table.rows.reduce((most, { head }) => Math.max(most, Math.abs(head.measures?.[column] ?? 0)), 1e-30));
  const rows = sortedRows().map(({ l, h, head }) => {
    const open = element('button', '', headName(l, h));
    open.addEventListener('click', () => change({ layer: l, head: h }));
    const numbers = data.measures.map((_, column) => {
      const number = head.measures?.[column];
      const text = number === undefined ? '\u2026' : number === null ? '\u2013' : shortNumber(number);
      const cell = element('td', 'digits', text);
      const share = Math.round(100 * Math.abs(number ?? 0) / ends[column]);
      cell.style.background = `color-mix(in srgb, var(--shade) ${share}%, transparent)`;
      return cell;
    });
    const row = element('tr', '', element('td', '', open), ...numbers);
    row.setAttribute('aria-current', l === state.layer && h === state.head);
    return row;
  });
  const head = element('tr', '', heading('head', -1, 'by layer and head'), ...measures);
  byId('measures').replaceChildren(element('thead', '', head), element('tbody', '', ...rows));
  showSideways();
}

const shortNumber = number => (Number.isInteger(number) ? String(number)
  : Math.abs(number) < 100 ? number.toFixed(3) : number.toFixed(1));

/** Says that there are more columns on the right, until the last one is in sight. */
function showSideways() {
  const box = byId('scrolled'), isMore = box.scrollLeft + box.clientWidth < box.scrollWidth - 1;
  box.classList.toggle('cut', isMore);
  byId('sideways').classList.toggle('gone', !isMore);
}
byId('scrolled').addEventListener('scroll', showSideways);

function tableText() {
  const quoted = text => `"${text.replaceAll('"', '""')}"`;
  const lines = [['layer', 'head', ...data.measures.map(({ name }) => name)].map(quoted).join(',')];
  for (const { layer, head } of sortedRows())
    lines.push([layer.index, head.name, ...(head.measures ?? []).map(number => number ?? '')].join(','));
  return lines.join('\n') + '\n';
}
