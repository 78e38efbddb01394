"use strict";
// Draws a graph as SVG, with positions from dagre. Texts are put only into text nodes.
// A click on a box of many steps unfolds it. Long work is split, so that the page stays responsive.
(() => {
  const room = document.getElementById("drawing");
  const SVG = "http://www.w3.org/2000/svg", WIDTH = 170, HEIGHT = 40, SHOWN = 24, SLICE_MS = 30;
  const unfolded = new URLSearchParams();
  let drawn = "", places = new Map();

  const make = (name, attributes, parent) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    parent?.append(element);
    return element;
  };
  const cut = (text) => text.length > SHOWN ? `${text.slice(0, SHOWN - 1)}…` : text;
  // Calls act for each element. In between, the browser can do other work.
  const each = async (all, act) => {
    let until = performance.now() + SLICE_MS;
    for (const [n, one] of all.entries()) {
      act(one, n);
      if (performance.now() < until) continue;
      await new Promise((go) => setTimeout(go));
      until = performance.now() + SLICE_MS;
    }
  };

  const beside = (asked) => new Promise((found, failed) => {
    const worker = new Worker(room.dataset.places);
    worker.onmessage = ({data}) => { found(data); worker.terminate(); };
    worker.onerror = (event) => { event.preventDefault(); failed(event); worker.terminate(); };
    worker.postMessage(asked);
  });
  const load = (address) => new Promise((loaded, failed) => {
    const script = document.createElement("script");
    [script.onload, script.onerror, script.src] = [loaded, failed, address];
    document.head.append(script);
  });
  const scripts = [room.dataset.dagre, room.dataset.places];
  const here = async (asked) => {
    while (scripts.length) { await load(scripts[0]); scripts.shift(); }
    return findPlaces(asked);
  };
  const found = async (asked) => {
    try {
      return await beside(asked);
    } catch {
      return here(asked); // the browser has no worker for us
    }
  };

  const colour = (node) => {
    const place = places.get(node.path);
    const counts = Object.entries(node.counts ?? {}).map(([state, count]) => `${count} ${state}`).join(", ");
    const state = node.steps ? `${node.steps} steps, ${counts || node.state}` : String(node.state ?? "");
    const shown = `${node.state} ${state}`;
    if (place.shown === shown) return;
    place.shown = shown;
    place.link.setAttribute("class", `${node.state ?? ""}${node.steps ? " folded" : ""}`);
    place.title.textContent = `${node.path}: ${state}${node.steps ? "; click to unfold" : ""}`;
    place.state.textContent = cut(state);
  };

  const layOut = async (picture) => {
    const paths = picture.nodes.map((node) => node.path), asked = {paths, edges: picture.edges, width: WIDTH, height: HEIGHT};
    const {width, height, nodes, edges} = await found({...asked, dagre: room.dataset.dagre});
    const drawing = make("svg", {class: "graph", width, height, viewBox: `0 0 ${width} ${height}`, role: "group",
      "aria-busy": "true", "aria-label": `${picture.nodes.length} steps; the table below has the same`});
    places = new Map();
    room.replaceChildren(drawing);
    await each(edges, (points) => make("polyline", {class: "edge", points}, drawing));
    await each(picture.nodes, (node, n) => {
      const [x, y] = nodes[n], left = x - WIDTH / 2, path = node.path;
      const link = make("a", {href: `?path=${encodeURIComponent(path)}`, tabindex: "-1"});
      const title = make("title", {}, link);
      if (node.steps) link.addEventListener("click", (event) => {
        event.preventDefault();
        unfolded.append("expand", path);
        draw();
      });
      make("rect", {x: left.toFixed(1), y: (y - HEIGHT / 2).toFixed(1), width: WIDTH, height: HEIGHT, rx: 4}, link);
      const name = make("text", {x: (left + 8).toFixed(1), y: (y - 3).toFixed(1)}, link);
      name.textContent = cut(node.label ? `${node.name}: ${node.label}` : node.name);
      const state = make("text", {class: "state", x: (left + 8).toFixed(1), y: (y + 13).toFixed(1)}, link);
      places.set(path, {link, title, state});
      colour(node);
      drawing.append(link);
    });
    drawing.removeAttribute("aria-busy");
    if (picture.left_out || picture.edges_left_out) {
      room.append(`${picture.left_out} steps and ${picture.edges_left_out} edges are left out.`);
    }
  };

  const drawOnce = async () => {
    const answer = await fetch(`${room.dataset.source}?${unfolded}`);
    if (!answer.ok) return;
    const picture = await answer.json();
    if (!picture.nodes.length) return;
    // New positions take long for a large graph, and mostly only states have changed.
    const shape = JSON.stringify([picture.nodes.map((node) => node.path), picture.edges]);
    if (shape === drawn) return each(picture.nodes, colour);
    await layOut(picture);
    drawn = shape;
  };
  // Only one drawing at a time. Requests during a drawing lead to one more drawing after it.
  let busy = false, again = false;
  const draw = async () => {
    again = true;
    if (busy) return;
    busy = true;
    try {
      while (again) { again = false; await drawOnce(); }
    } finally {
      busy = false;
    }
  };

  let waits = 0;
  document.getElementById("live")?.addEventListener("htmx:sse:after:message", (event) => {
    if (!event.detail.message.event) waits ||= setTimeout(() => { waits = 0; draw(); }, 2000);
  });
  draw();
})();
