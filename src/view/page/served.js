// ------------------------------------------------------------------------------------------------------ with a server
// The heads of a page that asks the program it came from: everything at full resolution. This part alone asks.

const asked = [];  // questions that wait, the most wanted first
let asking = false;

/** Puts a question; urgent ones go before others. Resolves to a Float32Array, or to null if it was not put in the end:
 *  of urgent windows of one head, which follow one another as the reader moves, the last one counts. */
function ask(path, fields, urgent = false, head = null) {
  return new Promise((resolve, reject) => {
    const question = { path, fields, urgent, head, resolve, reject };
    if (urgent && path === 'window') {
      const late = asked.findIndex(other => other.urgent && other.path === path &&
                                   (other.head === head || other.head?.isLeft));
      if (late >= 0) asked.splice(late, 1)[0].resolve(null);
    }
    if (urgent) asked.unshift(question);
    else asked.push(question);
    askNext();
  });
}

/** One question at a time: the program computes each with all processors. */
async function askNext() {
  if (asking || asked.length === 0) return;
  asking = true;
  const { path, fields, resolve, reject } = asked.shift();
  try {
    const answer = await fetch(`${path}?${new URLSearchParams(fields)}`);
    if (!answer.ok) throw new Error(await answer.text());
    resolve(new Float32Array(await answer.arrayBuffer()));
  } catch (error) {
    say(`The program does not answer: ${visible(String(error.message), 200)}`);
    reject(error);
  }
  asking = false;
  askNext();
}

const MOST_KEPT = 64;  // answers that a head remembers

class ServedHead {
  constructor(layer, head, arrived) {
    this.place = { layer: layer.index, head: head.name };
    this.scale = layer.scale;
    this.arrived = arrived;
    this.answers = new Map();  // a question's text -> its answer, null while it is on its way
    this.waiting = 0;
    this.done = 1;
  }

  get ready() {
    return true;
  }

  get busy() {
    return this.waiting > 0;
  }

  /** The answer, null while it is on its way. */
  get(path, fields) {
    const text = path + JSON.stringify(fields);
    if (this.answers.has(text)) return this.answers.get(text);
    if (this.answers.size >= MOST_KEPT) this.answers.delete(this.answers.keys().next().value);
    this.answers.set(text, null);
    ++this.waiting;
    ask(path, { ...this.place, ...fields }, true, this).then(answer => {
      if (answer) this.answers.set(text, answer);
      else this.answers.delete(text);
    }, () => {}).then(() => {
      --this.waiting;
      this.arrived();
    });
    return null;
  }

  picture({ query, key, spans }, rows, columns) {
    return this.get('window', { query, queries: spans.query, key, keys: spans.key, rows, columns });
  }

  line(axis, t) {
    return axis === 'query' ? this.get('row', { query: t }) : this.get('column', { key: t });
  }

  largest() {
    return null;
  }

  unknown() {
    return 'not known yet';
  }

  note({ spans }, rows, columns) {
    if (rows === spans.query && columns === spans.key) return '';
    const group = (span, bands) => Math.ceil(span / bands);
    return `A pixel shows the largest of ${group(spans.query, rows)} \u00d7 ${group(spans.key, columns)} weights.`;
  }

  numbers(axis, t) {
    const line = this.line(axis, t);
    return line ? numbersOf(axis, line) : [];
  }

  vectors(query, key) {
    const both = this.get('vectors', { query, key, keys: 1 });
    if (!both) return null;
    const width = both.length / 2;
    return { q: both.subarray(0, width), k: both.subarray(width), scale: this.scale };
  }
}

const TIE = 1e-5;  // what rounding makes of a weight that has two digits

/** The end of a linear scale for rows with these largest weights, as the library chooses it. */
function endOf(peaks) {
  const seen = peaks.filter(peak => peak > 0).sort((a, b) => a - b);
  if (seen.length === 0) return { end: 1, ends: '1' };
  const largest = seen.at(-1), wanted = Math.min(largest, 2 * seen[Math.floor(seen.length / 2)]);
  const digit = 10 ** (Math.floor(Math.log10(wanted)) - 1);
  const end = Math.min(Number((Math.ceil(wanted / digit * (1 - TIE)) * digit).toPrecision(2)), 1);
  return { end, ends: String(end) + (end < 1 && largest > end * (1 + TIE) ? '+' : '') };
}

const allPeaks = [];

/** A thumbnail is asked for and drawn once it is there. */
function askThumbnail(layer, head, arrived) {
  const [rows, columns] = data.thumbnail;
  const part = { query: 0, queries: count.query, key: 0, keys: count.key, rows, columns };
  ask('window', { layer: layer.index, head: head.name, ...part }).then(cells => {
    const peaks = Array.from({ length: rows }, (_, r) => Math.max(...cells.subarray(r * columns, (r + 1) * columns)));
    allPeaks.push(...peaks);
    Object.assign(head, endOf(peaks));
    Object.assign(data, endOf(allPeaks));
    arrived(cells);
  }, () => {});
  return new Float32Array(rows * columns);
}

kinds.served = {
  Head: ServedHead,
  mostHeads: 64,
  thumbnail: (head, layer, arrived) => askThumbnail(layer, head, arrived),
  measures: (layer, head) => ask('measures', { layer: layer.index, head: head.name }, true),
  precision: () => 'Weights are computed by the program that serves this page, as they are looked at',
};
