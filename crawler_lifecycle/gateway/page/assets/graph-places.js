"use strict";
// Finds the positions of a graph's steps, which takes almost a second for a thousand steps. It runs in a worker, or as a
// script of the page if the browser has no workers.
const findPlaces = ({paths, edges, width, height}) => {
  const graph = new dagre.graphlib.Graph(), RANKED = 100;
  // The best ranks take minutes for a thousand steps; these ranks take half a second.
  const ranker = paths.length > RANKED ? "tight-tree" : "network-simplex";
  graph.setGraph({rankdir: "LR", ranker, nodesep: 14, ranksep: 40, marginx: 8, marginy: 8});
  graph.setDefaultEdgeLabel(() => ({}));
  for (const path of paths) graph.setNode(path, {width, height});
  for (const [from, to] of edges) if (graph.hasNode(from) && graph.hasNode(to)) graph.setEdge(from, to);
  dagre.layout(graph);
  return {
    width: Math.ceil(graph.graph().width),
    height: Math.ceil(graph.graph().height),
    nodes: paths.map((path) => { const {x, y} = graph.node(path); return [x, y]; }),
    edges: graph.edges().map((edge) => graph.edge(edge).points.map(({x, y}) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ")),
  };
};
if (typeof document === "undefined") {
  onmessage = ({data}) => {
    importScripts(data.dagre);
    postMessage(findPlaces(data));
  };
}
