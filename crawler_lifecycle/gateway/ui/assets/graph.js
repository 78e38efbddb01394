"use strict";
// Draws a graph, at the positions that graph-model.js finds. Boxes in view are SVG elements. When there are too many of them,
// for example after zooming out, they are painted on a canvas, like the edges. Text is put only into text nodes.
(() => {
  const room = document.getElementById("drawing");
  const find = (name) => room.querySelector(`.${name}`);
  const pane = find("pane"), canvas = find("edges"), svg = find("graph"), tools = find("tools"), overview = find("minimap");
  const part = find("part"), said = find("said"), field = find("find"), counted = find("counted");
  const SVG = "http://www.w3.org/2000/svg", SHOWN = 24, NEAR_MAX = 300, LINES = 1500, CLOSE = 0.8, CLOSEST = 3, STEP = 1.25, FAR = 0.25;
  const LEAF = 0, FRAME = 2, KEY = "step";
  // From the best state to the one that needs a person first. page.css has the colours.
  const STATES = ["", "completed", "waiting", "scheduled", "ready", "running", "retrying", "cancelled", "failed"];
  const COLOURS = ["--line", "--good", "--wait", "--wait", "--wait", "--busy", "--wait", "--bad", "--bad"];
  let now = null, here = null, view = {x: 0, y: 0, k: 1}, whole = true;
  const elements = new Map();
  const group = document.createElementNS(SVG, "g");
  svg.append(group);
  const frames = document.createElementNS(SVG, "g"); // below all boxes
  group.append(frames);

  const worker = new Worker(room.dataset.model);
  const ask = (does, more) => worker.postMessage({does, ...more});
  const fold = (does, more) => { svg.setAttribute("aria-busy", "true"); ask(does, more); };
  const make = (name, attributes, parent) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    parent?.append(element);
    return element;
  };
  // Cuts between characters, so that none is split.
  const cut = (text, most = SHOWN) => text.length > most ? `${[...text].slice(0, most - 1).join("")}…` : text;
  const write = (element, text) => { if (element.textContent !== text) element.textContent = text; };

  // --- the part in view -----------------------------------------------------------------------------------------------------

  const size = () => [pane.clientWidth, pane.clientHeight];
  const least = () => Math.min(1, (size()[0] - 16) / now.width, (size()[1] - 16) / now.height);
  const hold = () => {
    // A part of the drawing always stays in view.
    const [wide, high] = size(), rest = 40 / view.k;
    view.x = Math.min(Math.max(view.x, rest - wide / view.k), now.width - rest);
    view.y = Math.min(Math.max(view.y, rest - high / view.k), now.height - rest);
  };
  let asked = 0;
  const later = () => { asked ||= requestAnimationFrame(() => { asked = 0; paint(); }); };
  const move = (x, y, k = view.k) => {
    if (!now) return;
    view = {x, y, k};
    hold();
    later();
  };
  const centre = (x, y, k = view.k) => move(x - size()[0] / k / 2, y - size()[1] / k / 2, k);
  const fit = () => {
    whole = true;
    if (now) centre(now.width / 2, now.height / 2, least());
  };
  // The point at this position of the pane stays where it is.
  const zoom = (by, left = size()[0] / 2, top = size()[1] / 2) => {
    if (!now) return;
    whole = false;
    const k = Math.min(CLOSEST, Math.max(Math.min(least(), FAR), view.k * by));
    move(view.x + left / view.k - left / k, view.y + top / view.k - top / k, k);
  };
  const begin = () => {
    fit();
    if (view.k >= FAR * 2) return;
    whole = false;
    move(-16 / CLOSE, now.height / 2 - size()[1] / CLOSE / 2, CLOSE);
  };

  // --- boxes ---------------------------------------------------------------------------------------------------------------

  const inView = (n, spots, wide, high) => spots[n] < view.x + wide && spots[n] + spots[n + 2] > view.x
    && spots[n + 1] < view.y + high && spots[n + 1] + spots[n + 3] > view.y;
  const colour = (n, element) => {
    const state = STATES[now.states[n]], frame = now.kinds[n] === FRAME, name = now.paths[n], does = frame ? "; press to fold" : "; press to unfold";
    element.link.setAttribute("class", `${state}${["", " folded", " frame"][now.kinds[n]]}${now.keys[n] === here ? " here" : ""}`);
    write(element.title, `${name}: ${now.texts[n]}${now.kinds[n] === LEAF ? "" : does}`);
    write(element.name, frame ? cut(now.names[n], Math.floor(now.spots[4 * n + 2] / 13)) : cut(now.names[n]));
    write(element.state, frame ? "" : cut(now.texts[n], SHOWN + 2));
  };
  const element = (n) => {
    const key = now.keys[n], kind = now.kinds[n], before = elements.get(key);
    if (before?.kind === kind) return before;
    before?.link.remove();
    const path = encodeURIComponent(now.paths[n]);
    const link = make("a", {href: kind === LEAF ? `${room.dataset.steps}?path=${path}` : `#${KEY}=${path}`, tabindex: "-1"});
    if (kind !== LEAF) link.setAttribute("role", "button");
    link.dataset.key = key;
    const made = {link, kind, title: make("title", {}, link), box: make("rect", {rx: 4}, link)};
    if (kind === FRAME) made.head = make("rect", {class: "head", height: 22}, link);
    made.name = make("text", {x: 8, y: 16}, link);
    made.state = make("text", {class: "state", x: 8, y: 32}, link);
    if (kind !== FRAME) for (const one of [made.name, made.state]) one.setAttribute("clip-path", "url(#inside)");
    elements.set(key, made);
    return made;
  };
  const put = (n) => {
    const [left, top, width, height] = Array.from(now.spots.subarray(4 * n, 4 * n + 4), (one) => Math.round(10 * one) / 10);
    const focused = elements.has(now.keys[n]) && elements.get(now.keys[n]).link === document.activeElement, made = element(n);
    made.link.setAttribute("transform", `translate(${left} ${top})`);
    made.box.setAttribute("width", width);
    made.box.setAttribute("height", height);
    made.head?.setAttribute("width", width);
    colour(n, made);
    // Frames come before their contents. An element that moves within the document would lose the focus.
    if (!made.link.parentNode) (now.kinds[n] === FRAME ? frames : group).append(made.link);
    if (focused && made.link !== document.activeElement) made.link.focus({preventScroll: true});
    made.of = now;
  };
  const remove = (key, made) => {
    made.link.remove();
    elements.delete(key);
  };
  // Exactly one box can be reached with the Tab key: the one that was jumped to, or the first in view.
  const reachable = (shown) => {
    const first = shown.find((n) => now.keys[n] === here) ?? shown[0];
    for (const [key, {link}] of elements) link.setAttribute("tabindex", key === now.keys[first] ? "0" : "-1");
  };

  // --- painting ------------------------------------------------------------------------------------------------------------

  const pen = canvas.getContext("2d");
  let round = 0;
  const colours = () => {
    const style = getComputedStyle(pane);
    return Object.fromEntries([...COLOURS, "--soft", "--link", "--front"].map((name) => [name, style.getPropertyValue(name)]));
  };
  const lines = (from, own, near, style, wide, high) => {
    if (own !== round) return;
    const {points, starts} = now, count = starts.length - 1, right = view.x + wide, bottom = view.y + high;
    let n = from, drawn = 0;
    pen.globalCompositeOperation = "destination-over"; // below the boxes
    pen.lineWidth = near ? 1.2 / view.k : 0.6 / view.k;
    pen.strokeStyle = style["--soft"];
    pen.beginPath();
    for (; n < count && drawn < LINES; n++) {
      for (let at = starts[n]; at + 3 < starts[n + 1]; at += 2) {
        const [x, y, toX, toY] = [points[at], points[at + 1], points[at + 2], points[at + 3]];
        if (Math.max(x, toX) < view.x || Math.min(x, toX) > right || Math.max(y, toY) < view.y || Math.min(y, toY) > bottom) continue;
        drawn++;
        pen.moveTo(x, y);
        if (near) pen.bezierCurveTo((x + toX) / 2, y, (x + toX) / 2, toY, toX, toY);
        else pen.lineTo(toX, toY);
      }
    }
    pen.stroke();
    if (n < count) requestAnimationFrame(() => lines(n, own, near, style, wide, high)); // the page answers in between
  };
  const dots = (shown, style) => {
    const {spots, kinds, states} = now, smallest = 2 / view.k;
    // States that need a person first are painted last, and never too small to be seen.
    for (let state = 0; state < STATES.length; state++) {
      pen.fillStyle = style[COLOURS[state]];
      const more = state === STATES.length - 1 ? 2 * smallest : smallest;
      for (const n of shown) {
        if (states[n] === state && kinds[n] !== FRAME) pen.fillRect(spots[4 * n], spots[4 * n + 1], Math.max(more, spots[4 * n + 2]), Math.max(more, spots[4 * n + 3]));
      }
    }
  };
  const paint = () => {
    if (!now) return;
    const [w, h] = size(), wide = w / view.k, high = h / view.k, shown = [], sharp = devicePixelRatio;
    for (let n = 0; n < now.kinds.length; n++) if (inView(4 * n, now.spots, wide, high)) shown.push(n);
    const near = shown.length <= NEAR_MAX, style = colours();
    if (canvas.width !== Math.round(w * sharp) || canvas.height !== Math.round(h * sharp)) [canvas.width, canvas.height] = [Math.round(w * sharp), Math.round(h * sharp)];
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, canvas.width, canvas.height);
    pen.setTransform(sharp * view.k, 0, 0, sharp * view.k, -view.x * view.k * sharp, -view.y * view.k * sharp);
    pen.globalCompositeOperation = "source-over";
    if (!near) dots(shown, style);
    group.setAttribute("transform", `scale(${view.k}) translate(${-view.x} ${-view.y})`);
    const wanted = near ? shown : shown.filter((n) => now.keys[n] === here || elements.get(now.keys[n])?.link === document.activeElement);
    const keys = new Set(wanted.map((n) => now.keys[n]));
    for (const [key, made] of elements) if (!keys.has(key) && made.link !== document.activeElement) remove(key, made);
    for (const n of wanted) if (elements.get(now.keys[n])?.of !== now) put(n);
    reachable(wanted);
    lines(0, ++round, near, style, wide, high);
    frame(wide, high);
    svg.removeAttribute("aria-busy");
  };

  // The overview is painted once for each drawing; the part in view is an element above it.
  const frame = (wide, high) => {
    const all = view.x <= 0 && view.y <= 0 && view.x + wide >= now.width && view.y + high >= now.height;
    overview.hidden = all;
    if (all) return;
    const k = overview.scale, [left, top] = [Math.max(0, view.x), Math.max(0, view.y)];
    const [right, bottom] = [Math.min(now.width, view.x + wide), Math.min(now.height, view.y + high)];
    Object.assign(part.style, {left: `${left * k}px`, top: `${top * k}px`, width: `${Math.max(4, (right - left) * k)}px`, height: `${Math.max(4, (bottom - top) * k)}px`});
    const percent = (value) => Math.round(100 * value);
    overview.setAttribute("aria-label", `Overview: in view are ${percent(left / now.width)} to ${percent(right / now.width)} % of the width, ${percent(top / now.height)} to ${percent(bottom / now.height)} % of the height`);
  };
  const survey = () => {
    const WIDE = Math.min(180, pane.clientWidth / 3), HIGH = 110, k = Math.min(WIDE / now.width, HIGH / now.height), map = overview.querySelector("canvas");
    const [width, height] = [Math.max(12, now.width * k), Math.max(12, now.height * k)], sharp = devicePixelRatio, own = map.getContext("2d"), style = colours();
    overview.scale = k;
    [map.width, map.height] = [Math.ceil(width * sharp), Math.ceil(height * sharp)];
    for (const one of [map, overview]) Object.assign(one.style, {width: `${width}px`, height: `${height}px`});
    for (let state = 0; state < STATES.length; state++) {
      own.fillStyle = style[COLOURS[state]];
      for (let n = 0; n < now.kinds.length; n++) {
        if (now.states[n] !== state || now.kinds[n] === FRAME) continue;
        const [x, y, w, h] = [0, 1, 2, 3].map((one) => now.spots[4 * n + one] * k * sharp), more = state === STATES.length - 1 ? 3 : 1;
        own.fillRect(x, y, Math.max(more, w), Math.max(more, h));
      }
    }
  };

  // --- what the model reports ----------------------------------------------------------------------------------------------------

  let took = 0;
  const count = ({steps, failed, running, groups, took: loaded}) => {
    took = loaded;
    find("words").hidden = true;
    pane.setAttribute("aria-label", `Drawing of ${steps} steps; the Steps tab lists the same steps`);
    for (const [name, many] of [["to-failed", failed], ["to-running", running]]) {
      write(find(`${name} b`), String(many));
      find(name).disabled = !many;
    }
    for (const name of ["unfold-all", "fold-all"]) find(name).hidden = !groups;
  };
  const place = (key) => now ? now.keys.indexOf(key) : -1;
  const told = {
    drawing(made) {
      const before = now, old = before && [made.kept, here].map(place).find((n) => n >= 0), key = old >= 0 ? before?.keys[old] : null;
      now = made;
      tools.hidden = find("stage").hidden = false;
      pane.style.height = `${Math.max(180, Math.min(now.height * Math.min(1, pane.clientWidth / now.width) + 24, innerHeight * 0.6))}px`;
      survey();
      count(made.totals);
      const same = key ? place(key) : -1;
      if (!before) begin();
      else if (made.fit || (whole && !made.kept)) fit();
      else {
        // The box that was pressed stays where it was. A step found by a search comes into view, so a new size does not refit the drawing.
        const by = (side) => same < 0 ? 0 : now.spots[4 * same + side] - before.spots[4 * old + side];
        whole = false;
        move(view.x + by(0), view.y + by(1));
      }
      find("left").textContent = made.left || made.edgesLeft ? `${made.left} steps and ${made.edgesLeft} edges are omitted.` : "";
      if (!before) jump(false);
    },
    changed(all) {
      for (const [n, state, text] of all) {
        now.states[n] = state;
        now.texts[n] = text;
        const made = elements.get(now.keys[n]);
        if (made) colour(n, made);
      }
      if (!all.length) return;
      survey();
      if (now.kinds.length > elements.size) later();
    },
    totals: count,
    count(many) { for (const one of [counted, said]) write(one, many === null ? "" : many === 1 ? "1 step" : `${many} steps`); },
    at(step) {
      if (!step) { write(counted, "No step"); return write(said, "No step matches"); }
      const n = place(step.key), before = here;
      if (n < 0) return;
      here = step.key;
      for (const key of [before, here]) if (elements.has(key) && place(key) >= 0) colour(place(key), elements.get(key));
      whole = false;
      const [left, top, width, height] = now.spots.subarray(4 * n, 4 * n + 4), k = Math.max(view.k, CLOSE);
      // A large frame shows its beginning.
      centre(left + Math.min(width, size()[0] / k) / 2, top + Math.min(height, size()[1] / k) / 2, k);
      paint();
      if (step.what === "found") write(counted, `${step.place} of ${step.of}`);
      write(said, `${step.of ? `${step.place} of ${step.of}: ` : ""}${step.path}: ${now.texts[n]}`);
      if (!step.focus) return;
      history.replaceState(null, "", `#${KEY}=${encodeURIComponent(step.path)}`);
      pane.scrollIntoView({block: "nearest"});
      // The search field keeps the focus, so that Enter leads to the next result.
      if (step.what !== "found" || document.activeElement !== field) elements.get(here)?.link.focus({preventScroll: true});
    },
    error() {
      write(find("words"), `The drawing ${now ? "could not be updated" : "failed"}. The Steps tab lists its steps.`);
      find("words").hidden = false;
    },
  };
  worker.onmessage = ({data}) => { for (const [name, value] of Object.entries(data)) told[name](value); };
  worker.onerror = (event) => { event.preventDefault(); told.error(); };

  // --- what people do ----------------------------------------------------------------------------------------------------------

  const jump = (focus) => {
    ask("jump", {path: new URLSearchParams(location.hash.slice(1)).get(KEY), focus});
  };
  addEventListener("hashchange", () => jump(true));
  const next = (what, back = false) => ask("next", {what, back, text: field.value.trim()});
  field.addEventListener("input", () => ask("find", {text: field.value.trim()}));
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing) return;
    event.preventDefault();
    next("found", event.shiftKey);
  });
  const presses = {
    "zoom-out": () => zoom(1 / STEP), "zoom-in": () => zoom(STEP), "zoom-fit": fit, "to-failed": () => next("failed"),
    "to-running": () => next("running"), "unfold-all": () => fold("all", {open: true}), "fold-all": () => fold("all", {open: false}),
  };
  for (const [name, act] of Object.entries(presses)) find(name).addEventListener("click", act);

  const pan = (x, y) => { whole = false; move(view.x + x / view.k, view.y + y / view.k); };
  const walk = (by) => {
    const all = [...elements.keys()].map(place).filter((n) => n >= 0).sort((a, b) => a - b);
    const from = all.indexOf(place(document.activeElement?.dataset?.key)), to = all[from < 0 ? 0 : from + by];
    if (to !== undefined) elements.get(now.keys[to]).link.focus({preventScroll: true});
  };
  const KEYS = {
    "+": () => zoom(STEP), "=": () => zoom(STEP), "-": () => zoom(1 / STEP), "0": fit, n: () => walk(1), p: () => walk(-1),
    ArrowLeft: () => pan(-80, 0), ArrowRight: () => pan(80, 0), ArrowUp: () => pan(0, -80), ArrowDown: () => pan(0, 80),
  };
  find("stage").addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const link = event.target.closest("[role=button]");
    if (link && event.key === " ") { event.preventDefault(); return fold("flip", {key: link.dataset.key}); }
    if (!Object.hasOwn(KEYS, event.key)) return;
    event.preventDefault();
    KEYS[event.key]();
  });
  pane.addEventListener("focusin", ({target}) => {
    const n = place(target.dataset?.key);
    if (n < 0 || !target.matches(":focus-visible")) return;
    const [left, top, width, height] = now.spots.subarray(4 * n, 4 * n + 4), [wide, high] = size().map((one) => one / view.k);
    if (left < view.x || top < view.y || left + Math.min(width, wide) > view.x + wide || top + Math.min(height, high) > view.y + high) centre(left + width / 2, top + height / 2);
  });
  // A browser scrolls to what has the focus. Here, the drawing moves instead.
  pane.addEventListener("scroll", () => { pane.scrollTo(0, 0); });

  pane.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const box = pane.getBoundingClientRect();
    zoom(Math.exp(-event.deltaY / (event.deltaMode ? 10 : 300)), event.clientX - box.left, event.clientY - box.top);
  }, {passive: false});
  // One pointer moves the drawing, two also zoom it.
  const fingers = new Map();
  let moved = false;
  pane.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    if (!fingers.size) moved = false;
    fingers.set(event.pointerId, {x: event.clientX, y: event.clientY, fromX: event.clientX, fromY: event.clientY});
  });
  pane.addEventListener("pointermove", (event) => {
    const finger = fingers.get(event.pointerId);
    if (!finger) return;
    const [x, y] = [event.clientX, event.clientY];
    if (!moved && Math.hypot(x - finger.fromX, y - finger.fromY) < 5) return;
    if (!moved) for (const id of fingers.keys()) pane.setPointerCapture(id);
    moved = true;
    const other = [...fingers].find(([id]) => id !== event.pointerId)?.[1];
    pan((finger.x - x) / (other ? 2 : 1), (finger.y - y) / (other ? 2 : 1));
    if (other) {
      const box = pane.getBoundingClientRect(), before = Math.hypot(finger.x - other.x, finger.y - other.y);
      zoom(Math.hypot(x - other.x, y - other.y) / Math.max(1, before), (x + other.x) / 2 - box.left, (y + other.y) / 2 - box.top);
    }
    Object.assign(finger, {x, y});
  });
  for (const name of ["pointerup", "pointercancel", "lostpointercapture"]) pane.addEventListener(name, ({pointerId}) => fingers.delete(pointerId));
  pane.addEventListener("dragstart", (event) => event.preventDefault());
  pane.addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (moved) { moved = false; return event.preventDefault(); }
    if (!link || link.getAttribute("role") !== "button" || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    fold("flip", {key: link.dataset.key});
  }, true);
  const centreThere = (event) => {
    const box = overview.getBoundingClientRect();
    whole = false;
    centre((event.clientX - box.left) / overview.scale, (event.clientY - box.top) / overview.scale);
  };
  overview.addEventListener("pointerdown", (event) => { overview.setPointerCapture(event.pointerId); centreThere(event); });
  overview.addEventListener("pointermove", (event) => { if (overview.hasPointerCapture(event.pointerId)) centreThere(event); });
  new ResizeObserver(() => { if (now) { survey(); whole ? fit() : later(); } }).observe(pane);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (now) { survey(); later(); } });

  // A large graph takes the server a while, so it is asked for less often.
  let waits = 0;
  document.getElementById("live")?.addEventListener("htmx:sse:after:message", (event) => {
    if (!event.detail.message.event) waits ||= setTimeout(() => { waits = 0; ask("load"); }, Math.max(2000, 10 * took));
  });
  ask("load", {source: new URL(room.dataset.source, location).href, places: new URL(room.dataset.places, location).href, states: STATES, words: JSON.parse(room.dataset.words)});
})();
