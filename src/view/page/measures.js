// ------------------------------------------------------------------------------------------------------------ measures
// The table of heads, sorted by any of its columns. A page names its columns and gives each head as many numbers.

const table = { column: -1, falling: true, rows: [] };  // column -1: by layer and head

function tableRows() {
  const rows = [];
  layers.forEach((layer, l) => layer.heads.forEach((head, h) => {
    if (head.name !== 'mean') rows.push({ l, h, layer, head });
  }));
  return rows;
}

/** What a served page has to ask for. */
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
    heading(visible(name, 30), column, visible(meaning, 200)));
  const rows = sortedRows().map(({ l, h, head }) => {
    const open = element('button', '', headName(l, h));
    open.addEventListener('click', () => change({ layer: l, head: h }));
    const numbers = data.measures.map((_, column) => {
      const number = head.measures?.[column];
      return element('td', 'digits', number === undefined ? '\u2026' : number === null ? '\u2013' : number.toFixed(4));
    });
    const row = element('tr', '', element('td', '', open), ...numbers);
    row.setAttribute('aria-current', l === state.layer && h === state.head);
    return row;
  });
  const head = element('tr', '', heading('head', -1, 'by layer and head'), ...measures);
  byId('measures').replaceChildren(element('thead', '', head), element('tbody', '', ...rows));
}

function tableText() {
  const quoted = text => `"${text.replaceAll('"', '""')}"`;
  const lines = [['layer', 'head', ...data.measures.map(({ name }) => name)].map(quoted).join(',')];
  for (const { layer, head } of sortedRows())
    lines.push([layer.index, head.name, ...(head.measures ?? []).map(number => number ?? '')].join(','));
  return lines.join('\n') + '\n';
}
