"use strict";
// The steps of a graph, which of them are folded, and where they are drawn. Runs in a worker, so that the page answers
// while thousands of steps are positioned. It gets tasks from graph.js and answers with messages.
const WIDTH = 170, HEIGHT = 40, HEAD = 22, PAD = 10;
// Above FOLD_ABOVE steps groups begin folded. On a level of more than WIDE boxes, more than ALIKE steps that do the same
// after and before the same are a group; what still has more than FOLD_ABOVE boxes is folded by columns into BANDS groups.
const FOLD_ABOVE = 200, WIDE = 50, ALIKE = 10, BANDS = 50;
const LEAF = 0, FOLDED = 1, FRAME = 2;

// The states, from the best to the one that needs a person first. A folded box has the colour of its last state.
let STATES = [], WORDS = {}, source = "", took = 0, shape = "", steps = [], known = new Map(), levels = new Map(), groups = new Map();
let closed = null, flipped = new Map(), drawn = [], found = [], at = -1;

const isOpen = (key) => flipped.get(key) ?? !closed;
const number = (count, word) => `${count.toLocaleString("en").replaceAll(",", "\u202f")} ${word}${count === 1 ? "" : "s"}`;

// --- the structure of a graph --------------------------------------------------------------------------------------------

const links = (items, pairs) => {
  const where = new Map(), seen = new Set(), made = [];
  items.forEach((item, n) => { for (const one of item.holds) where.set(one, n); });
  for (const [from, to] of pairs) {
    const a = where.get(from), b = where.get(to), key = a * items.length + b;
    if (a === undefined || b === undefined || a === b || seen.has(key)) continue;
    seen.add(key);
    made.push([a, b]);
  }
  return made;
};

const group = (key, name, path, items) => {
  const made = {key, name, path, items, holds: items.flatMap((item) => item.holds)};
  for (const item of items) item.within = made;
  groups.set(key, made);
  return made;
};

const fans = (items, pairs) => {
  const before = new Map(), after = new Map(), alike = new Map();
  for (const [from, to] of pairs) {
    for (const [near, one, other] of [[before, to, from], [after, from, to]]) {
      if (!near.has(one)) near.set(one, []);
      near.get(one).push(other);
    }
  }
  const names = (list) => (list ?? []).sort((a, b) => a - b).join();
  for (const item of items) {
    const {kind, label, id} = item.step, key = JSON.stringify([kind, label, names(before.get(id)), names(after.get(id))]);
    if (!alike.has(key)) alike.set(key, []);
    alike.get(key).push(item);
  }
  const fold = new Map();
  for (const fan of alike.values()) {
    if (fan.length <= ALIKE) continue;
    const [first, last] = [fan[0].step, fan.at(-1).step];
    const made = group(`f:${first.path}`, `${first.name} … ${last.name}`, first.path, fan);
    for (const item of fan) fold.set(item, made);
  }
  return [...new Set(items.map((item) => fold.get(item) ?? item))];
};

const bands = (items, pairs, parent) => {
  const {before, after} = neighbours(items.length, links(items, pairs)), column = columnsOf(items.length, before, after);
  const last = column.reduce((most, one) => Math.max(most, one), 0), size = Math.ceil((last + 1) / BANDS), made = [];
  items.forEach((item, n) => {
    item.column = column[n];
    (made[Math.floor(column[n] / size)] ??= []).push(item);
  });
  return made.filter(Boolean).flatMap((band) => {
    if (band.length === 1) return band;
    const from = band.reduce((least, item) => Math.min(least, item.column), Infinity);
    const to = band.reduce((most, item) => Math.max(most, item.column), 0);
    const name = from === to ? `Layer ${from + 1}` : `Layers ${from + 1} to ${to + 1}`;
    const found = group(`b:${parent}:${from}`, name, parent, band);
    found.column = from;
    found.band = true;
    return [found];
  });
};

// The items of one level: steps, sub-graphs, fan-outs and bands. Dependencies never lead out of a level.
const level = (parent, inner, pairs, large) => {
  let items = inner.get(parent).map((step) => {
    const item = inner.has(step.path) ? group(`g:${step.path}`, step.name, step.path, [])
      : {key: `s:${step.path}`, name: step.name, path: step.path, holds: []};
    item.step = step;
    item.holds = [step.id];
    step.item = item;
    return item;
  });
  const own = pairs.get(parent) ?? [];
  if (large && items.length > WIDE) items = fans(items, own);
  if (large && items.length > FOLD_ABOVE) items = bands(items, own, parent);
  levels.set(parent, {items, pairs: own});
};

const read = (picture) => {
  steps = picture.nodes.map((node, id) => ({...node, id}));
  known = new Map(steps.map((step) => [step.path, step]));
  levels = new Map();
  groups = new Map();
  const inner = new Map([["", []]]), pairs = new Map();
  for (const step of steps) {
    step.parent = known.has(step.parent) ? step.parent : "";
    step.leaf = step.kind !== "graph" && step.kind !== "missing";
    if (!inner.has(step.parent)) inner.set(step.parent, []);
    inner.get(step.parent).push(step);
  }
  for (const [from, to] of picture.edges) {
    const parent = known.get(from).parent;
    if (!pairs.has(parent)) pairs.set(parent, []);
    pairs.get(parent).push([known.get(from).id, known.get(to).id]);
  }
  closed ??= steps.length > FOLD_ABOVE;
  for (const parent of inner.keys()) level(parent, inner, pairs, steps.length > FOLD_ABOVE);
};

// The steps in a group at any depth. A sub-graph is not a step, but a step that grew into a sub-graph is.
const inside = (item) => {
  const inner = () => item.key[0] === "g" ? levels.get(item.path).items : item.items ?? [];
  item.steps ??= [...item.step?.leaf ? [item.step] : [], ...inner().flatMap(inside)];
  return item.steps;
};

// --- what is drawn -----------------------------------------------------------------------------------------------------------

const compose = (items, pairs, x, y, into) => {
  const boxes = items.flatMap((item) => item.band && isOpen(item.key) ? item.items : [item]).map((item) => {
    if (!item.items || !isOpen(item.key)) return {item, kind: item.items ? FOLDED : LEAF, w: WIDTH, h: HEIGHT, column: item.column};
    const part = {boxes: [], lines: []};
    const own = item.key[0] === "g" ? levels.get(item.path) : {items: item.items, pairs: []};
    const {width, height} = compose(own.items, own.pairs, 0, 0, part);
    return {item, kind: FRAME, w: Math.max(width, WIDTH - 2 * PAD) + 2 * PAD, h: height + HEAD + 2 * PAD, column: item.column, part};
  });
  const wide = items.some((item) => item.band);
  if (wide) {
    const used = [...new Set(boxes.map((box) => box.column))].sort((a, b) => a - b), place = new Map(used.map((one, n) => [one, n]));
    for (const box of boxes) box.column = place.get(box.column);
  } else for (const box of boxes) delete box.column;
  const {width, height, lines} = placeLevel(boxes, links(boxes.map((box) => box.item), pairs));
  const down = wide ? HEAD + PAD : 0;
  if (wide) x += PAD;
  for (const item of items) {
    if (!item.band || !isOpen(item.key)) continue;
    const own = boxes.filter((box) => box.item.within === item), left = own.reduce((least, box) => Math.min(least, box.x), Infinity);
    const right = own.reduce((most, box) => Math.max(most, box.x + box.w), 0);
    into.boxes.push({item, kind: FRAME, x: x + left - PAD, y, w: right - left + 2 * PAD, h: height + down + PAD});
  }
  for (const line of lines) into.lines.push(line.map((value, n) => value + (n % 2 ? y + down : x)));
  for (const box of boxes) {
    box.x += x;
    box.y += y + down;
    into.boxes.push(box);
    if (!box.part) continue;
    for (const one of box.part.boxes) into.boxes.push(Object.assign(one, {x: one.x + box.x + PAD, y: one.y + box.y + HEAD + PAD}));
    for (const line of box.part.lines) into.lines.push(line.map((value, n) => value + (n % 2 ? box.y + HEAD + PAD : box.x + PAD)));
  }
  return wide ? {width: width + 2 * PAD, height: height + down + PAD} : {width, height};
};

// The state of a box and its words. A group first shows the steps that need a person first.
const words = ({item, kind}) => {
  if (kind === LEAF) {
    const {state, kind: work} = item.step;
    return [Math.max(0, STATES.indexOf(state ?? "")), work === "missing" ? "not there yet" : state ?? ""];
  }
  const counts = new Map();
  for (const step of inside(item)) {
    const state = Math.max(0, STATES.indexOf(step.state ?? ""));
    counts.set(state, (counts.get(state) ?? 0) + 1);
  }
  const all = [...counts].sort(([a], [b]) => b - a), many = number(inside(item).length, "step");
  const said = all.filter(([state]) => state);
  if (said.length < 2) return [all[0]?.[0] ?? 0, `${many}${said.length ? `, ${STATES[said[0][0]]}` : ""}`];
  return [all[0][0], `${many}, ${said.map(([state, count]) => `${count} ${STATES[state]}`).join(", ")}`];
};

const totals = () => {
  const is = (state) => steps.reduce((sum, step) => sum + (step.leaf && step.state === state ? 1 : 0), 0);
  return {steps: steps.filter((step) => step.leaf).length, failed: is("failed"), running: is("running"), groups: groups.size, took};
};

const draw = (why) => {
  const into = {boxes: [], lines: []}, {items, pairs} = levels.get("");
  const {width, height} = compose(items, pairs, 0, 0, into);
  const count = into.boxes.length, spots = new Float32Array(4 * count), kinds = new Uint8Array(count), states = new Uint8Array(count);
  const texts = [], names = [], paths = [], keys = [];
  drawn = into.boxes.map((box, n) => {
    spots.set([box.x, box.y, box.w, box.h], 4 * n);
    kinds[n] = box.kind;
    const [state, text] = words(box), {step, key, name, path} = box.item;
    states[n] = state;
    texts.push(text);
    names.push(step?.label && key[0] === "s" ? `${name}: ${step.label}` : name);
    paths.push(key[0] === "b" ? name : path);
    keys.push(key);
    return {item: box.item, kind: box.kind, shown: `${state} ${text}`};
  });
  const size = into.lines.reduce((sum, line) => sum + line.length, 0), points = new Float32Array(size), starts = new Uint32Array(into.lines.length + 1);
  into.lines.forEach((line, n) => {
    points.set(line, starts[n]);
    starts[n + 1] = starts[n] + line.length;
  });
  const drawing = {width, height, spots, kinds, states, texts, names, paths, keys, points, starts, totals: totals(), ...why};
  postMessage({drawing}, [spots, kinds, states, points, starts].map((one) => one.buffer));
};

// --- what graph.js asks for --------------------------------------------------------------------------------------------------

const search = (text) => {
  const part = text.toLowerCase();
  found = part ? steps.filter((step) => step.kind !== "missing" && step.path.toLowerCase().includes(part)) : [];
};

// Unfolds all groups around a step. Returns whether anything was folded.
const reveal = (step) => {
  let changed = false;
  const open = (item) => {
    if (!isOpen(item.key)) { flipped.set(item.key, true); changed = true; }
  };
  for (let one = step; one; one = known.get(one.parent)) {
    for (let item = one.item.within; item; item = item.within) open(item);
    if (one !== step) open(one.item);
  }
  return changed;
};

const show = (step, more) => {
  at = step.id;
  if (reveal(step)) draw({kept: step.item.key});
  postMessage({at: {path: step.path, key: step.item.key, ...more}});
};

const does = {
  async load() {
    const began = performance.now(), answer = await fetch(`${source}?expand=*`);
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const picture = await answer.json();
    for (const node of picture.nodes) node.state = WORDS[node.state] ?? node.state;
    took = performance.now() - began;
    if (!picture.nodes.length) return;
    // New positions take long to compute for a large graph, and usually only states have changed.
    const now = JSON.stringify([picture.nodes.map((node) => [node.path, node.kind, node.label]), picture.edges]);
    if (now !== shape) {
      shape = now;
      read(picture);
      return draw({left: picture.left_out, edgesLeft: picture.edges_left_out});
    }
    picture.nodes.forEach((node, n) => { steps[n].state = node.state; });
    const changed = [];
    drawn.forEach((box, n) => {
      const [state, text] = words(box), shown = `${state} ${text}`;
      if (shown === box.shown) return;
      box.shown = shown;
      changed.push([n, state, text]);
    });
    postMessage({changed, totals: totals()});
  },
  flip({key}) {
    flipped.set(key, !isOpen(key));
    draw({kept: key});
  },
  all({open}) {
    closed = !open;
    flipped = new Map();
    draw({fit: true});
  },
  find({text}) {
    search(text);
    postMessage({count: text ? found.length : null});
  },
  next({what, text, back}) {
    if (what === "found") search(text); // steps that came since are found too
    const all = what === "found" ? found : steps.filter((step) => step.leaf && step.state === what);
    if (!all.length) return postMessage({at: null});
    const ahead = back ? all.findLastIndex((step) => step.id < at) : all.findIndex((step) => step.id > at);
    const place = ahead >= 0 ? ahead : back ? all.length - 1 : 0;
    show(all[place], {place: place + 1, of: all.length, what, focus: true});
  },
  // Without a path, a folded graph is unfolded only around its first failed step.
  jump({path, focus}) {
    const step = path ? known.get(path) : !focus && closed && steps.find((one) => one.leaf && one.state === "failed");
    if (step) show(step, {focus});
  },
};
let last = Promise.resolve();
onmessage = ({data}) => {
  if (data.places) {
    importScripts(data.places);
    ({source, states: STATES, words: WORDS} = data);
  }
  // One after the other: a load takes a while. An error must not end the queue.
  last = last.then(() => does[data.does](data)).catch((error) => postMessage({error: String(error)}));
};
