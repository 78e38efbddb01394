"use strict";
// Finds positions for the boxes of one level: in columns from left to right, so that every edge leads to the right. Each
// function takes time in proportion to boxes and edges, so ten thousand take a second at most. Runs in a worker.
const GAP_X = 56, GAP_Y = 14, TALL = 100, BENDS_MAX = 3000;

// The column of each box: the longest way to it. A box without a way to it stands right before the first box that needs it.
const columnsOf = (count, before, after) => {
  const column = new Int32Array(count), open = Int32Array.from(before, (list) => list.length), ready = [];
  for (let n = 0; n < count; n++) if (!open[n]) ready.push(n);
  for (let at = 0; at < ready.length; at++) {
    for (const next of after[ready[at]]) {
      column[next] = Math.max(column[next], column[ready[at]] + 1);
      if (!--open[next]) ready.push(next);
    }
  }
  for (let n = 0; n < count; n++) {
    if (before[n].length || !after[n].length) continue;
    column[n] = Math.max(0, after[n].reduce((least, next) => Math.min(least, column[next]), Infinity) - 1);
  }
  return column;
};

// An edge over several columns bends in each of them, so that it passes no box. Too many bends are left out.
const withBends = (boxes, links) => {
  const needed = links.reduce((sum, [from, to]) => sum + Math.max(0, boxes[to].column - boxes[from].column - 1), 0);
  const all = boxes.slice();
  const ways = links.map(([from, to]) => {
    const way = [from];
    if (needed <= BENDS_MAX) {
      for (let column = boxes[from].column + 1; column < boxes[to].column; column++) {
        way.push(all.length);
        all.push({column, w: 0, h: 4, bend: true});
      }
    }
    way.push(to);
    return way;
  });
  return {all, ways};
};

// Sorts each column by where the neighbours of its boxes stand, from both sides in turn: few edges cross then.
const order = (columns, before, after, count) => {
  const place = new Float64Array(count), wanted = new Float64Array(count);
  const number = (column) => column.forEach((one, n) => { place[one] = (n + 0.5) / column.length; });
  const sort = (column, near) => {
    for (const one of column) {
      let sum = 0;
      for (const other of near[one]) sum += place[other];
      wanted[one] = near[one].length ? sum / near[one].length : place[one];
    }
    column.sort((a, b) => wanted[a] - wanted[b] || place[a] - place[b]);
    number(column);
  };
  columns.forEach(number);
  for (let pass = count > 3000 ? 2 : 5; pass; pass--) {
    for (let c = 1; c < columns.length; c++) sort(columns[c], before);
    for (let c = columns.length - 2; c >= 0; c--) sort(columns[c], after);
  }
};

// The centres of one column that are nearest to the wanted ones, without an overlap. Boxes that would overlap become a
// block, which stands at the mean of what its boxes want.
const apart = (column, all, wanted, centre) => {
  const blocks = [];
  let offset = 0, last = null;
  for (const one of column) {
    if (last !== null) offset += (all[last].h + all[one].h) / 2 + (all[last].bend || all[one].bend ? GAP_Y / 2 : GAP_Y);
    last = one;
    let block = {sum: wanted[one] - offset, ones: [[one, offset]]};
    while (blocks.length && blocks.at(-1).sum / blocks.at(-1).ones.length > block.sum / block.ones.length) {
      const above = blocks.pop();
      above.sum += block.sum;
      for (const pair of block.ones) above.ones.push(pair);
      block = above;
    }
    blocks.push(block);
  }
  for (const {sum, ones} of blocks) for (const [one, down] of ones) centre[one] = sum / ones.length + down;
};

const neighbours = (count, pairs) => {
  const before = Array.from({length: count}, () => []), after = Array.from({length: count}, () => []);
  for (const [from, to] of pairs) {
    after[from].push(to);
    before[to].push(from);
  }
  return {before, after};
};

// Boxes have w and h, and column where that is known. Gives them x and y (left, top), and returns the size of all, and
// for each link its points. A column of very many boxes becomes a block of rows.
const placeLevel = (boxes, links) => {
  if (!boxes.length) return {width: 0, height: 0, lines: []};
  const near = neighbours(boxes.length, links), column = columnsOf(boxes.length, near.before, near.after);
  boxes.forEach((box, n) => { box.column ??= column[n]; });
  const {all, ways} = withBends(boxes, links);
  const {before, after} = neighbours(all.length, ways.flatMap((way) => way.slice(1).map((to, n) => [way[n], to])));
  const columns = [];
  all.forEach((box, n) => (columns[box.column] ??= []).push(n));
  for (let c = 0; c < columns.length; c++) columns[c] ??= [];
  order(columns, before, after, all.length);

  const centre = new Float64Array(all.length), left = new Float64Array(all.length), wanted = new Float64Array(all.length);
  const tall = columns.map((list) => list.filter((one) => !all[one].bend)).map((list) => list.length > TALL && list);
  let x = 0;
  const edges = columns.map((list, c) => {
    const most = (side) => list.reduce((most, one) => Math.max(most, all[one][side]), 0), wide = most("w"), high = most("h") + GAP_Y;
    const across = tall[c] ? Math.max(1, Math.ceil(Math.sqrt(tall[c].length * high / (wide + GAP_Y)))) : 1, begin = x;
    for (const one of list) left[one] = x + (wide - all[one].w) / 2;
    (tall[c] || []).forEach((one, n) => {
      left[one] = x + (n % across) * (wide + GAP_Y);
      centre[one] = (Math.floor(n / across) - (Math.ceil(tall[c].length / across) - 1) / 2) * high;
    });
    x += across * (wide + GAP_Y) - GAP_Y + GAP_X;
    return [begin, x - GAP_X];
  });
  const settle = (c, near) => {
    for (const one of columns[c]) {
      const sum = near?.[one].reduce((sum, other) => sum + centre[other], 0);
      wanted[one] = near?.[one].length ? sum / near[one].length : centre[one];
      if (tall[c] && all[one].bend) centre[one] = wanted[one];
    }
    if (!tall[c]) apart(columns[c], all, wanted, centre);
  };
  for (let c = 0; c < columns.length; c++) settle(c);
  for (let pass = 0; pass < 3; pass++) {
    for (let c = 1; c < columns.length; c++) settle(c, before);
    if (pass < 2) for (let c = columns.length - 2; c >= 0; c--) settle(c, after);
  }
  let top = Infinity, bottom = -Infinity;
  all.forEach((box, n) => {
    top = Math.min(top, centre[n] - box.h / 2);
    bottom = Math.max(bottom, centre[n] + box.h / 2);
  });
  boxes.forEach((box, n) => { [box.x, box.y] = [left[n], centre[n] - box.h / 2 - top]; });
  const lines = ways.map((way) => way.flatMap((one, n) => {
    const y = centre[one] - top;
    if (all[one].bend) return [edges[all[one].column][0], y, edges[all[one].column][1], y];
    return [n ? left[one] : left[one] + all[one].w, y];
  }));
  return {width: Math.max(0, x - GAP_X), height: bottom - top, lines};
};
