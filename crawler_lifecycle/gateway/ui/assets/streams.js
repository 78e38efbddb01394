"use strict";
// A worker that all windows of a browser share. It reads their streams through one connection, because with HTTP/1.1 a browser has
// only six connections to a host.
const START_MS = 5000, PING_MS = 30000, PINGS_MAX = 3;
// The number of pings that each window has not answered. A window that crashed sends no message about its end.
const pings = new Map();
let channel = null, last = 0;

const close = (made, error) => {
  if (channel === made) channel = null;
  made.controller.abort();
  for (const one of made.streams.values()) {
    clearTimeout(one.timer);
    one.port.postMessage({n: one.n, error});
  }
  made.streams.clear();
};

const heard = (made, line) => {
  if (!line) return;
  const frame = JSON.parse(line), one = made.streams.get(frame.n);
  if (!one) return;
  clearTimeout(one.timer);
  if (frame.end) made.streams.delete(frame.n);
  one.port.postMessage({...frame, n: one.n});
};

const read = async (made, body) => {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const {done, value} = await reader.read();
      if (done) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) heard(made, line);
    }
  } catch { /* the connection is cut */ }
  close(made, "The connection has ended.");
};

const opened = () => {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  const key = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  const made = {address: `/page/streams/${key}`, controller: new AbortController(), streams: new Map()};
  made.ready = fetch(made.address, {signal: made.controller.signal}).then((answer) => {
    if (answer.ok) read(made, answer.body);
    return answer.status;
  });
  return made;
};

const leave = (made, number) => {
  clearTimeout(made.streams.get(number)?.timer);
  if (!made.streams.delete(number)) return;
  if (made.streams.size) fetch(`${made.address}/${number}/end`).catch(() => {});
  else close(made, "");
};

const join = async (port, {n, url, seen}) => {
  const made = channel ??= opened(), number = last += 1;
  const one = {port, n};
  made.streams.set(number, one);
  const refused = (status) => {
    if (!made.streams.delete(number)) return;
    // Another gateway answered, or one of another build: the window opens a stream of its own.
    port.postMessage(status === 404 ? {n, away: true} : {n, status, type: ""});
    if (status !== 404) port.postMessage({n, end: true});
  };
  try {
    const status = await made.ready;
    if (status !== 200) {
      refused(status);
      if (!made.streams.size) close(made, "");
      return;
    }
    one.timer = setTimeout(() => close(made, "The connection is silent."), START_MS);
    const {pathname: path, search} = new URL(url, location.href);
    const answer = await fetch(`${made.address}/${number}?${new URLSearchParams({path, query: search.slice(1), seen})}`);
    if (!made.streams.has(number)) return;
    if (!answer.ok) { clearTimeout(one.timer); refused(answer.status); }
  } catch { close(made, "The gateway does not answer."); }
};

// Ends the stream n of a window, or all of them.
const stop = (port, n, error) => {
  for (const [number, one] of channel?.streams ?? []) {
    if (one.port !== port || (n && one.n !== n)) continue;
    leave(channel, number);
    if (error) port.postMessage({n: one.n, error});
  }
};

onconnect = ({ports: [port]}) => {
  port.onmessage = ({data}) => {
    pings.set(port, 0);
    if (data.url) join(port, data);
    else if (data.stop) stop(port, data.stop);
    else if (data.bye) { pings.delete(port); stop(port); }
  };
};

setInterval(() => {
  for (const [port, missed] of pings) {
    if (missed < PINGS_MAX) {
      pings.set(port, missed + 1);
      port.postMessage({ping: true});
    } else {
      pings.delete(port);
      // If the window was only frozen, it opens its streams again.
      stop(port, 0, "The window did not answer.");
    }
  }
}, PING_MS);
