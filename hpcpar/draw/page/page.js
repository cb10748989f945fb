"use strict";
/* Unpacks the events (packed.py), draws what is in view into the figure (chart.py), and sorts tables.

   An event at least `cell` pixels wide is a bar of its own; narrower ones that begin in the same cell are one bar, drawn as the kind that lasts
   longest among them. The cell is one pixel, or as many as it takes to have no more than MOST bars. */

const MOST = 24000; // bars that are drawn at once
const NAMED = 600; // bars that bear their microbatch
const TYPES = { u1: Uint8Array, i2: Int16Array, i4: Int32Array, u4: Uint32Array, f8: Float64Array };
const read = (id) => JSON.parse(document.getElementById(id).textContent);

async function column(type, text) {
  const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const places = new Uint8Array(await new Response(stream).arrayBuffer());
  const width = TYPES[type].BYTES_PER_ELEMENT, rows = places.length / width, bytes = new Uint8Array(places.length);
  for (let place = 0; place < width; place++)
    for (let row = 0, at = place * rows; row < rows; row++) bytes[row * width + place] = places[at + row];
  return new TYPES[type](bytes.buffer);
}

async function unpack(packed) {
  const events = {};
  for (const [name, type, text] of packed.columns) events[name] = await column(type, text);
  const n = packed.rows, ms = packed.quantum / 1e6;
  events.left = new Float64Array(n);
  events.right = new Float64Array(n);
  events.reach = new Float64Array(n); // the last end up to here, in its track: where a search for what is in view begins
  for (const [, , first, count] of packed.tracks) {
    let at = 0, reach = 0;
    for (let i = first; i < first + count; i++) {
      at += events.start[i];
      events.left[i] = at * ms;
      events.right[i] = (at + events.duration[i]) * ms;
      events.reach[i] = reach = Math.max(reach, events.right[i]);
    }
  }
  return events;
}

function firstBeyond(values, low, high, x) { // the first of values[low..high), ascending, above x
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > x) high = middle; else low = middle + 1;
  }
  return low;
}

/* The bars in view: {rank, track, left, right, kind, event, count}; null where there would be more than MOST. */
function bars(events, tracks, view, cell) {
  const out = [], held = new Float64Array(256);
  for (const [rank, track, first, count] of tracks) {
    if (rank + 1 < view.top || rank > view.bottom) continue;
    const stop = first + count;
    let open = null, until = -Infinity;
    for (let i = firstBeyond(events.reach, first, stop, view.left); i < stop && events.left[i] < view.right; i++) {
      const left = events.left[i], right = events.right[i], wide = right - left;
      if (right < view.left) continue;
      if (wide >= cell) {
        out.push({ rank, track, left, right, kind: events.kind[i], event: i, count: events.count[i] });
      } else if (open && left < until) {
        open.right = Math.max(open.right, right);
        open.count += events.count[i];
        open.event = -1;
        held[events.kind[i]] += wide;
        if (held[events.kind[i]] > held[open.kind]) open.kind = events.kind[i];
      } else {
        held.fill(0);
        held[events.kind[i]] = wide;
        until = (Math.floor(left / cell) + 1) * cell;
        open = { rank, track, left, right, kind: events.kind[i], event: i, count: events.count[i] };
        out.push(open);
      }
    }
    if (out.length > MOST) return null;
  }
  return out;
}

function time(ms) {
  return ms >= 1000 ? `${(ms / 1000).toPrecision(6)} s` : ms >= 1 ? `${ms.toPrecision(5)} ms` : `${(ms * 1000).toPrecision(4)} µs`;
}

function size(bytes) {
  let at = 0;
  while (bytes >= 1024 && at < 4) { bytes /= 1024; at++; }
  return `${at ? bytes.toPrecision(4) : bytes} ${["B", "KiB", "MiB", "GiB", "TiB"][at]}`;
}

function described(events, names, bar) {
  const kind = names.kind[bar.kind], i = bar.event;
  const when = `rank ${bar.rank}, from ${bar.left.toLocaleString("en", { maximumFractionDigits: 6 })} ms for ${time(bar.right - bar.left)}`;
  if (bar.count > 1) return `${bar.count.toLocaleString("en")} events together, mostly ${kind}\n${when}`;
  const lines = [names.operation[events.operation[i]] ? `${kind}: ${names.operation[events.operation[i]]}` : kind, when];
  const facts = [`step ${events.step[i]}`];
  for (const name of ["stage", "microbatch", "version", "peer"]) if (events[name][i] >= 0) facts.push(`${name} ${events[name][i]}`);
  if (names.axis[events.axis[i]]) facts.push(`axis ${names.axis[events.axis[i]]}`);
  if (events.bytes[i]) facts.push(size(events.bytes[i]));
  lines.push(facts.join(", "));
  return lines.join("\n");
}

function draw(state) {
  const { events, packed, plot, sources } = state, [x, y] = [plot.x_range, plot.y_range];
  const view = { left: x.start, right: x.end, top: Math.min(y.start, y.end), bottom: Math.max(y.start, y.end) };
  const pixel = (view.right - view.left) / Math.max(100, plot.inner_width);
  let cell = pixel, found = bars(events, packed.tracks, view, cell);
  while (found === null) found = bars(events, packed.tracks, view, (cell *= 2));
  const data = {}, numbers = { x: [], y: [], text: [] };
  let shown = 0;
  for (const kind in sources) // a bar that is nowhere: the legend shows no sample of a glyph without data
    data[kind] = { left: [NaN], right: [NaN], bottom: [NaN], top: [NaN], text: [""] };
  for (const bar of found) {
    const kind = packed.names.kind[bar.kind], [low, high] = packed.places[kind], to = data[kind];
    shown += bar.count;
    to.left.push(bar.left);
    to.right.push(Math.max(bar.right, bar.left + pixel / 2));
    to.bottom.push(bar.rank + 1 - low);
    to.top.push(bar.rank + 1 - high);
    to.text.push(described(events, packed.names, bar));
    const seen = Math.min(bar.right, view.right) - Math.max(bar.left, view.left);
    if (bar.count === 1 && packed.numbered.includes(kind) && events.microbatch[bar.event] >= 0 && seen > 22 * pixel && numbers.x.length < NAMED) {
      numbers.x.push(Math.max(bar.left, view.left) + seen / 2);
      numbers.y.push(bar.rank + 1 - (low + high) / 2);
      numbers.text.push(String(events.microbatch[bar.event]));
    }
  }
  for (const kind in sources) sources[kind].data = data[kind];
  const few = (plot.inner_height || 400) / (view.bottom - view.top) >= 20;
  plot.document.get_model_by_name("numbers").data = few ? numbers : { x: [], y: [], text: [] };
  const steps = { x: [], text: [] };
  let free = -Infinity;
  for (const [number, first] of packed.steps) {
    if (first < view.left || first > view.right || first < free) continue;
    steps.x.push(first);
    steps.text.push(`step ${number}`);
    free = first + 70 * pixel;
  }
  plot.document.get_model_by_name("steps").data = steps;
  const alone = found.reduce((n, bar) => n + (bar.count === 1), 0);
  document.getElementById("view").textContent =
    `${shown.toLocaleString("en")} events in view, ${alone.toLocaleString("en")} of them one by one; ` +
    `${time(view.right - view.left)} from ${view.left.toLocaleString("en", { maximumFractionDigits: 6 })} ms on`;
  Object.assign(document.getElementById("timeline").dataset, { shown, alone, bars: found.length, left: view.left, right: view.right });
}

function controls(state) {
  const { packed, plot } = state, input = document.getElementById("step"), steps = packed.steps;
  let at = steps.findIndex(([number]) => number === packed.chosen[0]);
  const show = (left, right) => {
    const margin = 0.02 * (right - left);
    plot.x_range.setv({ start: Math.max(left - margin, -0.02 * state.length), end: Math.min(right + margin, 1.02 * state.length) });
  };
  const go = (to) => {
    if (to < 0 || to >= steps.length) return;
    at = to;
    input.value = steps[at][0];
    show(steps[at][1], steps[at][2]);
  };
  if (at >= 0) input.value = steps[at][0];
  document.getElementById("before").onclick = () => go(at - 1);
  document.getElementById("after").onclick = () => go(at + 1);
  input.onchange = () => go(steps.findIndex(([number]) => number === Number(input.value)));
  document.getElementById("whole").onclick = () => {
    show(0, state.length);
    plot.y_range.setv({ start: state.down[0], end: state.down[1] });
  };
}

async function begin() {
  const packed = read("events"), events = await unpack(packed);
  await Bokeh.embed.embed_item(read("figure"), "timeline");
  const doc = Bokeh.documents[0], plot = doc.get_model_by_name("plot"), sources = {};
  for (const kind of packed.kinds) sources[kind] = doc.get_model_by_name(kind);
  const state = { events, packed, plot, sources, length: packed.length / 1e6, down: [plot.y_range.start, plot.y_range.end] };
  let asked = false;
  const ask = () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; draw(state); });
  };
  for (const range of [plot.x_range, plot.y_range]) range.change.connect(ask);
  plot.properties.inner_width.change.connect(ask);
  controls(state);
  ask();
}

function sorts(table) {
  const heads = [...table.querySelectorAll("thead th")], body = table.tBodies[0];
  const value = (row, i) => {
    const cell = row.cells[i];
    return cell.dataset.v === undefined ? (cell.textContent === "-" ? null : cell.textContent) : Number(cell.dataset.v);
  };
  heads.forEach((head, i) => {
    head.querySelector("button").onclick = () => {
      const down = head.getAttribute("aria-sort") === "ascending", sign = down ? -1 : 1;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].map((row) => [value(row, i), row]);
      rows.sort(([a], [b]) => a === null || b === null ? (a === null) - (b === null)
        : sign * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true })));
      body.append(...rows.map(([, row]) => row));
    };
  });
}

document.querySelectorAll("table.sorts").forEach(sorts);
begin().catch((error) => {
  document.getElementById("view").textContent = `the timeline cannot be drawn: ${error.message}`;
  throw error;
});
